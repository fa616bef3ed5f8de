"""Test accuracy or R² of the defaults beside scikit-learn's estimators with StandardScaler, on real data sets.

    PYTHONPATH=tests python tests/bench/bench_defaults.py [--set NAME …] [--splits 5]

scikit-learn's are ``make_pipeline(StandardScaler(), LogisticRegression())`` and, for regressions, ``LinearRegression``,
both without options, and p4sgd is `train` with none, as ``p4sgd train`` would do it. Each split holds out a third of
the samples; the table has means over the splits. Some sets need files of other packages, see `support.sets`.
"""

import argparse
import statistics

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support.sets import REAL, LabelledSet, MissingPackageError

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.metrics import evaluate
from p4sgd.hw.spec.config import WorkerConfig


def scores(made: LabelledSet, seed: int) -> tuple[float, float, int]:
    """The test metric of scikit-learn and of p4sgd, in points, and p4sgd's best epoch."""
    order = np.random.default_rng(seed).permutation(made.labels.size)
    held = made.labels.size // 3
    test, rest = order[:held], order[held:]
    x, y = made.features, made.labels
    classes = made.loss == "logistic"
    peer = make_pipeline(StandardScaler(), LogisticRegression() if classes else LinearRegression())
    theirs = peer.fit(x[rest], y[rest]).score(x[test], y[test])
    config = WorkerConfig.u280()
    result = train(
        Dataset(x[rest], y[rest], "set"), TrainingOptions(loss=made.loss), open_device("emulator", config, 1)
    )
    ours = evaluate(result.model, Dataset(x[test], y[test], "set"))["accuracy" if classes else "r2"]
    return 100 * float(theirs), 100 * ours, result.best_epoch


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", choices=REAL, default=list(REAL))
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    table = Table("data", "metric")
    for title in ("scikit-learn", "p4sgd", "difference", "best epoch"):
        table.add_column(title, justify="right")
    for name in options.set:
        try:
            made = REAL[name]()
        except MissingPackageError as error:
            print(f"{name} is left out: {error}")
            continue
        theirs, ours, epochs = zip(*(scores(made, seed) for seed in range(options.splits)), strict=True)
        means = statistics.mean(theirs), statistics.mean(ours)
        metric = "accuracy" if made.loss == "logistic" else "R²"
        shape = "{:,} × {:,}".format(*made.features.shape)
        words = (f"{mean:.2f}" for mean in (*means, means[1] - means[0]))
        table.add_row(f"{name}, {shape}", metric, *words, f"{statistics.median(epochs):g}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
