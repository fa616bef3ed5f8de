"""Sums that travel while ranks compute: bits of the golden model for every grouping, and the best times."""

import dataclasses
import random
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import collect, configure, random_job, start
from support.ranks import run_ranks

from p4sgd.host.distributed import overlap
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.distributed.planner import CostTable, Passes
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim import dense
from p4sgd.sim.emulator import EmulatedDevice, RemoteWorkers

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=16, line_fifo_depth=128)


def own_job(job, rank):
    """The worker of a rank, as the only one of a device."""
    exempt = (0, job.exempt[1]) if job.exempt is not None and job.exempt[0] == rank else None
    sparse = frozenset({0} if rank in job.sparse else ())
    more = {"stored": job.stored[rank : rank + 1], "weights": job.weights[rank : rank + 1]}
    return dataclasses.replace(job, sparse=sparse, exempt=exempt, **more)


def train(job, merge, runs):
    """For each rank: weights, flags and what its sums say about messages."""

    def run(ranks):
        own, sums = own_job(job, ranks.rank), MergedSums(ranks, merge, ahead=job.settings.stale)
        remote = RemoteWorkers(ranks.rank, ranks.size, sums.start, times=lambda: sums.times)
        device = EmulatedDevice(own.configs[0], 1, remote=remote)
        clients = configure(device.workers, own)
        clients[0].write(registers.JOB, job=0, shard=ranks.rank, workers=ranks.size)
        for number in range(runs):
            start(clients, own, first=number == 0, last=number == runs - 1)
            device.wait()
        (weights,), (status,), _ = collect(device.workers, clients, own)
        return weights, status, device.message_times

    return run_ranks(len(job.stored), run)


