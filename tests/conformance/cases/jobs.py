"""Jobs: those that begin and end, old packets of theirs, several at a time on the same slot numbers."""

from conformance.frames import ACK, PARTIAL
from conformance.script import Script, vector, vector_for


@vector
def nothing_is_served_at_first(s: Script) -> None:
    """Without a job every packet is of none that is served."""
    job = s.begin()
    s.end()
    frame = job.frame(PARTIAL, 0, round=1)
    s.send(frame, 0).dropped("JOB")
    s.send(frame.but(job=0), 0, "of number 0, the register's after reset").dropped("JOB")


@vector
def two_jobs_interleave(s: Script) -> None:
    """Jobs use the same slot numbers, and have slots of their own."""
    one = s.begin(2, place=0, number=7, first_round=1)
    two = s.begin(3, place=1, number=8, first_round=100)
    one.partial(0, 1, 1).added()
    two.partial(0, 100, 5).added()
    two.partial(1, 100, 50).added()
    one.state(round_=1, aggregated=0b01)
    two.state(round_=100, aggregated=0b011)
    one.partial(1, 1, 10).full_to_all(11)
    two.ack(0, 100).dropped("STALE")
    one.ack(0, 1).noted()
    two.partial(2, 100, 500).full_to_all(555)
    two.ack(0, 100).noted()
    one.ack(1, 1).clear_to_all()
    two.state(round_=100, aggregated=0b111, acknowledged=0b001)
    one.state(round_=1, aggregated=0b11, acknowledged=0b11)
    two.ack(1, 100).noted()
    one.partial(0, 2, 2).added()
    two.ack(2, 100).clear_to_all()
    one.state(round_=2, aggregated=0b01)


@vector
def jobs_in_every_place(s: Script) -> None:
    """As many jobs as there are places, their packets in turn."""
    places = range(s.geometry.places)
    jobs = [s.begin(2, place=place, number=40 + place, first_round=place + 1) for place in places]
    for place, job in enumerate(jobs):
        job.partial(0, place + 1, place + 1).added()
    for place, job in enumerate(jobs):
        job.partial(1, place + 1, 10).full_to_all(11 + place)
    for place, job in enumerate(jobs):
        job.finish(place + 1)
    for place, job in enumerate(jobs):
        job.state(round_=place + 1, aggregated=0b11, acknowledged=0b11)


@vector
def jobs_may_have_the_same_workers(s: Script) -> None:
    """Members of the same addresses behind the same ports: the number alone says which job a packet is of."""
    one = s.begin(2, place=0, number=7, addresses=7)
    two = s.begin(2, place=1, number=8, addresses=7)
    one.partial(0, 1, 1).added()
    two.partial(0, 1, 2).added()
    two.partial(1, 1, 20).full_to_all(22)
    one.partial(1, 1, 10).full_to_all(11)
    two.ack(0, 1).noted()
    one.ack(1, 1).noted()
    one.state(round_=1, aggregated=0b11, acknowledged=0b10)
    two.state(round_=1, aggregated=0b11, acknowledged=0b01)


@vector
def a_job_ends(s: Script) -> None:
    """From then on its packets are dropped, whatever they say; the other job goes on."""
    one = s.begin(2, place=0, number=7)
    two = s.begin(2, place=1, number=8)
    one.partial(0, 1, 1).added()
    two.partial(0, 1, 2).added()
    s.end(0)
    s.send(one.frame(PARTIAL, 1, round=1), 1).dropped("JOB")
    s.send(one.frame(ACK, 0, round=1), 0).dropped("JOB")
    s.send(one.frame(PARTIAL, 1, round=1, workers=3), 1, "wrong in another way too").dropped("JOB")
    two.partial(1, 1, 20).full_to_all(22)


@vector
def a_restarted_job_has_another_number(s: Script) -> None:
    """Old packets in flight are of a number that is not served, though rounds and workers are the same."""
    old = s.begin(2, number=7)
    old.partial(0, 1, 1000).added()
    s.end()
    new = s.begin(2, number=8)
    new.state(round_=0)
    s.send(old.frame(PARTIAL, 1, round=1), 1, "of the job before").dropped("JOB")
    new.partial(0, 1, 1).added()
    s.send(old.frame(PARTIAL, 1, round=1), 1, "of the job before").dropped("JOB")
    new.partial(1, 1, 10).full_to_all(11)
    s.send(old.frame(ACK, 0, round=1), 0, "of the job before").dropped("JOB")
    new.state(round_=1, aggregated=0b11)


@vector
def a_job_ends_what_was_in_its_place(s: Script) -> None:
    """A job is begun where another runs: that one is served no longer, nothing of its slots is left."""
    old = s.begin(2, number=7)
    old.complete(1, 1000)
    old.ack(0, 1).noted()
    new = s.begin(3, number=8)
    new.state(round_=0)
    s.send(old.frame(ACK, 1, round=1), 1).dropped("JOB")
    new.ack(0, 1).dropped("STALE")
    new.complete(1, 5)


@vector_for({"number": 0}, {"number": 255}, {"number": 7})
def the_same_number_begins_anew(s: Script, number: int) -> None:
    """A job that is begun again has all slots fresh, in whatever state they were."""
    job = s.begin(2, number=number)
    job.complete(1, slot=0)
    job.partial(0, 1, 1, slot=1).added()
    job.complete(1, slot=2)
    job.finish(1, slot=2)
    again = s.begin(2, number=number)
    for slot in range(3):
        again.state(slot=slot, round_=0)
        again.ack(0, 1, slot=slot).dropped("STALE")
        again.partial(0, 2, 1, slot=slot).dropped("STALE")
        again.complete(1, 3 + slot, slot=slot)


@vector
def a_number_moves_to_another_place(s: Script) -> None:
    """The number says which job, not the place."""
    old = s.begin(2, place=0, number=7)
    old.partial(0, 1, 1).added()
    s.end(0)
    new = s.begin(2, place=1, number=7)
    new.state(round_=0)
    new.complete(1, 4)
    new.finish(1)


@vector
def a_job_that_begins_disturbs_no_other(s: Script) -> None:
    """Another job comes and goes in the middle of a round."""
    one = s.begin(2, place=0, number=7)
    one.partial(0, 1, 1).added()
    s.begin(3, place=1, number=8, first_round=500)
    one.state(round_=1, aggregated=0b01)
    one.partial(1, 1, 10).full_to_all(11)
    one.ack(0, 1).noted()
    s.end(1)
    one.state(round_=1, aggregated=0b11, acknowledged=0b01)
    one.ack(1, 1).clear_to_all()


@vector
def a_job_may_change_its_size(s: Script) -> None:
    """Another number of workers, other ports, another first round: nothing of the job before counts."""
    big = s.begin(32, number=7)
    big.partial(31, 1, 1).added()
    small = s.begin(1, number=8, ports=[3], first_round=65535)
    small.complete(65535, 2)
    small.finish(65535)
    again = s.begin(3, number=9, ports=[2, 1, 0], first_round=0)
    again.state(round_=65535)
    again.complete(0, 3)
    again.finish(0)
