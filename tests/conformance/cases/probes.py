"""PROBE and ECHO: in each state of a slot, with each verdict, of any version; they change nothing."""

from itertools import combinations

from conformance.frames import BROADCAST, PROBE
from conformance.script import MAC, Script, vector, vector_for


@vector
def a_slot_from_fresh_to_over(s: Script) -> None:
    """ECHO shows the slot's round and bitmaps; between any two packets a probe makes no difference."""
    job = s.begin(2, first_round=100)
    job.probe(0).echo(round_=99)
    job.probe(1).echo(round_=99)
    job.partial(1, 100, 1).added()
    job.probe(0).echo(round_=100, aggregated=0b10)
    job.probe(1).echo(round_=100, aggregated=0b10)
    job.partial(0, 100, 10).full_to_all(11)
    job.probe(0).echo(round_=100, aggregated=0b11)
    job.ack(0, 100).noted()
    job.probe(1).echo(round_=100, aggregated=0b11, acknowledged=0b01)
    job.probe(0).echo(round_=100, aggregated=0b11, acknowledged=0b01)
    job.ack(1, 100).clear_to_all()
    job.probe(0).echo(round_=100, aggregated=0b11, acknowledged=0b11)
    job.partial(0, 101, 5).added()
    job.probe(1).echo(round_=101, aggregated=0b01)


@vector
def a_probe_of_each_slot(s: Script) -> None:
    """It is about the slot that it names."""
    job = s.begin(2)
    last = s.geometry.slots - 1
    job.partial(0, 1, 1, slot=last).added()
    job.complete(1, slot=1)
    job.probe(0, slot=last).echo(round_=1, aggregated=0b01)
    job.probe(0, slot=1).echo(round_=1, aggregated=0b11)
    job.probe(0, slot=0).echo(round_=0)


@vector
def a_probe_may_go_to_everybody(s: Script) -> None:
    """Broadcast too; the answer goes to the sender, from the aggregator's own address."""
    job = s.begin(3)
    job.partial(0, 1, 1).added()
    for shard in range(3):
        job.probe(shard, destination=BROADCAST).echo(round_=1, aggregated=0b001)


@vector
def a_probe_to_somebody_else(s: Script) -> None:
    """To another address, of a group too, it is dropped; so it is without a job."""
    job = s.begin(2)
    for destination in (0, MAC ^ 1, job.job.group_mac, BROADCAST ^ 1, BROADCAST >> 1):
        s.send(job.frame(PROBE, 0, destination=destination), 0).dropped("ADDRESS")
    s.end()
    s.send(job.frame(PROBE, 0, destination=MAC ^ 1), 0).dropped("ADDRESS")


@vector
def a_probe_of_any_version(s: Script) -> None:
    """ECHO has the highest version that the aggregator speaks, but none above the probe's."""
    job = s.begin(2)
    for version in range(16):
        job.probe(1, version=version).echo(round_=0)
        job.probe(1, version=version, destination=BROADCAST).echo(round_=0)
        s.send(job.frame(PROBE, 1, version=version, reserved=1 << version), 1).dropped("RESERVED")
        s.send(job.frame(PROBE, 1, version=version, ethertype=0x0800), 1).dropped("ETHERTYPE")


@vector_for({"number": 0}, {"number": 1}, {"number": 0x7FFF_FFFF}, {"number": 0x8000_0000}, {"number": 0xFFFF_FFFF})
def the_number_comes_back(s: Script, number: int) -> None:
    """Value 0 is of the sender's choice; its other values and its round mean nothing."""
    job = s.begin(2)
    job.partial(0, 1, 1).added()
    job.probe(0, number=number).echo(round_=1, aggregated=0b01)
    packet = job.frame(PROBE, 0, round=777, values=(number, 1, 2, 3, 4, 5, 6, 0xFFFF_FFFF))
    job.send(packet, 0).echo(round_=1, aggregated=0b01)


@vector
def without_a_job(s: Script) -> None:
    """A number that is not served: nothing else is checked, and nothing is known of workers and slot."""
    job = s.begin(2)
    s.end()
    probe = job.frame(PROBE, 1, values=(5, *[0] * 7))
    s.send(probe, 1).echo("JOB")
    s.send(probe.but(slot=65535, workers=99, shard=200, bitmap=0, source=1), 3).echo("JOB")


@vector
def of_another_job(s: Script) -> None:
    """There are jobs, but none of this number."""
    job = s.begin(2)
    job.partial(0, 1, 1).added()
    s.send(job.frame(PROBE, 0, job=8), 0).echo("JOB")
    s.send(job.frame(PROBE, 0, job=6, slot=65535), 2).echo("JOB")
    s.end()
    s.send(job.frame(PROBE, 0), 0, "its job has ended").echo("JOB")


