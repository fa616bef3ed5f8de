"""Test accuracy or R² by the bits of a feature, on real data sets, and predicted time of boards.

    PYTHONPATH=tests python tests/bench/bench_precision.py [--set NAME …] [--bits 1 2 3 4 6 8] [--splits 5]

Options are the defaults but for the precision. Each split holds out a third of the samples; the first table has means
over the splits, and besides those of scikit-learn's LogisticRegression or LinearRegression with StandardScaler, in
float64. Some sets need files of other packages, see `support.sets`. The second table has predicted times of an epoch on
one U280 (`p4sgd.host.report.cycles`), by the number of columns.
"""

import argparse
import contextlib
import statistics

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support.sets import REAL, LabelledSet, load_sets

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.report.cycles import epoch_cycles
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.metrics import score
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig

SETS = ("breast_cancer", "digits:parity", "digits:8", "wine:1", "diabetes", "diamonds", "fair", "penguins")
SAMPLES, COLUMNS, BATCHES = 10_000, (100, 1_000, 10_000, 100_000), (16, 256)


def scores(made: LabelledSet, bits: list[int], seed: int) -> list[float]:
    """The test metric in points, by bits, and last that of scikit-learn."""
    order = np.random.default_rng(seed).permutation(made.labels.size)
    held = made.labels.size // 3
    (x, y), (unseen, truth) = ((made.features[rows], made.labels[rows]) for rows in (order[held:], order[:held]))
    found = []
    for precision in bits:
        with contextlib.closing(open_device("emulator", WorkerConfig.u280(), 1)) as device:
            options = TrainingOptions(loss=made.loss, precision=precision)
            model = train(Dataset(x, y, "set"), options, device).model
        metrics = score(model, Dataset(unseen, truth, "set"))
        found.append(metrics["accuracy" if made.loss == "logistic" else "r2"])
    peer = LogisticRegression(max_iter=1000) if made.loss == "logistic" else LinearRegression()
    found.append(make_pipeline(StandardScaler(), peer).fit(x, y).score(unseen, truth))
    return [100 * each for each in found]


def epoch_ms(columns: int, batch: int, bits: int) -> float:
    """Predicted time of an epoch on one U280."""
    options, configs = TrainingOptions(batch=batch, precision=bits), [WorkerConfig.u280()]
    units = [shard.units.size for shard in deal_units(columns, options, configs)]
    return sum(epoch_cycles(options, configs, units, SAMPLES, columns).values()) * CLOCK_NS / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", choices=REAL, default=list(SETS))
    parser.add_argument("--bits", nargs="+", type=int, default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--splits", type=int, default=5)
    chosen = parser.parse_args()
    console, titles = Console(width=120), list(map(str, chosen.bits))
    table = Table("data", "metric", *titles, "float64")
    for name, made in load_sets(chosen.set):
        results = zip(*(scores(made, chosen.bits, seed) for seed in range(chosen.splits)), strict=True)
        metric = "accuracy" if made.loss == "logistic" else "R²"
        shape = "{:,} × {:,}".format(*made.features.shape)
        table.add_row(f"{name}, {shape}", metric, *(f"{statistics.mean(each):.1f}" for each in results))
    console.print(table)
    table = Table(f"ms an epoch of {SAMPLES:,} samples", "mini-batch", *titles)
    for columns in COLUMNS:
        for batch in BATCHES:
            times = (f"{epoch_ms(columns, batch, bits):.3g}" for bits in chosen.bits)
            table.add_row(f"{columns:,} columns", str(batch), *times)
    console.print(table)


if __name__ == "__main__":
    main()
