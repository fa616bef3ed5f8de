"""The compiled aggregator is the readable one: the same answers, states and counters, frame by frame."""

import random

import numpy as np
import pytest
from support.aggregator_model import Aggregator
from support.batch import answers_of
from support.bench import default_seed, times

from p4sgd.hw.spec.aggregator import AggregatorConfig, counters
from p4sgd.hw.spec.job import MAX_PORTS, Job, Member
from p4sgd.hw.spec.packet import BROADCAST, MOST_MICRO_BATCHES, Packet, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS
from p4sgd.sim.network.batch import BatchAggregator

MAC = 0x0250_3453_47FF
SLOTS, PLACES = 6, 3
PORTS = (0, 1, 7, 31)
EXTREMES = (0, 1, -1, (1 << 31) - 1, -(1 << 31))


class Traffic:
    """Frames of jobs that come and go: what leads slots on, what is late or repeated, and what is broken."""

    def __init__(self, seed, most):
        self._rng = random.Random(seed)
        self._most = most
        self._model = Aggregator(SLOTS, jobs=PLACES, mac=MAC, most=most)
        self._batch = BatchAggregator(SLOTS, jobs=PLACES, mac=MAC, most=most)
        self._sent = []
        for place in range(PLACES):
            self._begin(place)

    def _begin(self, place):
        rng = self._rng
        members = tuple(
            Member(0x0250_0000_0000 | place << 8 | shard, rng.choice(PORTS))
            for shard in range(rng.choice((1, 2, 3, MAX_WORKERS)))
        )
        key = rng.choice((None, rng.getrandbits(64), 0)) if self._most else None
        job = Job(place * 16 + rng.randrange(16), members, 1 << 40 | place, rng.getrandbits(MAX_PORTS), key)
        first = rng.choice((1, 0, 65535, 40000))
        for each in (self._model, self._batch):
            each.begin(place, job, first)

    def check(self, frames):
        """Some frames, in batches of one port each."""
        rng = self._rng
        while frames > 0:
            if rng.random() < 0.015:
                self._begin(rng.randrange(PLACES))
            if rng.random() < 0.01:
                place = rng.randrange(PLACES)
                self._model.end(place)
                self._batch.end(place)
            port = rng.choice(PORTS)
            batch = [self._next(port) for _ in range(rng.choice((1, 1, 2, 9, 40)))]
            frames -= len(batch)
            answers = [self._model.receive_frame(frame, port) for frame in batch]
            expected = [(each.packet.to_bytes(), each.ports) for each in answers if each is not None]
            assert answers_of(self._batch, batch, port) == expected
            for place, job in self._model.jobs.items():
                assert self._batch.jobs[place] == job
                states = self._model.slots[place]
                assert self._batch.read_slots(place, range(SLOTS)) == [
                    [state.round, state.aggregated, state.acknowledged] for state in states
                ]
                for slot, state in enumerate(states):
                    assert self._batch.read_sums(place, slot) == (state.sums if state.aggregated else ())
            assert self._batch.counters() == self._model.counters()
        return self._model.counters()

    def _next(self, port):
        rng = self._rng
        if self._sent and rng.random() < 0.15:
            return rng.choice(self._sent)
        if not self._model.jobs:
            return rng.randbytes(rng.choice((64, 72, 1600)))
        place, job = rng.choice(sorted(self._model.jobs.items()))
        slot = rng.randrange(SLOTS)
        state = self._model.slots[place][slot]
        everyone, kind, ahead = job.everyone, PacketType.PARTIAL, 0
        if state.aggregated in (0, everyone):
            ahead = 1
            if state.aggregated == everyone != state.acknowledged:
                kind, ahead = PacketType.ACK, 0
        if rng.random() < 0.2:
            kind, ahead = rng.choice((PacketType.PARTIAL, PacketType.ACK)), rng.choice((0, 1, -1, 2, 1 << 15))
        mine = [shard for shard, member in enumerate(job.members) if member.port == port]
        known = 0 if ahead else state.acknowledged if kind is PacketType.ACK else state.aggregated
        mine = [shard for shard in mine if not known >> shard & 1 and rng.random() < 0.9] or mine
        shard = rng.choice(mine) if mine and rng.random() < 0.95 else rng.randrange(len(job.members))
        length = len(state.sums) if job.key is not None and not ahead and rng.random() < 0.9 else 8 * rng.randint(1, 4)
        values = [
            rng.choice(EXTREMES) if rng.random() < 0.2 else rng.getrandbits(32) - (1 << 31) for _ in range(length)
        ]
        fields = {"version": 1 if job.key is None else 2, "key": job.key}
        if rng.random() < 0.1 and self._most:
            fields["key"] = rng.choice((0, job.key or 0, (job.key or 0) ^ 1 << rng.randrange(64)))
            fields["version"] = 2
        if fields["key"] is None:
            values = values[:8]
        elif kind is PacketType.ACK:
            values = []
        destination = MAC
        if rng.random() < 0.08:
            kind, fields = PacketType.PROBE, {"version": rng.choice((0, 1, 2, 3, 15))}
            values, destination = [rng.getrandbits(31), *[0] * 7], rng.choice((MAC, BROADCAST))
        packet = Packet(
            kind,
            job.number,
            slot,
            (state.round + ahead) % (1 << 16),
            shard,
            len(job.members),
            1 << shard,
            tuple(values),
            destination,
            job.members[shard].mac,
            **fields,
        )
        frame = packet.to_bytes()
        self._sent = [*self._sent[-30:], frame]
        return frame if rng.random() < 0.8 else self._broken(bytearray(frame))

    def _broken(self, frame):
        rng = self._rng
        choice = rng.random()
        if choice < 0.5:
            for _ in range(rng.choice((1, 1, 2))):
                frame[rng.randrange(min(len(frame), 44))] ^= 1 << rng.randrange(8)
            return bytes(frame)
        if choice < 0.7:
            frame[14] = rng.randrange(256)
            return bytes(frame)
        if choice < 0.85:
            return bytes(frame[: rng.randrange(len(frame))])
        return bytes(frame) + rng.randbytes(rng.choice((1, 8, 32, 1450)))


