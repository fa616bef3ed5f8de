"""Packets of version 2: the key of the job, and several micro-batches in one. For an aggregator that speaks it."""

from typing import Any

from conformance.frames import ACK, BYTES, FULL, KEYED_BYTES, MOST, PARTIAL, PROBE
from conformance.script import Script, vector, vector_for

KEY = 0x0123_4567_89AB_CDEF
MAX, MIN = (1 << 31) - 1, -(1 << 31)


def numbers(micro_batches: int, first: int = 0, step: int = 1) -> list[int]:
    """Values, a different one in each place."""
    return [first + step * index for index in range(8 * micro_batches)]


@vector_for(*({"micro_batches": count} for count in (1, 2, 8, 45, MOST)))
def a_round(s: Script, micro_batches: int) -> None:
    """One slot and one round for all micro-batches: FULL has as many, ACK and CLEAR have none and 64 bytes."""
    job = s.begin(2, key=KEY)
    ours, theirs, sums = numbers(micro_batches), numbers(micro_batches, 1000, -3), numbers(micro_batches, 1000, -2)
    job.partial(0, 1, ours).added()
    job.partial(1, 1, theirs).full_to_all(sums)
    job.state(round_=1, aggregated=0b11)
    job.partial(0, 1, ours).full_to_one(sums)
    job.ack(0, 1).noted()
    job.ack(1, 1).clear_to_all()
    job.ack(0, 1).clear_to_one()
    job.partial(0, 2, numbers(1), why="the next round may have another length").added()
    job.ack(1, 1, why="late").clear_to_one()


@vector
def values_wrap_and_stay_apart(s: Script) -> None:
    """In every micro-batch; the last value is as good as the first."""
    job = s.begin(3, key=KEY)
    job.partial(0, 1, [MAX, MIN, -1, 1] * 4).added()
    job.partial(1, 1, [1, -1, 1, 0] * 4).added()
    job.partial(2, 1, [0] * 15 + [MIN]).full_to_all([MIN, MAX, 0, 1] * 3 + [MIN, MAX, 0, MIN + 1])


@vector
def nothing_is_left_of_a_longer_round(s: Script) -> None:
    """A round of fewer micro-batches, and then one of more."""
    job = s.begin(1, key=KEY)
    job.partial(0, 1, numbers(4, 100)).full_to_all(numbers(4, 100))
    job.partial(0, 2, numbers(1, 7)).full_to_all(numbers(1, 7))
    job.partial(0, 2, numbers(1, 7)).full_to_one(numbers(1, 7))
    job.partial(0, 3, numbers(4, -9)).full_to_all(numbers(4, -9))


@vector
def another_length_than_the_others(s: Script) -> None:
    """All workers cut a mini-batch in the same way: a PARTIAL of another length than its round's is not added."""
    job = s.begin(2, key=KEY)
    job.partial(0, 1, numbers(2)).added()
    job.partial(1, 1, numbers(1)).dropped("RUNT")
    job.partial(1, 1, numbers(3)).dropped("LONG")
    job.state(round_=1, aggregated=0b01)
    job.partial(0, 1, numbers(3), why="it is there already, of whatever length").dropped("DUPLICATE")
    job.partial(1, 1, numbers(2)).full_to_all(numbers(2, 0, 2))
    job.partial(1, 1, numbers(1), why="told again what the sums are").full_to_one(numbers(2, 0, 2))


def _wrong_keys() -> list[int]:
    return [0, (1 << 64) - 1, KEY >> 32, KEY << 32 & (1 << 64) - 1, *(KEY ^ 1 << bit for bit in range(64))]


@vector
def another_key(s: Script) -> None:
    """Every bit of it counts, for PARTIAL and for ACK, whatever else the packet would do."""
    job = s.begin(2, key=KEY)
    job.partial(0, 1, numbers(2)).added()
    job.complete(1, 4, slot=1)
    job.ack(0, 1, slot=1).noted()
    for key in _wrong_keys():
        job.partial(1, 1, numbers(2), key=key).dropped("KEY")
        job.ack(1, 1, slot=1, key=key).dropped("KEY")
    for shard, slot in ((0, 0), (1, 1), (0, 2)):
        job.partial(shard, 1, numbers(2), slot=slot, key=KEY ^ 1, why="repeated, or the first").dropped("KEY")
    job.partial(1, 2, numbers(2), key=KEY ^ 1, why="of the next round").dropped("KEY")
    job.state(slot=0, round_=1, aggregated=0b01)
    job.state(slot=1, round_=1, aggregated=0b11, acknowledged=0b01)
    job.partial(1, 1, numbers(2)).full_to_all(numbers(2, 0, 2))
    job.ack(1, 1, slot=1).clear_to_all()


