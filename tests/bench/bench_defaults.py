"""Test accuracy or R² of the defaults beside scikit-learn's estimators with StandardScaler, on real data sets.

    PYTHONPATH=tests python tests/bench/bench_defaults.py [--set NAME …] [--splits 5]

scikit-learn's are LogisticRegression, which has an L2 penalty by default, or LinearRegression, and SGDClassifier with
the same loss or SGDRegressor, otherwise without options; p4sgd is `train` with none, as ``p4sgd train`` would do it.
Each split holds out a third of the samples; the table has means over the splits. Some sets need files of other
packages, see `support.sets`.
"""

import argparse
import statistics

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support.sets import REAL, LabelledSet, load_sets

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.metrics import score
from p4sgd.hw.spec.config import WorkerConfig


def scores(made: LabelledSet, seed: int) -> tuple[float, float, float]:
    """The test metric of scikit-learn's estimators, the one with SGD last, and of p4sgd, in points."""
    order = np.random.default_rng(seed).permutation(made.labels.size)
    held = made.labels.size // 3
    test, rest = order[:held], order[held:]
    x, y = made.features, made.labels
    classes = made.loss == "logistic"
    if classes:
        peers = LogisticRegression(), SGDClassifier(loss="log_loss", random_state=seed)
    else:
        peers = LinearRegression(), SGDRegressor(random_state=seed)
    exact, sgd = (make_pipeline(StandardScaler(), peer).fit(x[rest], y[rest]).score(x[test], y[test]) for peer in peers)
    config = WorkerConfig.u280()
    result = train(
        Dataset(x[rest], y[rest], "set"), TrainingOptions(loss=made.loss), open_device("emulator", config, 1)
    )
    ours = score(result.model, Dataset(x[test], y[test], "set"))["accuracy" if classes else "r2"]
    return 100 * exact, 100 * sgd, 100 * ours


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", choices=REAL, default=list(REAL))
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    table = Table("data", "metric")
    for title in ("scikit-learn", "its SGD", "p4sgd", "difference", "to its SGD"):
        table.add_column(title, justify="right")
    for name, made in load_sets(options.set):
        results = zip(*(scores(made, seed) for seed in range(options.splits)), strict=True)
        exact, sgd, ours = (statistics.mean(each) for each in results)
        metric = "accuracy" if made.loss == "logistic" else "R²"
        shape = "{:,} × {:,}".format(*made.features.shape)
        words = (f"{value:.2f}" for value in (exact, sgd, ours, ours - exact, ours - sgd))
        table.add_row(f"{name}, {shape}", metric, *words)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
