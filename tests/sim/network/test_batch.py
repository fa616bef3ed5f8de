"""The compiled aggregator, but for what tests/conformance asks of it."""

import zlib

import numpy as np
import pytest
from conformance.frames import with_check
from support.aggregator_model import Aggregator
from support.batch import answers_of
from support.bench import default_seed

from p4sgd.hw.spec.aggregator import AggregatorConfig, counters
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import MOST_MICRO_BATCHES, Packet, PacketType
from p4sgd.sim.network.batch import BatchAggregator
from p4sgd.sim.network.frames import crc32

MAC = 0x0250_3453_47FF
SLOTS, PLACES = 6, 3


@pytest.mark.parametrize("model", [Aggregator, BatchAggregator])
def test_two_jobs_of_one_number_are_refused(model):
    switch = model(SLOTS, jobs=2)
    job = Job(7, (Member(1, 0),), 1 << 40, 1)
    switch.begin(0, job)
    with pytest.raises(ValueError, match="job 7"):
        switch.begin(1, job)
    switch.begin(0, job)
    assert set(switch.counters()) | {"OVERRUNS"} >= set(counters(AggregatorConfig(slots=8, jobs=2)))


@pytest.mark.parametrize("most", [3, MOST_MICRO_BATCHES])
def test_the_largest_frames(most):
    """Sums of as many micro-batches as it takes, which wrap, in the last of many slots; longer frames are dropped."""
    batch = BatchAggregator(1 << 12, jobs=1, mac=MAC, most=most)
    batch.begin(0, Job(1, (Member(1, 0), Member(2, 0)), 1 << 40, 0b1, 5))
    slot = (1 << 12) - 1

    def frame(shard, values):
        where = {"job": 1, "slot": slot, "round": 1, "shard": shard, "workers": 2, "bitmap": 1 << shard}
        where |= {"destination": MAC, "source": shard + 1, "version": 2, "key": 5}
        return Packet(PacketType.PARTIAL, values=tuple(values), **where).to_bytes()

    values = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (2, 8 * most))
    first, second = (frame(shard, row) for shard, row in enumerate(values.tolist()))
    if most < MOST_MICRO_BATCHES:
        assert answers_of(batch, [frame(0, [0] * 8 * (most + 1))], 0) == []
        assert batch.counters()["DROPPED_LONG"] == 1
    assert answers_of(batch, [first], 0) == []
    ((full, ports),) = answers_of(batch, [second], 0)
    sums = tuple(((values.sum(axis=0) + (1 << 31)) % (1 << 32) - (1 << 31)).tolist())
    assert Packet.from_bytes(full, MOST_MICRO_BATCHES).values == sums
    assert (len(full), ports) == (40 + 32 * most, 1)


@pytest.mark.parametrize(("version", "size"), [(1, 64), (2, 104)])
def test_a_million_forged_datagrams_change_a_counter(version, size):
    """All of it is right but the key, which is any other; who forges it knows what the check must be."""
    batch = BatchAggregator(SLOTS, jobs=1, mac=MAC, most=MOST_MICRO_BATCHES)
    key = 0x0123_4567_89AB_CDEF
    batch.begin(0, Job(1, (Member(1, 0), Member(2, 0)), 1 << 40, 0b1, key))
    answers_of(batch, [Packet(PacketType.PARTIAL, 1, 0, 1, 0, 2, 1, (5,) * 16, MAC, 1, 2, key).to_bytes()], 0)
    before = batch.counters()
    state = batch.read_slots(0, range(SLOTS))
    right = Packet(
        PacketType.PARTIAL, 1, 0, 1, 1, 2, 2, (7,) * (8 * version), MAC, 2, version, key if version > 1 else None
    )
    rows = 10_000
    frames = np.zeros((rows, 1536), np.uint8)
    frames[:, :size] = np.frombuffer(right.to_bytes(), np.uint8)
    answers = np.zeros_like(frames), np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    rng = np.random.default_rng(default_seed())
    if version == 2:
        frames[:, 28:32] = 0
        frames[:, 32:40] = rng.integers(0, 256, (rows, 8))
        for row in frames:
            row[:size] = np.frombuffer(with_check(row[:size].tobytes()), np.uint8)
    for _ in range(100):
        assert batch.receive_batch(frames, np.full(rows, size), rows, 0, *answers) == 0
    assert batch.read_slots(0, range(SLOTS)) == state
    moved = {name: count - before[name] for name, count in batch.counters().items() if count != before[name]}
    assert moved == dict.fromkeys(("FRAMES", "DROPPED_KEY", "JOB0_DROPPED"), 1_000_000)
    second = Packet(PacketType.PARTIAL, 1, 0, 1, 1, 2, 2, (1,) * 16, MAC, 2, 2, key).to_bytes()
    ((full, _),) = answers_of(batch, [second], 0)
    assert Packet.from_bytes(full, MOST_MICRO_BATCHES).values == (6,) * 16, "the sums are as before"


def test_probes_of_strangers_are_answered_up_to_a_limit():
    """Those of members always."""
    batch = BatchAggregator(SLOTS, jobs=1, mac=MAC)
    batch.begin(0, Job(1, (Member(1, 0),), 1 << 40, 0b1))
    own, other = (Packet(PacketType.PROBE, job, 0, 0, 0, 1, 1, destination=MAC, source=1).to_bytes() for job in (1, 2))
    assert len(answers_of(batch, [other] * 9, 0)) == 9
    for _ in range(2):
        batch.limit_echoes(3)
        assert len(answers_of(batch, [other, own] * 5, 0)) == 3 + 5
    assert batch.counters()["DROPPED_JOB"] == 2 * 2


def test_the_check_is_that_of_zlib():
    rng = np.random.default_rng(default_seed())
    for size in (0, 1, 7, 8, 9, 46, 100):
        data, before = rng.integers(0, 256, size + 3, np.uint8), int(rng.integers(1 << 32))
        assert crc32(data, 3, size + 3, before) == zlib.crc32(data[3:].tobytes(), before)
