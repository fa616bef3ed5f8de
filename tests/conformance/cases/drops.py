"""What is dropped: every header field wrong alone, two wrong together, in the order of the checks."""

from itertools import combinations
from typing import Any

from conformance.frames import ACK, BROADCAST, CLEAR, ECHO, FULL, PARTIAL, PROBE
from conformance.script import MAC, Running, Script, vector, vector_for

KINDS = ({"kind": PARTIAL}, {"kind": ACK})


def _begin(s: Script) -> Running:
    """A slot in which shard 1's PARTIAL is missing, and one in which its ACK is."""
    job = s.begin(2)
    job.partial(0, 1, 1, slot=0).added()
    job.complete(1, 4, slot=1)
    job.ack(0, 1, slot=1).noted()
    return job


def _good(job: Running, kind: int) -> Any:
    """What would be taken: shard 1's PARTIAL of slot 0, or its ACK of slot 1."""
    return job.frame(kind, 1, slot=0 if kind == PARTIAL else 1, round=1, values=(7,) * 8)


def _unchanged(job: Running) -> None:
    """Nothing of all that counted."""
    job.state(slot=0, round_=1, aggregated=0b01)
    job.state(slot=1, round_=1, aggregated=0b11, acknowledged=0b01)
    job.partial(1, 1, 10, slot=0).full_to_all(11)
    job.ack(1, 1, slot=1).clear_to_all()


@vector_for(*KINDS)
def another_ethertype(s: Script, kind: int) -> None:
    """Each bit of it counts; other protocols are none of ours."""
    job = _begin(s)
    good = _good(job, kind)
    for ethertype in (0, 0x0800, 0x0806, 0x8100, 0x86DD, 0xFFFF, *(0x88B5 ^ 1 << bit for bit in range(16))):
        s.send(good.but(ethertype=ethertype), 1).dropped("ETHERTYPE")
    _unchanged(job)


@vector_for(*KINDS)
def another_version(s: Script, kind: int) -> None:
    """Those that the aggregator speaks are the format's."""
    job = _begin(s)
    for version in (0, *range(s.geometry.version + 1, 16)):
        s.send(_good(job, kind).but(version=version), 1).dropped("VERSION")
    _unchanged(job)


@vector_for(*KINDS)
def reserved_bits(s: Script, kind: int) -> None:
    """Each of the 48 must be 0."""
    job = _begin(s)
    for reserved in (*(1 << bit for bit in range(48)), (1 << 48) - 1):
        s.send(_good(job, kind).but(reserved=reserved), 1).dropped("RESERVED")
    _unchanged(job)


@vector_for(*KINDS)
def another_destination(s: Script, kind: int) -> None:
    """Only the aggregator's own address, in all its 48 bits; broadcast is for probes."""
    job = _begin(s)
    near = (MAC ^ 1 << bit for bit in range(48))
    for destination in (0, BROADCAST, job.job.group_mac, job.job.members[0].mac, job.job.members[1].mac, *near):
        s.send(_good(job, kind).but(destination=destination), 1).dropped("ADDRESS")
    _unchanged(job)


@vector
def another_type(s: Script) -> None:
    """FULL, CLEAR and ECHO are for the other side, the rest is nobody's."""
    job = _begin(s)
    for kind in sorted(set(range(16)) - {PARTIAL, ACK, PROBE}):
        s.send(_good(job, PARTIAL).but(kind=kind), 1).dropped("TYPE")
        s.send(_good(job, ACK).but(kind=kind), 1).dropped("TYPE")
    for version in range(16):
        s.send(_good(job, PARTIAL).but(kind=ECHO, version=version), 1, "echoes may have any version").dropped("TYPE")
    _unchanged(job)


@vector
def another_type_for_somebody_else(s: Script) -> None:
    """The address is looked at before the type, also of types that nobody knows; broadcast is for probes alone."""
    job = _begin(s)
    for kind in sorted(set(range(16)) - {PROBE}):
        for destination in (BROADCAST, MAC ^ 1):
            s.send(_good(job, PARTIAL).but(kind=kind, destination=destination), 1).dropped("ADDRESS")
    _unchanged(job)


