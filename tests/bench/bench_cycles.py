"""Cycles of a mini-batch in simulated RTL beside the least that the architecture allows.

    python tests/bench/bench_cycles.py [--config small] [--features 1024] [--precision 8] [--batch 8 64 …]

The least is (B/8)·C·P cycles of lines plus what separates the last line of a mini-batch from the first of the next:
the way of the sums (last line in, dot products, AllReduce, loss, first backward line: L) and then one chunk's way
through gradient and update to the weights that the next line needs (K). Both follow from pairs of runs: the cycles
that more mini-batches take are those of the steady state, without the beginning and the end of a run.
"""

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.devices.session import Session
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec.config import BANKS, PRESETS, WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, RunSettings


class RandomImage:
    """An image of random bits: what the hardware computes from it takes as long as anything else."""

    signed = False

    def __init__(self, layout: ImageLayout, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.layout = layout
        self.labels = np.zeros(layout.micro_batches * BANKS, np.int32)
        self._lines = [rng.integers(0, 256, layout.lines_shape, np.uint8) for _ in range(layout.config.labels_memory)]

    def lines(self, number: int) -> np.ndarray:
        """As of `p4sgd.host.image.Image`."""
        return self._lines[number]


def settings_for(layout: ImageLayout, options: argparse.Namespace, batch: int, mini_batches: int) -> RunSettings:
    """A run of so many mini-batches."""
    return RunSettings(
        FeatureFormat(options.precision, options.precision, False),
        layout.chunks,
        batch // BANKS,
        mini_batches,
        get_loss("logistic").label_mode,
        rate_mantissa=128,
        rate_exponent=20,
        workers=options.workers,
        stale=options.stale,
    )


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=PRESETS, default="small")
    parser.add_argument("--features", type=int, default=1024, help="of each worker")
    parser.add_argument("--precision", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--stale", action="store_true")
    parser.add_argument("--memory-stall", type=float, default=0.0)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 16, 64, 256])
    options = parser.parse_args()
    config: WorkerConfig = PRESETS[options.config]()
    device = RtlDevice(config, options.workers, memory_stall=options.memory_stall)
    session = Session(device)
    table = Table(title=f"{options}")
    for column in ("B", "lines", "cycles", "beyond lines", "efficiency", "busy", "memory", "network", "chaining"):
        table.add_column(column, justify="right")
    session.load_table(get_loss("logistic").table(config.table_segments))
    for batch in options.batch:
        few, many = 2, 4
        layout = ImageLayout(config, options.features, many * batch, options.precision)
        session.upload([RandomImage(layout, worker) for worker in range(options.workers)])
        counted = []
        for mini_batches in (few, many):
            session.configure(settings_for(layout, options, batch, mini_batches))
            counted.append(session.run(ModelSource.ZERO).counters[0])
        period = {name: (counted[1][name] - counted[0][name]) / (many - few) for name in counted[0]}
        lines = batch // BANKS * layout.chunks * options.precision
        cycles = period["CYCLES"]
        causes = [period[f"CYCLES_{name}"] for name in ("BUSY", "MEMORY", "NETWORK", "CHAINING")]
        table.add_row(
            str(batch),
            str(lines),
            f"{cycles:.1f}",
            f"{cycles - lines:.1f}",
            f"{lines / cycles:.4f}",
            *(f"{value:.1f}" for value in causes),
        )
    device.close()
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
