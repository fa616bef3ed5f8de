"""Predicted ms an epoch on boards, for data of the shapes that the P4SGD paper (TPDS 2023) trains on.

    PYTHONPATH=tests python tests/bench/bench_epoch.py [--engines 8 16] [--boards 1 2 4 8] [--batch 16 64] [--no-fec]

Modelled, not measured: cycles of `p4sgd.hw.spec.timing`, which the simulated RTL is held to, at 250 MHz, without the
first and last ones of an epoch. The network takes `BOARDS_NETWORK` cycles, or with ``--no-fec`` those without RS-FEC;
hw/net/README.md, "How long it takes", says which of its terms are simulated and which a vendor's. In brackets: the
speed-up over one board, of as many as there are boards.
"""

from dataclasses import replace
from itertools import product

from support.script import parser_of, show

from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.run import choose_unit
from p4sgd.hw.spec.timing import BOARDS_NETWORK, NETWORK_NS, mini_batch_cycles

SHAPES = [(6_000, 5_000), (72_309, 20_958), (20_242, 47_236), (4_096, 332_710), (2_048, 1_000_000)]
"""Samples and features: gisette, real-sim, rcv1, and two wider ones."""


def epoch_ms(
    config: WorkerConfig, samples: int, features: int, boards: int, batch: int, precision: int, network: int
) -> float:
    """Time of an epoch on boards that share the units of features evenly."""
    unit = choose_unit(features + 1)
    shard = -(-(features + 1) // (boards * unit)) * unit
    chunks = ImageLayout(config, shard, samples, precision, unit).chunks
    return -(-samples // batch) * mini_batch_cycles(config, batch, chunks, precision, network) * CLOCK_NS / 1e6


def main() -> None:
    """Print a table for each number of planes."""
    parser = parser_of(
        __doc__, engines=[8, 16], boards=[1, 2, 4, 8], batch=[16, 64, 256], precision=[4, 8], no_fec=False
    )
    options = parser.parse_args()
    network = BOARDS_NETWORK - (round(NETWORK_NS["RS-FEC"][1] / CLOCK_NS) if options.no_fec else 0)
    for precision in options.precision:
        rows = []
        for (samples, features), batch, engines in product(SHAPES, options.batch, options.engines):
            config = replace(WorkerConfig.u280(), engines=engines)
            times = [epoch_ms(config, samples, features, n, batch, precision, network) for n in options.boards]
            cells = [f"{time:,.2f} ({times[0] / time:.2f})" for time in times]
            rows.append([f"{samples:,} × {features:,}", str(batch), str(engines), *cells])
        boards = [f"{n} board{'s' * (n > 1)}" for n in options.boards]
        show(
            f"ms an epoch, {precision} planes, network of {network} cycles", ["data", "batch", "engines", *boards], rows
        )


if __name__ == "__main__":
    main()