@vector
def of_another_number_of_workers(s: Script) -> None:
    """ECHO says how many the job has."""
    job = s.begin(2)
    job.partial(0, 1, 1).added()
    for workers in (0, 1, 3, 255):
        job.probe(0, workers=workers).echo("WORKERS", round_=1, aggregated=0b01)


@vector
def of_another_shard(s: Script) -> None:
    """Without a right shard there is no address that it should have, and no source is checked."""
    job = s.begin(2)
    job.partial(0, 1, 1).added()
    for shard in (2, 31, 32, 33, 255):
        packet = job.frame(PROBE, 0).but(shard=shard, bitmap=1 << shard % 32)
        job.send(packet, 0).echo("SHARD", round_=1, aggregated=0b01, mac=0)
    for bitmap in (0, 0b10, 0b11, 0x8000_0001):
        job.probe(0, bitmap=bitmap).echo("SHARD", round_=1, aggregated=0b01, mac=0)
    job.probe(0, bitmap=0, source=1, port=2).echo("SHARD", round_=1, aggregated=0b01, mac=0)


@vector
def of_another_slot(s: Script) -> None:
    """There is no state to show."""
    job = s.begin(2)
    for slot in (0, 1):
        job.complete(1, slot=slot)
    for slot in sorted({s.geometry.slots, s.geometry.slots + 1, 32768, 65535}):
        if s.geometry.slots <= slot < 1 << 16:
            job.probe(1, slot=slot).echo("SLOT")


@vector
def from_another_source(s: Script) -> None:
    """From another address or port: ECHO goes back there, and says the address that the shard should have."""
    job = s.begin(3, ports=[0, 1, 2])
    job.partial(0, 1, 1).added()
    job.probe(1, source=0x0250_0000_9999).echo("SOURCE", round_=1, aggregated=0b001)
    job.probe(1, source=job.job.members[0].mac).echo("SOURCE", round_=1, aggregated=0b001)
    for port in (0, 2, 3):
        job.probe(1, port=port).echo("SOURCE", round_=1, aggregated=0b001)
    job.probe(1, port=1).echo(round_=1, aggregated=0b001)


_WRONG = {
    "WORKERS": {"workers": 9},
    "SHARD": {"bitmap": 0b100},
    "SLOT": {"slot": 65535},
    "SOURCE": {"source": 0x0250_0000_9999},
}


STATES = ("fresh", "one partial", "complete", "one ack", "over")


@vector_for(*({"state": state} for state in STATES))
def every_verdict(s: Script, state: str) -> None:
    """All that is wrong is told at once, but no source without a right shard, in each state of the slot."""
    if s.geometry.slots > 65535:
        return
    job = s.begin(2)
    seen = {"round_": 0}
    if state == "one partial":
        job.partial(0, 1, 1).added()
        seen = {"round_": 1, "aggregated": 0b01}
    elif state != "fresh":
        job.complete(1)
        seen = {"round_": 1, "aggregated": 0b11}
    if state == "one ack":
        job.ack(1, 1).noted()
        seen["acknowledged"] = 0b10
    elif state == "over":
        job.finish(1)
        seen["acknowledged"] = 0b11
    for count in range(len(_WRONG) + 1):
        for names in combinations(_WRONG, count):
            wrong: dict[str, int] = {}
            for name in names:
                wrong |= _WRONG[name]
            told = [name for name in names if name != "SOURCE" or "SHARD" not in names]
            shown = {} if "SLOT" in names else seen
            known = {"mac": 0} if "SHARD" in names else {}
            job.probe(1, **wrong).echo(*told, **shown, **known)
    job.state(**seen)


@vector
def jobs_are_told_apart(s: Script) -> None:
    """Each probe is of the job of its number: workers, address and slot are its own."""
    one = s.begin(2, place=0, number=7)
    two = s.begin(3, place=1, number=8, first_round=50)
    one.partial(0, 1, 1).added()
    two.partial(2, 50, 1).added()
    one.probe(0).echo(round_=1, aggregated=0b01)
    two.probe(0).echo(round_=50, aggregated=0b100)
    two.probe(2).echo(round_=50, aggregated=0b100)
    two.send(one.frame(PROBE, 1, job=8, workers=3), 1).echo("SOURCE", round_=50, aggregated=0b100)


@vector
def shard_31(s: Script) -> None:
    """Bitmaps have 32 bits."""
    job = s.begin(32)
    job.partial(31, 1, 1).added()
    job.probe(31).echo(round_=1, aggregated=1 << 31)
    for shard in range(31):
        if shard:
            job.partial(shard, 1, 1).added()
    job.probe(0).echo(round_=1, aggregated=0xFFFF_FFFE)
    job.partial(0, 1, 1).full_to_all(32)
    job.probe(0).echo(round_=1, aggregated=0xFFFF_FFFF)
    job.finish(1)
    job.probe(31).echo(round_=1, aggregated=0xFFFF_FFFF, acknowledged=0xFFFF_FFFF)
