"""Training losses with each scaling of dense data, relative to those with ``minmax``.

    PYTHONPATH=tests python tests/bench/bench_scalings.py [--set NAME …] [--planes 1 2 4 8] [--epochs 5]

All train with default options but for scaling and planes. The loss is that of the model file, on raw features without
rounding, of the best epoch. The tables have its ratio to that with ``minmax``, and the summary geometric means over the
sets. Some sets need files of other packages, see `support.sets`. All of it takes some minutes.
"""

import argparse
import math
import statistics

from rich.console import Console
from rich.table import Table
from support.sets import MADE, REAL, LabelledSet, load_sets

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import WorkerConfig

SETS = dict(REAL) | dict(MADE)

SCALINGS = ("maxabs", "standard", "robust", "auto")

WORSE = 1.02
"""A loss counts as worse from this ratio on."""


def loss_after(made: LabelledSet, epochs: int, planes: int, scaling: str) -> float:
    """The lowest training loss in so many epochs."""
    options = TrainingOptions(loss=made.loss, epochs=epochs, precision=planes, scaling=scaling)
    device = open_device("emulator", WorkerConfig.u280(), 1)
    result = train(Dataset(made.features, made.labels, "set"), options, device)
    return result.metrics["train_loss"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--planes", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--epochs", type=int, default=5)
    chosen = parser.parse_args()
    console = Console(width=120)
    ratios: dict[tuple[int, str], dict[str, float]] = {
        (planes, scaling): {} for planes in chosen.planes for scaling in SCALINGS
    }
    for name, made in load_sets(chosen.set):
        for planes in chosen.planes:
            base = loss_after(made, chosen.epochs, planes, "minmax")
            for scaling in SCALINGS:
                ratios[planes, scaling][name] = loss_after(made, chosen.epochs, planes, scaling) / base
    for planes in chosen.planes:
        title = f"{planes} planes: training loss after {chosen.epochs} epochs relative to minmax"
        table = Table("data", title=title)
        for scaling in SCALINGS:
            table.add_column(scaling, justify="right")
        for name in ratios[planes, SCALINGS[0]]:
            table.add_row(name, *(f"{ratios[planes, scaling][name]:.3g}" for scaling in SCALINGS))
        console.print(table)
    for (planes, scaling), column in ratios.items():
        worse = [f"{name} {ratio:.2f}" for name, ratio in column.items() if ratio > WORSE]
        mean = math.exp(statistics.mean(map(math.log, column.values())))
        console.print(
            f"{planes} planes, {scaling}: {mean:.2f} over {len(column)} sets, worse on {', '.join(worse) or 'none'}",
            highlight=False,
        )


if __name__ == "__main__":
    main()
