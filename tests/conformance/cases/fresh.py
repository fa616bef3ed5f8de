"""Fresh slots: the round before the job's first, over; they take PARTIAL of the next and answer nothing."""

from conformance.script import Script, vector, vector_for

FIRST = ({"first": 300}, {"first": 1}, {"first": 0}, {"first": 65535}, {"first": 32768})

NOT_FIRST = (-(1 << 15), -(1 << 15) + 1, -2, -1, 1, 2, (1 << 15) - 2, (1 << 15) - 1)
"""Distances to the first round."""


@vector_for(*FIRST)
def a_fresh_slot_takes_the_first_round_only(s: Script, first: int) -> None:
    """PARTIAL of any other round is dropped, that of the fresh slot's own too: there are no sums to answer with."""
    job = s.begin(first_round=first)
    job.state(round_=first - 1)
    for distance in NOT_FIRST:
        job.partial(0, first + distance, 9, why=f"distance {distance}").dropped("STALE")
    job.state(round_=first - 1)
    job.partial(0, first, 1).added()
    job.partial(1, first, 10).full_to_all(11)
    job.state(round_=first, aggregated=0b11)


@vector_for(*FIRST)
def a_fresh_slot_answers_no_ack(s: Script, first: int) -> None:
    """ACK of any round is dropped, of those before it too: what it acknowledges was of another job."""
    job = s.begin(first_round=first)
    for shard in (0, 1):
        for distance in (0, *NOT_FIRST):
            job.ack(shard, first + distance, why=f"distance {distance}").dropped("STALE")
    job.state(round_=first - 1)


@vector
def a_fresh_slot_of_one_worker(s: Script) -> None:
    """One worker's fresh slot answers no earlier; its empty bitmaps are not all."""
    job = s.begin(1, first_round=9)
    job.partial(0, 8, 1).dropped("STALE")
    job.ack(0, 8).dropped("STALE")
    job.ack(0, 9).dropped("STALE")
    job.state(round_=8)
    job.partial(0, 9, 1).full_to_all(1)


@vector
def every_slot_is_fresh(s: Script) -> None:
    """A job begins with all its slots fresh, the last one too."""
    job = s.begin(first_round=77)
    for slot in sorted({0, 1, s.geometry.slots // 2, s.geometry.slots - 1}):
        job.state(slot=slot, round_=76)
        job.ack(0, 76, slot=slot).dropped("STALE")
    for slot in sorted({0, 1, s.geometry.slots // 2, s.geometry.slots - 1}):
        job.partial(1, 77, slot + 1, slot=slot).added()
        job.state(slot=slot, round_=77, aggregated=0b10)


@vector
def a_slot_is_fresh_once(s: Script) -> None:
    """After its first PARTIAL a slot tells CLEAR to an ACK of the round that it was fresh with."""
    job = s.begin(first_round=1)
    job.partial(0, 1, 1).added()
    job.ack(1, 0).clear_to_one()
    job.ack(1, 65535).clear_to_one()