@vector
def a_packet_without_a_key(s: Script) -> None:
    """Of version 1: a job with a key does not take it, so nobody can do without."""
    job = s.begin(2, key=KEY)
    job.partial(0, 1, numbers(1)).added()
    plain: dict[str, Any] = {"version": 1, "key": None, "values": (5,) * 8, "round": 1}
    job.send(job.frame(PARTIAL, 1, **plain), 1).dropped("KEY")
    job.send(job.frame(ACK, 1, **plain), 1).dropped("KEY")
    job.state(round_=1, aggregated=0b01)


@vector
def a_job_without_a_key(s: Script) -> None:
    """It takes packets of version 1 alone, beside a job that has one."""
    plain, keyed = s.begin(2, place=0, number=7), s.begin(2, place=1, number=8, key=0)
    for key in (0, KEY):
        packet = plain.frame(PARTIAL, 0, round=1, version=2, key=key, values=(1,) * 8)
        plain.send(packet, 0).dropped("KEY")
        plain.send(packet.but(kind=ACK, values=()), 0).dropped("KEY")
    plain.complete(1)
    keyed.complete(1)
    plain.finish(1)
    keyed.finish(1)


@vector
def the_key_of_an_earlier_job(s: Script) -> None:
    """A job of the same number begins with another key: packets of the one before are not its own."""
    before = s.begin(2, key=KEY)
    before.partial(0, 1, 1).added()
    job = s.begin(2, key=KEY ^ 1)
    job.partial(0, 1, 1, key=KEY).dropped("KEY")
    job.state(round_=0)
    job.complete(1)


@vector
def the_key_comes_after_the_source(s: Script) -> None:
    """Who is not in the job is dropped for that; who has no key is not told what is stale."""
    job = s.begin(2, key=KEY)
    wrong = job.frame(PARTIAL, 1, round=1, values=(1,) * 8, key=5)
    job.send(wrong.but(source=1), 1).dropped("SOURCE")
    job.send(wrong.but(slot=65535), 1).dropped("SLOT" if s.geometry.slots <= 65535 else "KEY")
    job.send(wrong.but(round=9), 1).dropped("KEY")
    s.send(wrong.but(job=9), 1).dropped("JOB")
    s.send(wrong.but(kind=FULL), 1).dropped("TYPE")


@vector
def lengths(s: Script) -> None:
    """A frame has the bytes that its number of micro-batches takes: no fewer, no more."""
    job = s.begin(2, key=KEY)
    job.partial(0, 1, numbers(3)).added()
    whole = job.frame(PARTIAL, 1, round=1, values=tuple(numbers(3))).to_bytes()
    for length in (0, 14, 63, 64, 65, 72, 104, len(whole) - 1):
        s.send(whole[:length], 1, "cut").dropped("RUNT")
    for more in (1, 4, 32, 400):
        s.send(whole + bytes(more), 1, "with more behind it").dropped("LONG")
    packet = job.frame(PARTIAL, 1, round=1, values=tuple(numbers(3)))
    for count, reason in ((0, "LONG"), (2, "LONG"), (4, "RUNT"), (MOST, "RUNT"), (MOST + 1, "LONG"), (0x103, "LONG")):
        s.send(packet.but(count=count), 1, "which says another number").dropped(reason)
    s.send(job.frame(PARTIAL, 1, round=1), 1, "of no micro-batch").dropped("LONG")
    for kind in (ACK, 0, 7, 15):
        s.send(packet.but(kind=kind), 1, "only PARTIAL and FULL are longer").dropped("LONG")
    for version in (0, 1, 3, 15):
        s.send(packet.but(version=version), 1, "only of version 2").dropped("LONG")
    job.state(round_=1, aggregated=0b01)
    job.partial(1, 1, numbers(3)).full_to_all(numbers(3, 0, 2))
    assert len(whole) == KEYED_BYTES + 96 > BYTES


@vector
def reserved_bits(s: Script) -> None:
    """Each of the 32 must be 0, and in ACK the number of micro-batches; what fills an ACK up means nothing."""
    job = s.begin(2, key=KEY)
    job.complete(1)
    partial, ack = job.frame(PARTIAL, 1, slot=1, round=1, values=(1,) * 8), job.frame(ACK, 1, round=1)
    for bit in range(32):
        s.send(partial.but(reserved=1 << bit), 1).dropped("RESERVED")
    for bit in range(48):
        s.send(ack.but(reserved=1 << bit), 1).dropped("RESERVED")
    job.state(slot=1, round_=0)
    job.state(round_=1, aggregated=0b11)
    job.send(ack.but(values=(-1,) * 6, count=0), 1).noted()


@vector
def a_probe_tells_what_is_spoken(s: Script) -> None:
    """It needs no key. From version 2 on its answer has that version, and the most micro-batches that are taken."""
    job = s.begin(2, key=KEY)
    job.partial(0, 1, numbers(2)).added()
    for version in range(16):
        job.probe(1, version=version).echo(round_=1, aggregated=0b01)
    s.send(job.frame(PROBE, 1, version=2, count=1), 1, "a probe has no number of micro-batches").dropped("RESERVED")
    job.state(round_=1, aggregated=0b01)
