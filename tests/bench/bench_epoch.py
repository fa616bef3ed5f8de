"""Predicted time of an epoch on boards, from cycles that simulation confirms, for data of the paper's shapes.

    python tests/bench/bench_epoch.py [--batch 64] [--precision 8] [--network-ns 592] [--stale]

Cycles are those of `p4sgd.hw.spec.timing`, which `tests/system/test_cycles.py` holds the simulated RTL to; the clock
is 250 MHz. The network's time, from a PARTIAL that leaves the last worker to the FULL that comes back, is the longer
one of hw/net/README.md ("How long it takes"), with RS-FEC and the aggregator on an FPGA; it has not been measured. By
default all 8 planes are read, as in training; fewer shorten the lines and not the network, which --stale hides.
"""

import argparse

from rich.console import Console
from rich.table import Table

from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.run import choose_unit
from p4sgd.hw.spec.timing import mini_batch_cycles

SHAPES = {
    "gisette": (6_000, 5_000),
    "real-sim": (72_309, 20_958),
    "rcv1": (20_242, 47_236),
    "300,000 features": (100_000, 300_000),
    "1,000,000 features": (100_000, 1_000_000),
}
"""Samples and features."""

WORKERS = (1, 2, 4, 8)


def epoch_cycles(config: WorkerConfig, samples: int, chunks: int, options: argparse.Namespace) -> float:
    """Cycles of an epoch, without its beginning and end."""
    network = round(options.network_ns / CLOCK_NS)
    cycles = mini_batch_cycles(config, options.batch, chunks, options.precision, network, stale=options.stale)
    return -(-samples // options.batch) * cycles


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", type=int, default=8)
    parser.add_argument("--network-ns", type=float, default=592.0)
    parser.add_argument("--stale", action="store_true")
    options = parser.parse_args()
    config = WorkerConfig.u280_deep()
    table = Table(title=f"ms an epoch (scaling efficiency), u280_deep: {vars(options)}")
    table.add_column("data")
    for workers in WORKERS:
        table.add_column(f"W = {workers}", justify="right")
    for name, (samples, features) in SHAPES.items():
        cells, unit = [], choose_unit(features + 1)
        single = 0.0
        for workers in WORKERS:
            shard = -(-(features + 1) // (workers * unit)) * unit
            chunks = ImageLayout(config, shard, samples, options.precision, unit).chunks
            cycles = epoch_cycles(config, samples, chunks, options)
            single = single or cycles
            cells.append(f"{cycles * CLOCK_NS / 1e6:,.2f} ({single / (workers * cycles):.3f})")
        table.add_row(name, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
