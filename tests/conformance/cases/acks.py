"""ACK: the last two rows of the aggregator's table, and what is in none."""

from conformance.script import Script, vector, vector_for


@vector_for({"first": 0}, {"first": 1})
def the_last_ack_brings_clear_to_all(s: Script, first: int) -> None:
    """A shard joins `acknowledged`; CLEAR goes to all when all have."""
    job = s.begin()
    job.complete(1)
    job.ack(first, 1).noted()
    job.state(round_=1, aggregated=0b11, acknowledged=1 << first)
    job.ack(1 - first, 1).clear_to_all()
    job.state(round_=1, aggregated=0b11, acknowledged=0b11)


@vector
def all_of_three_must_acknowledge(s: Script) -> None:
    """CLEAR goes out when the last of all shards has acknowledged, not when as many ACKs have come."""
    job = s.begin(3)
    job.complete(1)
    job.ack(2, 1).noted()
    job.ack(2, 1).dropped("DUPLICATE")
    job.ack(2, 1).dropped("DUPLICATE")
    job.state(round_=1, aggregated=0b111, acknowledged=0b100)
    job.ack(0, 1).noted()
    job.ack(0, 1).dropped("DUPLICATE")
    job.ack(1, 1).clear_to_all()


@vector
def a_repeated_ack_brings_clear_to_its_sender(s: Script) -> None:
    """All had acknowledged before: CLEAR goes to the one that asks."""
    job = s.begin(3)
    job.complete(1)
    job.finish(1)
    for shard in (2, 0, 1, 1):
        job.ack(shard, 1).clear_to_one()
    job.state(round_=1, aggregated=0b111, acknowledged=0b111)


@vector
def one_workers_ack_brings_clear(s: Script) -> None:
    """With one worker the first ACK brings CLEAR to all, each further one CLEAR to it."""
    job = s.begin(1)
    job.complete(1)
    job.ack(0, 1).clear_to_all()
    job.ack(0, 1).clear_to_one()


@vector
def an_ack_before_the_sums_is_dropped(s: Script) -> None:
    """ACK(round) counts only when the slot is complete: nobody can have the sums yet."""
    job = s.begin()
    job.partial(0, 1, 1).added()
    job.ack(0, 1).dropped("STALE")
    job.ack(1, 1).dropped("STALE")
    job.state(round_=1, aggregated=0b01)
    job.partial(1, 1, 10).full_to_all(11)
    job.ack(0, 1).noted()


@vector
def an_ack_of_the_round_before_brings_clear(s: Script) -> None:
    """The others have gone on, so all had acknowledged: its CLEAR was lost, it gets another of its own round."""
    job = s.begin(3)
    job.complete(1)
    job.finish(1)
    job.partial(0, 2, 7).added()
    for shard in (1, 2, 0):
        job.ack(shard, 1).clear_to_one()
    job.state(round_=2, aggregated=0b001)
    job.partial(1, 2, 10).added()
    job.partial(2, 2, 100).full_to_all(117)
    job.ack(1, 1, why="the slot is complete").clear_to_one()
    job.ack(1, 2).noted()
    job.ack(1, 1, why="it has acknowledged the next").clear_to_one()
    job.state(round_=2, aggregated=0b111, acknowledged=0b010)


@vector
def an_ack_of_the_next_round_is_dropped(s: Script) -> None:
    """Only a PARTIAL begins a round."""
    job = s.begin()
    job.complete(1)
    job.finish(1)
    job.ack(0, 2).dropped("STALE")
    job.state(round_=1, aggregated=0b11, acknowledged=0b11)


@vector
def values_of_an_ack_mean_nothing(s: Script) -> None:
    """The sums stay what they are, and CLEAR carries none."""
    job = s.begin()
    job.partial(0, 1, 1).added()
    job.partial(1, 1, 10).full_to_all(11)
    job.ack(0, 1, values=(-1,) * 8).noted()
    job.partial(1, 1, 10).full_to_one(11)
    job.ack(1, 1, values=(12345,) * 8).clear_to_all()
    job.partial(0, 1, 1).full_to_one(11)


@vector
def the_late_ack_of_alternating_rounds(s: Script) -> None:
    """Why rounds have numbers: an old ACK must not count for the round that has come since."""
    job = s.begin()
    job.complete(1)
    job.finish(1)
    job.complete(2)
    job.ack(0, 2).noted()
    job.ack(1, 1, why="delayed, sent twice").clear_to_one()
    job.state(round_=2, aggregated=0b11, acknowledged=0b01)
    job.ack(1, 2).clear_to_all()
    job.complete(3)
    job.ack(0, 3).noted()
    job.ack(1, 1).clear_to_one()
    job.state(round_=3, aggregated=0b11, acknowledged=0b01)
