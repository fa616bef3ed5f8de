"""Rounds compare modulo 2^16: every distance, in every state of a slot, also across the wrap."""

from conformance.script import Running, Script, vector, vector_for

BEFORE = (-(1 << 15), -(1 << 15) + 1, -2, -1)
"""Distances of a round that is before the slot's: (r − round) mod 2^16 is 2^15 or more."""

AFTER = (1, 2, (1 << 15) - 2, (1 << 15) - 1)

BASES = ({"round_": 0}, {"round_": 65535}, {"round_": 32767}, {"round_": 32768})


def _others(job: Running, round_: int) -> None:
    """Packets of any round but the slot's: none of them changes it, in whatever state it is."""
    for shard in (0, 1):
        for distance in BEFORE:
            job.partial(shard, round_ + distance, 99, why=f"distance {distance}").dropped("STALE")
            job.ack(shard, round_ + distance, why=f"distance {distance}").clear_to_one()
        for distance in AFTER:
            if distance != 1:
                job.partial(shard, round_ + distance, 99, why=f"distance {distance}").dropped("STALE")
            job.ack(shard, round_ + distance, why=f"distance {distance}").dropped("STALE")


def _next(job: Running, round_: int) -> None:
    """The one distance that begins a round."""
    job.partial(1, round_ + 1, 30, why="distance 1").added()
    job.state(round_=round_ + 1, aggregated=0b10)
    job.partial(0, round_ + 1, 3).full_to_all(33)


@vector_for(*BASES)
def distances_to_a_slot_with_one_partial(s: Script, round_: int) -> None:
    """Shard 0 is in `aggregated`, shard 1 is not."""
    job = s.begin(first_round=round_)
    job.partial(0, round_, 1).added()
    _others(job, round_)
    job.partial(0, round_, 1, why="distance 0").dropped("DUPLICATE")
    job.ack(0, round_, why="distance 0").dropped("STALE")
    job.ack(1, round_, why="distance 0").dropped("STALE")
    job.state(round_=round_, aggregated=0b01)
    _next(job, round_)


@vector_for(*BASES)
def distances_to_a_complete_slot(s: Script, round_: int) -> None:
    """All shards are in `aggregated`, none in `acknowledged`."""
    job = s.begin(first_round=round_)
    job.complete(round_, 4)
    _others(job, round_)
    job.partial(0, round_, 1, why="distance 0").full_to_one(8)
    job.partial(1, round_, 1, why="distance 0").full_to_one(8)
    job.state(round_=round_, aggregated=0b11)
    _next(job, round_)


@vector_for(*BASES)
def distances_to_a_slot_with_one_ack(s: Script, round_: int) -> None:
    """Shard 0 has acknowledged, shard 1 has not."""
    job = s.begin(first_round=round_)
    job.complete(round_, 4)
    job.ack(0, round_).noted()
    _others(job, round_)
    job.partial(0, round_, 1, why="distance 0").full_to_one(8)
    job.partial(1, round_, 1, why="distance 0").full_to_one(8)
    job.ack(0, round_, why="distance 0").dropped("DUPLICATE")
    job.state(round_=round_, aggregated=0b11, acknowledged=0b01)
    _next(job, round_)


@vector_for(*BASES)
def distances_to_a_slot_that_is_over(s: Script, round_: int) -> None:
    """All have acknowledged."""
    job = s.begin(first_round=round_)
    job.complete(round_, 4)
    job.finish(round_)
    _others(job, round_)
    job.partial(0, round_, 1, why="distance 0").full_to_one(8)
    job.ack(0, round_, why="distance 0").clear_to_one()
    job.ack(1, round_, why="distance 0").clear_to_one()
    job.state(round_=round_, aggregated=0b11, acknowledged=0b11)
    _next(job, round_)


@vector
def rounds_wrap(s: Script) -> None:
    """After 65535 comes 0: whole operations across it, each with what is late from the one before."""
    job = s.begin(first_round=65533)
    job.complete(65533, 2)
    job.finish(65533)
    for round_ in (65534, 65535, 0, 1, 2):
        job.partial(0, round_, 1).added()
        job.partial(1, round_ - 1, 9, why="of the round before").dropped("STALE")
        job.ack(1, round_ - 1, why="of the round before").clear_to_one()
        job.partial(1, round_, 10).full_to_all(11)
        job.ack(0, round_ + 1, why="of the round after").dropped("STALE")
        job.ack(0, round_).noted()
        job.ack(0, round_ - 1, why="of the round before").clear_to_one()
        job.ack(1, round_).clear_to_all()
        job.state(round_=round_, aggregated=0b11, acknowledged=0b11)


@vector
def slots_wrap_apart(s: Script) -> None:
    """One slot is past the wrap, another before it."""
    job = s.begin(first_round=65535)
    job.complete(65535, slot=0)
    job.partial(0, 0, 1, slot=0).added()
    job.partial(0, 0, 1, slot=1).dropped("STALE")
    job.partial(0, 65535, 1, slot=1).added()
    job.ack(1, 65535, slot=0).clear_to_one()
    job.ack(1, 0, slot=1).dropped("STALE")
    job.state(slot=0, round_=0, aggregated=0b01)
    job.state(slot=1, round_=65535, aggregated=0b01)
