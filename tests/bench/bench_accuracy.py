"""How good models are: of the defaults, by scaling, and by loss, beside scikit-learn's estimators.

    PYTHONPATH=tests python tests/bench/bench_accuracy.py [defaults | scalings | losses | skewed] [--set NAME …]

- ``defaults``: test accuracy or R², in points, of ``p4sgd train`` without options, of LogisticRegression or
  LinearRegression with StandardScaler, and of SGDClassifier or SGDRegressor, without options either;
- ``scalings``: training losses of the model file, on raw features, relative to those with ``minmax``, by planes;
- ``losses``: test metrics of every loss, see `support.loss_peers`;
- ``skewed``: the defaults on columns of many distributions, linear and logarithmic effects, see `support.skewed`.

Test metrics are of a third of the samples (of losses a quarter), means over ``--splits``. Some sets need files of other
packages, see `p4sgd.host.experiments.sets`.
"""

import argparse
import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support.loss_peers import ALLOWED, CASES, compare
from support.script import CONSOLE, parser_of, show
from support.skewed import LOSSES, Compared, compare_all

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.experiments.sets import MADE, REAL, LabelledSet, MissingPackageError
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.metrics import score
from p4sgd.hw.spec.config import WorkerConfig

CONFIG = WorkerConfig.u280()
SCALINGS = ("maxabs", "standard", "robust", "auto")
WORSE = 1.02
"""A loss counts as worse from this ratio on."""


def load_sets(names: Sequence[str]) -> Iterator[tuple[str, LabelledSet]]:
    """Data sets of these names; says which are left out, as their package is missing."""
    for name in names:
        try:
            yield name, {**REAL, **MADE}[name]()
        except MissingPackageError as error:
            print(f"{name} is left out: {error}")


def trained(data: Dataset, **options: Any) -> Any:
    """The result of training on the emulator."""
    with contextlib.closing(open_device("emulator", CONFIG, 1)) as device:
        return train(data, TrainingOptions(**options), device)


def scores(made: LabelledSet, seed: int, peers: list[Any]) -> list[float]:
    """The test metric in points: of scikit-learn's estimators, and of p4sgd."""
    order = np.random.default_rng(seed).permutation(made.labels.size)
    held = made.labels.size // 3
    (x, y), (unseen, truth) = ((made.features[rows], made.labels[rows]) for rows in (order[held:], order[:held]))
    found = [make_pipeline(StandardScaler(), peer).fit(x, y).score(unseen, truth) for peer in peers]
    model = trained(Dataset(x, y, "set"), loss=made.loss).model
    found.append(score(model, Dataset(unseen, truth, "set"))["accuracy" if made.loss == "logistic" else "r2"])
    return [100 * each for each in found]


def defaults(chosen: argparse.Namespace) -> None:
    def peers(classes: bool, seed: int) -> list[Any]:
        if classes:
            return [LogisticRegression(), SGDClassifier(loss="log_loss", random_state=seed)]
        return [LinearRegression(), SGDRegressor(random_state=seed)]

    rows = []
    for name, made in load_sets(chosen.set):
        results = (scores(made, seed, peers(made.loss == "logistic", seed)) for seed in range(chosen.splits))
        exact, sgd, ours = map(statistics.mean, zip(*results, strict=True))
        title = "{}, {:,} × {:,}".format(name, *made.features.shape)
        metric = "accuracy" if made.loss == "logistic" else "R²"
        rows.append([title, metric, *(f"{value:.2f}" for value in (exact, sgd, ours, ours - exact, ours - sgd))])
    show("", ("data", "metric", "scikit-learn", "its SGD", "p4sgd", "difference", "to its SGD"), rows)


def scalings(chosen: argparse.Namespace) -> None:
    sets = dict(load_sets(chosen.set))
    for planes in chosen.planes:
        ratios: dict[str, dict[str, float]] = {scaling: {} for scaling in SCALINGS}
        for name, made in sets.items():
            data = Dataset(made.features, made.labels, "set")
            losses = {
                scaling: trained(data, loss=made.loss, epochs=5, precision=planes, scaling=scaling).metrics[
                    "train_loss"
                ]
                for scaling in ("minmax", *SCALINGS)
            }
            for scaling in SCALINGS:
                ratios[scaling][name] = losses[scaling] / losses["minmax"]
        rows = [[name, *(f"{ratios[scaling][name]:.3g}" for scaling in SCALINGS)] for name in sets]
        show(f"{planes} planes: training loss after 5 epochs relative to minmax", ("data", *SCALINGS), rows)
        for scaling, column in ratios.items():
            worse = [f"{name} {ratio:.2f}" for name, ratio in column.items() if ratio > WORSE]
            mean = math.exp(statistics.mean(map(math.log, column.values())))
            CONSOLE.print(f"{scaling}: {mean:.2f} over {len(column)} sets, worse on {', '.join(worse) or 'none'}")


def losses(chosen: argparse.Namespace) -> None:
    rows = []
    for case in CASES:
        found = compare(case, chosen.splits)
        ours = [(f"{found.ours[bits]:.5g}", f"{found.worse(case, bits):.2%}") for bits in ALLOWED]
        rows.append([case.name, f"{found.theirs:.5g}", *(cell for pair in ours for cell in pair)])
    titles = [title for bits in ALLOWED for title in (f"{bits} bits", "worse by")]
    show(f"means of {chosen.splits} splits", ("loss, data, scikit-learn's estimator", "its metric", *titles), rows)


def skewed(chosen: argparse.Namespace) -> None:
    titles = ("column, effect", "scikit-learn", "p4sgd", "worse by", "balance", "its balance")
    for loss in LOSSES:
        found = [each for seed in range(chosen.splits) for each in compare_all((loss,), seed=seed)]
        worst = sorted(found, key=lambda each: -each.ratio)
        show(f"{loss}, the worst of {len(found)}", titles, map(_skewed_row, worst[:10]))
        behind = sum(each.ratio > 1.01 for each in found)
        off = sum(abs(each.our_balance - each.their_balance) > 0.005 * each.their_balance for each in found)
        CONSOLE.print(f"{behind} more than 1 % behind, {off} sums of predictions more than 0.5 % apart")


def _skewed_row(case: Compared) -> list[str]:
    metrics = [f"{case.theirs:.4g}", f"{case.ours:.4g}", f"{case.ratio - 1:.2%}"]
    return [case.name, *metrics, f"{case.our_balance:.4f}", f"{case.their_balance:.4f}"]


if __name__ == "__main__":
    tables = {"defaults": defaults, "scalings": scalings, "losses": losses, "skewed": skewed}
    parser = parser_of(__doc__, splits=5, planes=[1, 2, 4, 8])
    parser.add_argument("table", choices=tables)
    parser.add_argument("--set", nargs="+", choices=[*REAL, *MADE])
    given = parser.parse_args()
    given.set = given.set or [*REAL, *(MADE if given.table == "scalings" else ())]
    tables[given.table](given)
