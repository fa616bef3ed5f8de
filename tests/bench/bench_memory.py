"""Rates at which simulated memories deliver lines: by latency, reads under way, planes, and with refreshes.

    PYTHONPATH=tests python tests/bench/bench_memory.py [--latency 200 300 400] [--refresh]

A rate is lines by cycles; 1 is a line a cycle, the most that an engine takes. The first table is of a long mini-batch:
what a run takes more than one of half the size, so without its beginning and its end.

With --refresh the second table follows: mini-batches of several sizes, with memories that do and do not pause to
refresh all their banks at once. Readers catch up while the sums between mini-batches are under way.

The weights of every run are compared with those of the golden model.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from support.jobs import random_job, run_on
from support.script import parser_of, show

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.spec.config import BANKS, CLOCK_NS, WorkerConfig
from p4sgd.sim.cluster.protocol import MemoryTiming

CONFIG = WorkerConfig(engines=1, ports=2, lanes=8, chunks=64, line_fifo_depth=1024, slots=32)
"""An engine with two ports, as on a U280, and short lines, which take the same cycles."""

CHUNKS = 32

MICRO_BATCHES = (64, 128)
"""Of the two runs of a rate."""

MINI_BATCHES = {64: (8, 40), 256: (2, 10), 1024: (1, 3)}
"""Mini-batches of the two runs of a loss, by their size."""


def cycles(device: RtlDevice, precision: int, stored: int, micro_batches: int, mini_batches: int = 1) -> int:
    """Cycles of a run, whose weights are checked."""
    sizes = {"chunks": CHUNKS, "micro_batches": micro_batches, "mini_batches": mini_batches}
    job = random_job(CONFIG, 1, seed=0, precision=precision, stored=stored, **sizes)
    weights, _, counters = run_on(device, job)
    if not np.array_equal(weights[0], job.golden().weights[0]):
        raise SystemExit("the weights differ from those of the golden model")
    return counters[0]["CYCLES"]


def rates(options: Any) -> None:
    """The first table."""
    rows = []
    for latency in options.latency:
        for outstanding in options.outstanding:
            device = RtlDevice(CONFIG, 1, memory=MemoryTiming(latency // CLOCK_NS, outstanding))
            row = [str(latency), str(outstanding)]
            for precision in options.precision:
                half, whole = (cycles(device, precision, options.stored, count) for count in MICRO_BATCHES)
                rate = CHUNKS * precision * (MICRO_BATCHES[1] - MICRO_BATCHES[0]) / (whole - half)
                row.append(f"{rate:.3f}")
            device.close()
            rows.append(row)
    columns = ("latency ns", "reads under way", *(f"P = {precision}" for precision in options.precision))
    show(f"lines by cycles, P of {options.stored} stored planes", columns, rows)


def losses(options: Any) -> None:
    """The second table."""
    rows = []
    timing = MemoryTiming(options.latency[0] // CLOCK_NS)
    for batch, counts in MINI_BATCHES.items():
        found = []
        for refresh in (False, True):
            device = RtlDevice(CONFIG, 1, memory=replace(timing, refresh=refresh))
            few, many = (cycles(device, options.stored, options.stored, batch // BANKS, count) for count in counts)
            device.close()
            found.append((many - few) / (counts[1] - counts[0]))
        smooth, paused = found
        lines = batch // BANKS * CHUNKS * options.stored
        rows.append([str(batch), str(lines), f"{smooth:.0f}", f"{paused:.0f}", f"{paused / smooth - 1:.1%}"])
    columns = ("B", "lines", "without refresh", "with refresh", "loss")
    show(f"cycles of a mini-batch, {CHUNKS} chunks, P = {options.stored}", columns, rows)


def main() -> None:
    """Print the tables."""
    defaults = {"precision": [1, 2, 4, 8], "latency": [200, 300, 400], "outstanding": [16, 64, 128]}
    options = parser_of(__doc__, stored=8, refresh=False, **defaults).parse_args()
    rates(options)
    if options.refresh:
        losses(options)


if __name__ == "__main__":
    main()
