"""Frames that are shorter or longer than 64 bytes: dropped before anything in them is looked at."""

from conformance.frames import BYTES, PARTIAL, PROBE
from conformance.script import Script, vector


@vector
def every_shorter_length(s: Script) -> None:
    """A packet that is cut is none, even if only the last byte is missing."""
    job = s.begin(2)
    job.partial(0, 1, 1).added()
    whole = job.frame(PARTIAL, 1, round=1, values=(7,) * 8).to_bytes()
    for length in range(BYTES):
        s.send(whole[:length], 1).dropped("RUNT")
    job.state(round_=1, aggregated=0b01)
    job.partial(1, 1, 10).full_to_all(11)


@vector
def longer_lengths(s: Script) -> None:
    """A packet with more behind it is none; neither is what is behind it, though it may look like one."""
    job = s.begin(2)
    job.partial(0, 1, 1).added()
    whole = job.frame(PARTIAL, 1, round=1, values=(7,) * 8).to_bytes()
    for length in (65, 66, 68, 72, 80, 96, 100, 127, 128, 129, 192, 256, 600, 1024, 1500, 1514):
        s.send((whole + bytes(length))[:length], 1, "zeros").dropped("LONG")
        s.send((whole * 24)[:length], 1, "the packet again").dropped("LONG")
    job.state(round_=1, aggregated=0b01)
    job.partial(1, 1, 10).full_to_all(11)


@vector
def lengths_come_before_all_else(s: Script) -> None:
    """Of another length whatever is wrong besides is not looked at, and a probe gets no answer."""
    job = s.begin(1)
    good = job.frame(PARTIAL, 0, round=1)
    for wrong in (good.but(ethertype=0), good.but(version=5), good.but(reserved=1), good.but(destination=1)):
        s.send(wrong.to_bytes()[:-1], 0).dropped("RUNT")
        s.send(wrong.to_bytes() + b"\0", 0).dropped("LONG")
    for wrong in (good.but(kind=9), good.but(job=1), good.but(workers=9), good.but(source=0), good.but(kind=PROBE)):
        s.send(wrong.to_bytes()[:60], 0).dropped("RUNT")
        s.send(wrong.to_bytes() + bytes(64), 0).dropped("LONG")
    job.state(round_=0)
    job.partial(0, 1, 3).full_to_all(3)
