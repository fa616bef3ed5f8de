"""Cycles of simulated RTL against the formula, and the latencies of the worker that it is made of."""

import numpy as np
import pytest
from support.bench import default_seed
from support.jobs import random_job, run_on

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.model.model import Model
from p4sgd.hw.spec.config import PRESETS, WorkerConfig
from p4sgd.hw.worker.timing import READER_LATENCY, backward_cycles, chaining_cycles, forward_cycles, mini_batch_cycles

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=64, line_fifo_depth=512, slots=32, table_segments=64)

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
    (2, 3, 256, True),
)
"""Chunks, precision, mini-batch, staleness."""

NETWORK = 2 * 20 + 5
"""Two cables of the simulated cluster and its aggregator; one worker, so nothing waits for another."""


@pytest.mark.parametrize("name", PRESETS)
def test_the_way_through_the_worker_is_short(name):
    config = PRESETS[name]()
    assert READER_LATENCY + forward_cycles(config) <= 24
    assert backward_cycles() <= 12


@pytest.mark.rtl
@pytest.mark.slow
def test_mini_batches_take_the_cycles_of_the_formula():
    seed = default_seed()
    device = RtlDevice(CONFIG, 1, seed=seed)
    try:
        for chunks, precision, batch, stale in CASES:
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
                )
                counters = run_on(device, job)[2][0]
                cycles.append(np.array([counters[name] for name in ("CYCLES", "CYCLES_BUSY", "CYCLES_CHAINING")]))
            period, busy, chaining = (cycles[1] - cycles[0]) / 4
            expected = mini_batch_cycles(CONFIG, batch, chunks, precision, NETWORK, stale=stale)
            assert period == expected, (chunks, precision, batch, stale)
            assert busy == batch // 8 * chunks * precision
            if chunks * precision >= Model.UPDATE_SPACING and not stale:
                assert chaining == pytest.approx(chaining_cycles(precision), abs=1)
    finally:
        device.close()
