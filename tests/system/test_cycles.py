"""Cycles of simulated RTL against the formula, and the latencies of the worker that it is made of."""

import contextlib

import numpy as np
import pytest
from support.bench import default_seed
from support.directory_cycles import listed_chunks, schedule
from support.jobs import random_job, run_on, with_directories

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.spec.config import CLOCK_NS, PRESETS, WorkerConfig
from p4sgd.hw.spec.timing import (
    CHUNK_SPACING,
    READER_LATENCY,
    TABLE_ENTRIES,
    backward_cycles,
    chaining_cycles,
    forward_cycles,
    mini_batch_cycles,
)
from p4sgd.sim import golden
from p4sgd.sim.cluster.prediction import network_cycles, predict_cycles
from p4sgd.sim.cluster.protocol import MemoryTiming

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=64, line_fifo_depth=512, slots=64)

CASES = (
    (32, 8, 8, False),
    (32, 8, 16, False),
    (32, 4, 64, False),
    (32, 1, 128, False),
    (1, 1, 8, False),
    (1, 1, 32, False),
    (2, 3, 64, False),
    (32, 4, 8, True),
    (32, 4, 16, True),
    (32, 8, 64, True),
    (1, 1, 8, True),
    (32, 1, 64, True),
    (2, 3, 256, True),
)
"""Chunks, precision, mini-batch, staleness."""

SHORT_OF_SLOTS = (
    (16, 8, 64, False),
    (4, 4, 64, False),
    (2, 3, 64, False),
    (1, 1, 32, False),
    (8, 8, 8, False),
    (16, 1, 8, False),
    (4, 4, 16, True),
    (8, 8, 64, True),
)
"""Chunks, precision, mini-batch, staleness."""

LISTED = ((32, 8, 2), (40, 4, 4), (7, 8, 8), (3, 3, 3), (1, 5, 1), (64, 1, 5), (20, 6, 2), (9, 2, 16))
"""Chunks, precision, and micro-batches of a mini-batch."""

NETWORK = 2 * 20 + Aggregator.LATENCY
"""Two cables of the simulated cluster and its aggregator; one worker, so nothing waits for another."""

STALLED = {64: (4, 20), 1024: (1, 3)}
"""Mini-batches of the two runs whose difference is measured, by their size."""

STALL_SEED = 1
"""Stalls are the same every time, so that cycles are."""


@pytest.mark.parametrize("name", PRESETS)
def test_the_way_through_the_worker_is_short(name):
    config = PRESETS[name]()
    assert READER_LATENCY + forward_cycles(config) <= 27
    assert backward_cycles() <= 10 + TABLE_ENTRIES


@pytest.mark.rtl
@pytest.mark.slow
def test_mini_batches_take_the_cycles_of_the_formula(rtl, seed):
    device = rtl(CONFIG, 1, seed=seed)
    for number, (chunks, precision, batch, stale) in enumerate(CASES):
        cycles = []
        for mini_batches in (4, 8):
            job = random_job(
                CONFIG,
                1,
                seed=seed,
                precision=precision,
                chunks=chunks,
                micro_batches=batch // 8,
                mini_batches=mini_batches,
                stale=stale,
                weighted=(seed + number) % 2 == 0,  # weights of samples cost nothing
            )
            counters = run_on(device, job)[2][0]
            cycles.append(np.array([counters[name] for name in ("CYCLES", "CYCLES_BUSY", "CYCLES_CHAINING")]))
        period, busy, chaining = (cycles[1] - cycles[0]) / 4
        expected = mini_batch_cycles(CONFIG, batch, chunks, precision, NETWORK, stale=stale)
        assert period == expected, (chunks, precision, batch, stale)
        assert busy == batch // 8 * chunks * precision
        if precision >= CHUNK_SPACING and chunks * precision >= TABLE_ENTRIES and not stale:
            # From the last deltas on, for which tables are filled before the backward pass begins.
            assert chaining == pytest.approx(TABLE_ENTRIES + chaining_cycles(precision), abs=1)