@pytest.mark.parametrize("model", [Aggregator, BatchAggregator])
def test_two_jobs_of_one_number_are_refused(model):
    switch = model(SLOTS, jobs=2)
    job = Job(7, (Member(1, 0),), 1 << 40, 1)
    switch.begin(0, job)
    with pytest.raises(ValueError, match="job 7"):
        switch.begin(1, job)
    switch.begin(0, job)
    assert set(switch.counters()) | {"OVERRUNS"} >= set(counters(AggregatorConfig(slots=8, jobs=2)))


@pytest.mark.parametrize("most", [0, 3, MOST_MICRO_BATCHES])
def test_it_does_as_the_readable_one(most):
    """Every counter moves, so nothing is compared by never happening."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    counted = Traffic(seed, most).check(times(30_000))
    assert [name for name, count in counted.items() if not count] == []


def test_the_largest_frames():
    """Sums of 46 micro-batches that wrap, in the last of many slots."""
    batch = BatchAggregator(1 << 12, jobs=1, mac=MAC, most=MOST_MICRO_BATCHES)
    batch.begin(0, Job(1, (Member(1, 0), Member(2, 0)), 1 << 40, 0b1, 5))
    values = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (2, 8 * MOST_MICRO_BATCHES))
    frames = [
        Packet(
            PacketType.PARTIAL, 1, (1 << 12) - 1, 1, shard, 2, 1 << shard, tuple(row), MAC, shard + 1, 2, 5
        ).to_bytes()
        for shard, row in enumerate(values.tolist())
    ]
    ((full, ports),) = answers_of(batch, frames, 0)
    sums = (values.sum(axis=0) + (1 << 31)) % (1 << 32) - (1 << 31)
    assert Packet.from_bytes(full, MOST_MICRO_BATCHES).values == tuple(sums.tolist())
    assert (len(full), ports) == (1512, 1)


@pytest.mark.parametrize(("version", "size"), [(1, 64), (2, 104)])
def test_a_million_forged_datagrams_change_a_counter(version, size):
    """All of it is right but the key, which is any other."""
    batch = BatchAggregator(SLOTS, jobs=1, mac=MAC, most=MOST_MICRO_BATCHES)
    key = 0x0123_4567_89AB_CDEF
    batch.begin(0, Job(1, (Member(1, 0), Member(2, 0)), 1 << 40, 0b1, key))
    answers_of(batch, [Packet(PacketType.PARTIAL, 1, 0, 1, 0, 2, 1, (5,) * 16, MAC, 1, 2, key).to_bytes()], 0)
    before = batch.counters()
    state = batch.read_slots(0, range(SLOTS)), batch.read_sums(0, 0)
    right = Packet(
        PacketType.PARTIAL, 1, 0, 1, 1, 2, 2, (7,) * (8 * version), MAC, 2, version, key if version > 1 else None
    )
    rows = 10_000
    frames = np.zeros((rows, 1536), np.uint8)
    frames[:, :size] = np.frombuffer(right.to_bytes(), np.uint8)
    answers = np.zeros_like(frames), np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    rng = np.random.default_rng(default_seed())
    for _ in range(100):
        if version == 2:
            frames[:, 32:40] = rng.integers(0, 256, (rows, 8))
        assert batch.receive_batch(frames, np.full(rows, size), rows, 0, *answers) == 0
    assert (batch.read_slots(0, range(SLOTS)), batch.read_sums(0, 0)) == state
    moved = {name: count - before[name] for name, count in batch.counters().items() if count != before[name]}
    assert moved == dict.fromkeys(("FRAMES", "DROPPED_KEY", "JOB0_DROPPED"), 1_000_000)