class Erratic:
    """A clock that shows whatever it likes, in any thread."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def perf_counter(self):
        return self._random.random()


@settings(max_examples=80)
@given(
    size=st.integers(2, 4),
    seed=st.integers(0, 1 << 30),
    merge=st.sampled_from(["auto", "auto", "1", "2", "3", "100"]),
    micro_batches=st.integers(1, 9),
    runs=st.integers(1, 2),
    sparse=st.sets(st.integers(0, 3)),
    kept=st.sampled_from([dense.KEPT_BYTES, 0]),
    stale=st.booleans(),
    wild=st.booleans(),
)
def test_bits_are_those_of_the_golden_model(size, seed, merge, micro_batches, runs, sparse, kept, stale, wild):
    """Whatever is measured, on dense and sparse workers, also if no decoded features are kept."""
    job = random_job(CONFIG, size, seed=seed, micro_batches=micro_batches, max_mini_batches=6, stale=stale, wild=wild)
    job.sparse = frozenset(sparse & set(range(size)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "_TRIALS", 1)
        patch.setattr(overlap, "_REPEATS", 1)
        patch.setattr(overlap, "_MOST_ITEMS", 4)
        patch.setattr(overlap, "_PIECE", seed % 2)
        patch.setattr(overlap, "time", Erratic(seed))
        patch.setattr(dense, "KEPT_BYTES", kept)
        trained = train(job, merge, runs)
    expected = job.golden(runs)
    for (weights, status, _), wanted, flags in zip(trained, expected.weights, expected.flags, strict=True):
        np.testing.assert_array_equal(weights, wanted)
        assert {name: bool(status[name]) for name in vars(flags)} == vars(flags)
    plans = {None if times is None else times.messages for _, _, times in trained}
    assert len(plans) == 1, "all ranks have the same plan"
    (messages,) = plans
    begun = runs * job.settings.mini_batches
    if micro_batches == 1 or begun <= 2:
        assert messages is None
    elif begun > 2 + stale:  # mini-batches that are measured and finished
        assert messages is not None
    if messages is not None:
        assert sum(messages) == micro_batches
        if merge != "auto":
            assert set(messages[:-1]) <= {int(merge)}
            assert messages[-1] <= int(merge)


class Modelled:
    """A rank whose computing and messages take the time of a model, and its clock."""

    rank, size = 0, 2

    def __init__(self, forward_s, backward_s, start_s, take_s, latency_s, cost):
        self.now = self._channel = 0.0
        self._forward_s, self._backward_s = forward_s, backward_s
        self._start_s, self._take_s, self._latency_s, self._cost = start_s, take_s, latency_s, cost
        self.done = []

    def perf_counter(self):
        return self.now

    def all_gather(self, value):
        self._channel = 0.0
        return [value, value]

    def forward(self, part):
        self.now += self._forward_s * len(part)
        self.done.append(("forward", part))
        return np.arange(8 * part.start, 8 * part.stop)

    def backward(self, part, sums):
        assert sums.tolist() == list(range(16 * part.start, 16 * part.stop, 2))
        self.now += self._backward_s * len(part) + self._take_s
        self.done.append(("backward", part))

    def start_sum(self, values, owner=None, *, interruptible=False):
        self.now += self._start_s
        self._channel = max(self._channel, self.now) + self._cost(values.size // 8)
        there = self._channel + self._latency_s

        def wait():
            self.now = max(self.now, there)
            return 2 * values

        return SimpleNamespace(wait=wait, done=lambda: self.done.append("moved on"))


@pytest.fixture
def run_batches(monkeypatch):
    """Runs mini-batches of 24 micro-batches on a rank, some more than trials need, and returns the sums; a rank has
    done what it did for the last one."""

    def run(rank, merge, more, *, ahead=False):
        monkeypatch.setattr(overlap, "time", rank)
        sums = MergedSums(rank, merge, ahead=ahead)
        finish = sums.start(24, rank.forward) if ahead else None
        for _ in range(2 * overlap._TRIALS + more):
            rank.done.clear()
            begun = sums.start(24, rank.forward)
            (finish if ahead else begun)(rank.backward)
            finish = begun
        return sums

    return run


@pytest.mark.parametrize("merge", ["auto", "5"])
@pytest.mark.parametrize(
    ("model", "cost", "ahead"),
    [
        ((10.0, 12.0, 1.0, 2.0, 0.0), (30.0, 60.0), False),
        ((10.0, 12.0, 1.0, 2.0, 50.0), (3.0, 6.0), False),
        ((1.0, 3.0, 20.0, 30.0, 0.0), (5.0, 10.0), False),
        ((10.0, 12.0, 1.0, 2.0, 0.0), (300.0, 310.0), True),  # what is computed takes longest
        ((1.0, 2.0, 1.0, 2.0, 0.0), (300.0, 900.0), True),  # the channel does
    ],
)
def test_times_are_measured_and_predicted(model, cost, ahead, merge, run_batches, monkeypatch):
    """With a clock that follows the model they are the same, and those of the best messages.

    Staleness starts a mini-batch before the one before it is finished: sums have all the time of its forward passes.
    """
    cost, count = CostTable((1, 64), cost), 24
    rank = Modelled(*model, cost)
    monkeypatch.setattr(overlap, "_PIECE_S", 1e9)
    times = run_batches(rank, merge, 40 if ahead else 3, ahead=ahead).times
    forward_s, backward_s, *alone = model
    passes = Passes((forward_s,) * count, (backward_s,) * count, (1,) * count, cost, *alone, ahead=ahead)
    lengths = passes.best() if merge == "auto" else [5, 5, 5, 5, 4]
    assert times.messages == tuple(lengths)
    assert times.predicted_s == pytest.approx(times.measured_s)
    assert times.predicted_s == pytest.approx(passes.end(lengths))
    assert times.one_message_s == pytest.approx(passes.end([count]))
    shown = [times.predicted_s, times.measured_s, *([times.one_message_s] if len(lengths) > 1 else [])]
    assert all(f"{seconds * 1e3:.2f} ms" in str(times) for seconds in shown)
    if not ahead:
        parts = [range(stop - length, stop) for stop, length in zip(accumulate(lengths), lengths, strict=True)]
        assert rank.done == [(kind, part) for kind in ("forward", "backward") for part in parts]


SLOW = 5.0, 7.0, 3.0, 1.0, 0.0, CostTable((1,), (1.0,))
"""6 micro-batches take ten times as long as what a message does."""


def test_messages_are_moved_on_between_pieces(run_batches):
    """While messages are under way, and nowhere else; a single one with staleness by forward passes of the next."""
    rank = Modelled(*SLOW)
    sums = run_batches(rank, "10", 1)
    assert sums.times.messages == (10, 10, 4)
    others = [(10, 16), "moved on", (16, 20), (20, 24)]
    order = {"forward": [(0, 6), (6, 10), *others], "backward": [(0, 6), "moved on", (6, 10), *others]}
    assert rank.done == [
        each if each == "moved on" else (kind, range(*each)) for kind, pieces in order.items() for each in pieces
    ]
    rank = Modelled(*SLOW)
    assert run_batches(rank, "24", 2, ahead=True).times.messages == (24,)
    pieces = [range(first, first + 6) for first in range(0, 24, 6)]
    forward = [each for piece in pieces for each in (("forward", piece), "moved on")][:-1]
    assert rank.done[: len(forward)] == forward
