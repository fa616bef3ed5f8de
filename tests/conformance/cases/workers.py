"""Numbers of workers, and the ports that answers leave through."""

from conformance.script import Script, vector, vector_for


@vector_for(*({"workers": workers} for workers in (1, 2, 3, 32)))
def an_operation_and_another(s: Script, workers: int) -> None:
    """Every shard counts, the last one in bit 31 too: whole operations, with each packet twice."""
    job = s.begin(workers)
    everyone = (1 << workers) - 1
    for round_ in (1, 2):
        total = 0
        for shard in range(workers - 1):
            total += shard + round_
            job.partial(shard, round_, shard + round_).added()
            job.partial(shard, round_, shard + round_).dropped("DUPLICATE")
        if workers > 1:
            job.state(round_=round_, aggregated=everyone >> 1)
        total += workers - 1 + round_
        job.partial(workers - 1, round_, workers - 1 + round_).full_to_all(total)
        job.state(round_=round_, aggregated=everyone)
        job.partial(0, round_, 0).full_to_one(total)
        job.partial(workers - 1, round_, 0).full_to_one(total)
        for shard in range(workers - 1):
            job.ack(shard, round_).noted()
            job.ack(shard, round_).dropped("DUPLICATE")
        job.ack(workers - 1, round_).clear_to_all()
        job.ack(0, round_).clear_to_one()
        job.state(round_=round_, aggregated=everyone, acknowledged=everyone)


@vector
def each_of_32_is_missing_once(s: Script) -> None:
    """A slot is not complete before the last shard's PARTIAL, nor over before its ACK, whichever it is."""
    job = s.begin(32)
    everyone = (1 << 32) - 1
    for slot, last in enumerate((0, 1, 15, 16, 30, 31)):
        for shard in sorted(set(range(32)) - {last}):
            job.partial(shard, 1, 1, slot=slot).added()
        job.state(slot=slot, round_=1, aggregated=everyone & ~(1 << last))
        job.partial(last, 1, 1, slot=slot).full_to_all(32)
        for shard in sorted(set(range(32)) - {last}):
            job.ack(shard, 1, slot=slot).noted()
        job.ack(last, 1, slot=slot).clear_to_all()


@vector
def members_share_a_port(s: Script) -> None:
    """Several workers behind one port: an answer to one leaves through it once, and so does one to all."""
    job = s.begin(3, ports=[1, 1, 1])
    job.partial(0, 1, 1).added()
    job.partial(1, 1, 10).added()
    job.partial(2, 1, 100).full_to_all(111)
    job.partial(1, 1, 10).full_to_one(111)
    job.finish(1)
    job.ack(0, 1).clear_to_one()


@vector
def some_members_share_a_port(s: Script) -> None:
    """Two workers behind one port and one behind another."""
    job = s.begin(3, ports=[3, 0, 3])
    job.complete(1)
    for shard in range(3):
        job.partial(shard, 1).full_to_one(3)
    job.finish(1)
    for shard in range(3):
        job.ack(shard, 1).clear_to_one()


@vector
def a_group_of_some_ports(s: Script) -> None:
    """Nothing leaves through ports that are not the job's."""
    job = s.begin(2, ports=[1, 2])
    job.complete(1)
    job.finish(1)
    other = s.begin(2, place=1, number=8, ports=[0, 3])
    other.complete(1)
    other.finish(1)


@vector
def the_group_is_what_the_job_says(s: Script) -> None:
    """Answers to all leave through the job's ports, not those of its workers: a switch may lie between."""
    job = s.begin(2, ports=[0, 1], to_all=0b0100)
    job.complete(1)
    job.partial(0, 1).full_to_one(2)
    job.partial(1, 1).full_to_one(2)
    job.finish(1)
    other = s.begin(2, place=1, number=8, ports=[2, 2], to_all=0b1111)
    other.complete(1)
    other.finish(1)


@vector
def answers_to_one_leave_through_its_port(s: Script) -> None:
    """Each worker is answered through the port that it is behind."""
    job = s.begin(4, ports=[3, 2, 1, 0])
    job.complete(1)
    for shard in (0, 3, 1, 2):
        job.partial(shard, 1).full_to_one(4)
    job.finish(1)
    for shard in (2, 1, 3, 0):
        job.ack(shard, 1).clear_to_one()