@pytest.mark.rtl
@pytest.mark.slow
def test_directories_take_the_cycles_of_the_schedule():
    """Every first and last line of engine 0, over four mini-batches of images from nearly empty to full ones."""
    seed, traces = default_seed(), []
    jobs = []
    with contextlib.closing(RtlDevice(CONFIG, 1, seed=seed, on_trace=traces.append)) as device:
        for number, (chunks, precision, micro_batches) in enumerate(LISTED):
            sizes = {"chunks": chunks, "precision": precision, "micro_batches": micro_batches, "mini_batches": 4}
            jobs.append(with_directories(random_job(CONFIG, 1, seed=seed + number, **sizes), seed + number))
            run_on(device, jobs[-1])
    stages, begun = traces[0].workers[0], 0
    for job in jobs:
        sizes, layout = job.settings, job.layout(0)
        q = golden.read_planes(job.stored[0], sizes.features.stored, sizes.features.precision)
        planned = schedule(listed_chunks(layout, q), sizes.micro_batches, sizes.chunks, CONFIG, NETWORK)
        seen = {name: stages[name][begun : begun + layout.micro_batches] for name in ("forward", "backward")}
        begun += layout.micro_batches
        first = seen["forward"][0].begin - planned.forward_begin[0, 0]
        for name, begins, ends in (
            ("forward", planned.forward_begin, planned.forward_end),
            ("backward", planned.backward_begin, planned.backward_end),
        ):
            assert [each.begin - first for each in seen[name]] == begins[0].tolist(), (name, sizes)
            assert [each.end - first - 1 for each in seen[name]] == ends[0].tolist(), (name, sizes)


@pytest.mark.rtl
@pytest.mark.slow
def test_cycles_by_cause_are_nearly_those_predicted(rtl):
    """Of two workers of the smallest configuration, which have few slots and little room for lines."""
    seed, config, workers, mini_batches = default_seed(), WorkerConfig.tiny(), 2, 4
    device = rtl(config, workers, seed=seed)
    for chunks, precision, batch, stale in SHORT_OF_SLOTS:
        sizes = {"chunks": chunks, "precision": precision, "mini_batches": mini_batches, "stale": stale}
        job = random_job(config, workers, seed=seed, micro_batches=batch // 8, **sizes)
        predicted = predict_cycles(config, batch=batch, network=network_cycles(workers), **sizes)
        for counters in run_on(device, job)[2]:
            assert counters["CYCLES_BUSY"] == predicted["CYCLES_BUSY"]
            assert counters["CYCLES_DRAIN"] == pytest.approx(predicted["CYCLES_DRAIN"], abs=2)
            waits = [each["CYCLES_NETWORK"] + each["CYCLES_CHAINING"] for each in (counters, predicted)]
            assert waits[0] == pytest.approx(waits[1], abs=20, rel=0.05), (chunks, precision, batch, stale)


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize("precision", [1, 4])
def test_few_of_many_stored_planes_come_at_the_full_rate(rtl, precision):
    """From memories that answer after 300 ns, the slowest to be expected of a U280."""
    seed, stored, chunks = default_seed(), 8, 32
    device = rtl(CONFIG, 1, memory=MemoryTiming(latency=300 // CLOCK_NS))
    cycles = []
    for micro_batches in (64, 128):
        sizes = {"chunks": chunks, "micro_batches": micro_batches, "mini_batches": 1}
        job = random_job(CONFIG, 1, seed=seed, precision=precision, stored=stored, **sizes)
        weights, _, counters = run_on(device, job)
        assert weights[0].tolist() == job.golden().weights[0].tolist()
        cycles.append(counters[0]["CYCLES"])
    assert 64 * chunks * max(precision, CHUNK_SPACING) / (cycles[1] - cycles[0]) >= 0.95


@pytest.mark.rtl
@pytest.mark.slow
def test_stalls_of_the_memory_cost_little_more_than_they_take(rtl):
    """Memory ports that pause in a tenth of all cycles, each on its own, while a line needs all of them.

    At best lines take 1 / 0.9 of their cycles. The queues of the readers hide that ports pause at different
    times, and in short mini-batches readers catch up while the sums are under way.
    """
    cycles = {}
    for stall in (0.0, 0.1):
        device = rtl(CONFIG, 1, seed=STALL_SEED, memory_stall=stall)
        for batch, counts in STALLED.items():
            found = []
            for mini_batches in counts:
                sizes = {"precision": 4, "chunks": 32, "micro_batches": batch // 8, "mini_batches": mini_batches}
                job = random_job(CONFIG, 1, seed=STALL_SEED, **sizes)
                weights, _, counters = run_on(device, job)
                assert weights[0].tolist() == job.golden().weights[0].tolist()
                found.append(counters[0]["CYCLES"])
            cycles[batch, stall] = (found[1] - found[0]) / (counts[1] - counts[0])
    for batch in STALLED:
        smooth, stalled = cycles[batch, 0.0], cycles[batch, 0.1]
        assert smooth == mini_batch_cycles(CONFIG, batch, 32, 4, NETWORK)
        assert smooth < stalled <= 1.12 * smooth