@vector
def another_version_of_another_type(s: Script) -> None:
    """Probes and echoes alone may have any version, types that nobody knows may not."""
    job = _begin(s)
    for kind in sorted(set(range(16)) - {PROBE, ECHO}):
        for version in (0, s.geometry.version + 1, 15):
            s.send(_good(job, PARTIAL).but(kind=kind, version=version), 1).dropped("VERSION")
    _unchanged(job)


@vector
def the_aggregators_own_answers(s: Script) -> None:
    """What it sends itself comes back, as from a loop in the network."""
    job = _begin(s)
    full = job.frame(FULL, 0, destination=job.job.group_mac, source=MAC, slot=1, round=1, bitmap=3)
    s.send(full, 1).dropped("ADDRESS")
    s.send(full.but(destination=MAC), 1).dropped("TYPE")
    s.send(full.but(kind=CLEAR, destination=job.job.members[1].mac, shard=1), 1).dropped("ADDRESS")
    _unchanged(job)


@vector_for(*KINDS)
def another_job(s: Script, kind: int) -> None:
    """Every number but that of the job."""
    job = _begin(s)
    number = job.job.number
    for other in (0, 255, number - 1, number + 1, *(number ^ 1 << bit for bit in range(8))):
        s.send(_good(job, kind).but(job=other), 1).dropped("JOB")
    _unchanged(job)


@vector_for(*KINDS)
def another_number_of_workers(s: Script, kind: int) -> None:
    """It must be the job's: its workers disagree about who is in."""
    job = _begin(s)
    for workers in (0, 1, 3, 32, 33, 255, *(2 ^ 1 << bit for bit in range(8))):
        job.send(_good(job, kind).but(workers=workers), 1).dropped("WORKERS")
    _unchanged(job)


@vector_for(*KINDS)
def another_shard(s: Script, kind: int) -> None:
    """Not below the number of workers: each is dropped, whatever its low bits and its bitmap are."""
    job = _begin(s)
    for shard in (2, 3, 31, 32, 33, 64, 65, 127, 128, 129, 254, 255):
        job.send(_good(job, kind).but(shard=shard, bitmap=1 << shard % 32), 1).dropped("SHARD")
        job.send(_good(job, kind).but(shard=shard, bitmap=0b10), 1, "with a worker's bit").dropped("SHARD")
    _unchanged(job)


@vector_for(*KINDS)
def another_bitmap(s: Script, kind: int) -> None:
    """It must be the shard's bit, and no other."""
    job = _begin(s)
    others = (0, 0b01, 0b11, 0xFFFF_FFFF, *(0b10 | 1 << bit for bit in range(32) if bit != 1))
    for bitmap in (*others, *(1 << bit for bit in range(2, 32))):
        job.send(_good(job, kind).but(bitmap=bitmap), 1).dropped("SHARD")
    _unchanged(job)


@vector
def shards_beyond_32(s: Script) -> None:
    """With all 32 workers a shard of more bits is none of them."""
    job = s.begin(32)
    for shard in (32, 33, 63, 64, 128, 255):
        packet = job.frame(PARTIAL, shard % 32, round=1)
        job.send(packet.but(shard=shard), shard % 4).dropped("SHARD")
    job.state(round_=0)


@vector_for(*KINDS)
def another_source(s: Script, kind: int) -> None:
    """Each bit of the worker's address counts; the other worker is not it either."""
    job = _begin(s)
    good = _good(job, kind)
    for source in (0, BROADCAST, MAC, job.job.members[0].mac, *(good.source ^ 1 << bit for bit in range(48))):
        job.send(good.but(source=source), 1).dropped("SOURCE")
    _unchanged(job)


@vector_for(*KINDS)
def another_port(s: Script, kind: int) -> None:
    """The worker's packet, from a port that it is not behind."""
    job = _begin(s)
    for port in sorted(set(range(s.geometry.ports)) - {1}):
        job.send(_good(job, kind), port).dropped("SOURCE")
    _unchanged(job)


@vector
def a_worker_claims_to_be_another(s: Script) -> None:
    """Address, port, shard and bitmap must be those of one worker: no mixture of two will do."""
    job = _begin(s)
    zero = job.job.members[0]
    good = _good(job, PARTIAL)
    job.send(good.but(source=zero.mac), 0, "worker 0 says it is shard 1").dropped("SOURCE")
    job.send(good.but(source=zero.mac), 1, "with the port of worker 1").dropped("SOURCE")
    job.send(good, 0, "with the address of worker 1").dropped("SOURCE")
    job.send(good.but(source=zero.mac, shard=0), 0, "with the bit of worker 1").dropped("SHARD")
    job.send(good.but(source=zero.mac, bitmap=0b01), 0, "with the shard of worker 1").dropped("SHARD")
    _unchanged(job)


