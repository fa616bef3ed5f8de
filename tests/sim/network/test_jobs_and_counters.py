"""The model of the aggregator: its places, and its counters."""

import pytest
from support.aggregator_model import Aggregator

from p4sgd.hw.spec.aggregator import AggregatorConfig, counters
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet, PacketType

GROUP = 1 << 40


def job_of(workers, number):
    return Job(number, tuple(Member(number << 8 | shard, shard) for shard in range(workers)), GROUP, (1 << workers) - 1)


def packet_of(kind, job, shard, slot=0, round_=1, values=(1,) * 8):
    return Packet(
        kind, job.number, slot, round_, shard, len(job.members), 1 << shard, values, 0, job.members[shard].mac
    )


def test_the_names_are_those_of_the_registers():
    names = set(counters(AggregatorConfig(slots=2, jobs=4)))
    assert set(Aggregator(2, jobs=4).counters()) == names - {"OVERRUNS"}


def test_every_kind_of_packet_is_counted():
    switch, job = Aggregator(2, jobs=2), job_of(2, 5)
    switch.begin(1, job)
    for kind in (PacketType.PARTIAL, PacketType.ACK):
        for shard in (0, 1, 1, 0):
            switch.receive(packet_of(kind, job, shard), shard)
    switch.receive(packet_of(PacketType.PROBE, job, 0), 0)
    switch.receive(packet_of(PacketType.PARTIAL, job, 0, slot=2), 0)
    switch.receive_frame(b"short", 0)
    found = {name: count for name, count in switch.counters().items() if count}
    assert found == {
        "FRAMES": 11,
        "PARTIALS": 2,
        "FULLS_TO_ALL": 1,
        "FULLS_TO_ONE": 2,
        "ACKS": 2,
        "CLEARS_TO_ALL": 1,
        "CLEARS_TO_ONE": 2,
        "ECHOES": 1,
        "DROPPED_SLOT": 1,
        "DROPPED_RUNT": 1,
        "JOB1_ACCEPTED": 9,
        "JOB1_DROPPED": 1,
    }


def test_sums_wrap_only_beyond_32_bits():
    switch, job = Aggregator(1), job_of(2, 0)
    switch.begin(0, job)
    switch.receive(packet_of(PacketType.PARTIAL, job, 0, values=(2**31 - 1, -(2**31), 2**31 - 1, 5, 0, 0, 0, 0)), 0)
    full = switch.receive(packet_of(PacketType.PARTIAL, job, 1, values=(1, -1, 0, -7, 0, 0, 0, 0)), 1)
    assert full.packet.values == (-(2**31), 2**31 - 1, 2**31 - 1, -2, 0, 0, 0, 0)


def test_places():
    switch = Aggregator(4, jobs=3)
    assert [len(slots) for slots in switch.slots] == [0, 0, 0]
    switch.begin(2, job_of(1, 7))
    assert [len(slots) for slots in switch.slots] == [0, 0, 4]
    with pytest.raises(ValueError, match="job 7 is being served already"):
        switch.begin(1, job_of(1, 7))
    switch.begin(2, job_of(1, 8))
    switch.begin(1, job_of(1, 7))
    assert {place: job.number for place, job in switch.jobs.items()} == {2: 8, 1: 7}
    switch.end(2)
    switch.end(2)
    assert switch.receive(packet_of(PacketType.PARTIAL, job_of(1, 8), 0), 0) is None
    assert switch.counters()["DROPPED_JOB"] == 1
    switch.begin(0, job_of(1, 8))
    assert switch.receive(packet_of(PacketType.PARTIAL, job_of(1, 8), 0), 0).packet.type is PacketType.FULL
