"""Slot numbers: the last, and those beyond it."""

from conformance.script import Script, vector


@vector
def the_last_slot(s: Script) -> None:
    """It is a slot like any other, and none but itself."""
    job = s.begin()
    last = s.geometry.slots - 1
    job.partial(0, 1, 1, slot=last).added()
    job.state(slot=0, round_=0)
    job.state(slot=last - 1, round_=0)
    job.state(slot=last, round_=1, aggregated=0b01)
    job.partial(1, 1, 10, slot=last).full_to_all(11)
    job.finish(1, slot=last)
    job.state(slot=last, round_=1, aggregated=0b11, acknowledged=0b11)


@vector
def slots_beyond_the_last(s: Script) -> None:
    """No such slot: neither is one of fewer bits taken for it."""
    job = s.begin()
    slots = s.geometry.slots
    job.partial(0, 1, 1, slot=0).added()
    job.partial(0, 1, 1, slot=slots - 1).added()
    beyond = {slots, slots + 1, 2 * slots - 1, 0x8000, 0x8000 | (slots - 1), 65535}
    beyond |= {1 << bit for bit in range(16)}
    for slot in sorted(number for number in beyond if slots <= number < 1 << 16):
        job.partial(1, 1, 1000, slot=slot).dropped("SLOT")
        job.ack(1, 0, slot=slot).dropped("SLOT")
    job.state(slot=0, round_=1, aggregated=0b01)
    job.state(slot=slots - 1, round_=1, aggregated=0b01)
    job.partial(1, 1, 10, slot=0).full_to_all(11)
    job.partial(1, 1, 10, slot=slots - 1).full_to_all(11)


@vector
def many_slots_in_flight(s: Script) -> None:
    """Each carries an operation at the same time; sums do not mix."""
    job = s.begin()
    some = {slot * (s.geometry.slots - 1) // 15: slot + 1 for slot in range(16)}
    for slot, value in some.items():
        job.partial(value % 2, 1, value, slot=slot).added()
    for slot, value in reversed(some.items()):
        job.partial(1 - value % 2, 1, 1000, slot=slot).full_to_all(1000 + value)
    for slot in some:
        job.ack(0, 1, slot=slot).noted()
    for slot in some:
        job.ack(1, 1, slot=slot).clear_to_all()