@vector
def a_stranger_claims_to_be_in(s: Script) -> None:
    """A worker of another job with this job's number, number of workers, shards and addresses, in turn."""
    job = _begin(s)
    other = s.begin(2, place=1, number=8, ports=[2, 3])
    stranger = other.frame(PARTIAL, 1, round=1)
    job.send(stranger.but(job=7), 3, "its number").dropped("SOURCE")
    job.send(stranger.but(job=7, shard=0, bitmap=1), 3, "its number, as the other shard").dropped("SOURCE")
    job.send(stranger.but(job=7, source=job.job.members[1].mac), 3, "its address, from afar").dropped("SOURCE")
    job.send(stranger.but(job=7, workers=3), 3).dropped("WORKERS")
    other.send(stranger.but(source=job.job.members[1].mac), 1, "the other way round").dropped("SOURCE")
    _unchanged(job)
    other.state(round_=0)


FAULTS: tuple[tuple[str, dict[str, int]], ...] = (
    ("ETHERTYPE", {"ethertype": 0x88B4}),
    ("VERSION", {"version": 3}),
    ("RESERVED", {"reserved": 1}),
    ("ADDRESS", {"destination": MAC ^ 2}),
    ("TYPE", {"kind": FULL}),
    ("JOB", {"job": 99}),
    ("WORKERS", {"workers": 3}),
    ("SHARD", {"bitmap": 0b01}),
    ("SLOT", {"slot": 65535}),
    ("SOURCE", {"source": 0x0250_0000_FFFF}),
    ("STALE", {"round": 3}),
)
"""A fault for each check, from the top."""

BEFORE_JOBS = ("ETHERTYPE", "VERSION", "RESERVED", "ADDRESS", "TYPE", "JOB")
"""Checks before it is known which job a packet is of."""


@vector
def the_first_check_that_fails(s: Script) -> None:
    """Of two faults the one that is looked for first is counted, in whatever order they come in the frame."""
    job = _begin(s)
    good = _good(job, PARTIAL)
    for (first, one), (second, other) in combinations(FAULTS, 2):
        if "SLOT" in (first, second) and s.geometry.slots > 65535:
            continue
        sender = s if first in BEFORE_JOBS else job
        frame = good.but(**one | other)
        sender.send(frame, 1, f"also {second}").dropped(first)
    _unchanged(job)


@vector
def all_checks_fail(s: Script) -> None:
    """From the top fault after fault is mended, until nothing is wrong."""
    job = _begin(s)
    frame = _good(job, PARTIAL)
    for _, fault in FAULTS:
        frame = frame.but(**fault)
    for reason, fault in FAULTS:
        sender = s if reason in BEFORE_JOBS else job
        if reason != "SLOT" or s.geometry.slots <= 65535:
            sender.send(frame, 1).dropped(reason)
        frame = frame.but(**{name: getattr(_good(job, PARTIAL), name) for name in fault})
    job.send(frame, 1).full_to_all([8 + lane for lane in range(8)])


@vector
def a_repeated_packet_is_checked_like_the_first(s: Script) -> None:
    """What would be a duplicate is dropped for what is wrong with it."""
    job = _begin(s)
    again = job.frame(PARTIAL, 0, slot=0, round=1)
    job.send(again, 0).dropped("DUPLICATE")
    job.send(again, 1).dropped("SOURCE")
    job.send(again.but(workers=1), 0).dropped("WORKERS")
    job.send(again.but(bitmap=2), 0).dropped("SHARD")
    s.send(again.but(version=0), 0).dropped("VERSION")
    full = job.frame(PARTIAL, 0, slot=1, round=1)
    job.send(full.but(source=job.job.members[1].mac), 0, "would be told FULL").dropped("SOURCE")
    job.send(full.but(kind=ACK, round=0), 1, "would be told CLEAR").dropped("SOURCE")
    _unchanged(job)
