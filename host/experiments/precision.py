"""E6: what the bits of a feature cost and gain: held-out accuracy or R² on real data, and the time of an epoch."""

import statistics
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from p4sgd.host.estimators import GLMClassifier, GLMRegressor
from p4sgd.host.experiments.convergence import board_seconds
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table, experiment
from p4sgd.host.experiments.sets import REAL, LabelledSet, MissingPackageError
from p4sgd.host.training.options import TrainingOptions

_BITS, _QUICK_BITS = (1, 2, 3, 4, 6, 8), (1, 4, 8)

_QUICK_SETS = ("breast_cancer", "diabetes")

_SPLITS = 5

_SAMPLES, _SHAPES = 10_000, ((100, 16), (1_000, 256), (10_000, 16), (10_000, 256), (100_000, 256))
"""Samples, columns and mini-batches for which times are predicted."""


def _scores(made: LabelledSet, seed: int, bits: tuple[int, ...]) -> list[float]:
    """Accuracy or R² of a third of the samples in points: with float64, and by bits."""
    order, held = np.random.default_rng(seed).permutation(made.labels.size), made.labels.size // 3
    (x, y), (unseen, truth) = ((made.features[rows], made.labels[rows]) for rows in (order[held:], order[:held]))
    classes = made.loss == "logistic"
    exact = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000) if classes else LinearRegression())
    ours = [GLMClassifier(precision=each) if classes else GLMRegressor(precision=each) for each in bits]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few bits lose much is what is to be measured
        return [100 * float(model.fit(x, y).score(unseen, truth)) for model in (exact, *ours)]


def _rows(name: str, made: LabelledSet, splits: int, bits: tuple[int, ...]) -> Iterator[list[Cell]]:
    means = map(statistics.mean, zip(*(_scores(made, seed, bits) for seed in range(splits)), strict=True))
    title = "{}, {:,} × {:,}".format(name, *made.features.shape)
    metric = "accuracy" if made.loss == "logistic" else "R²"
    exact, *ours = means
    yield [title, metric, "float64", round(exact, 2), 0.0, Source.MEASURED]
    for each, score in zip(bits, ours, strict=True):
        yield [title, metric, str(each), round(score, 2), round(score - exact, 2), Source.MEASURED]


@experiment(
    "E6", "Bits of a feature", "How much accuracy do fewer bits of a feature cost, and how much time do they save?"
)
def precision(quick: bool) -> Finding:
    """The finding of E6."""
    bits, rows, missing = _QUICK_BITS if quick else _BITS, list[list[Cell]](), list[str]()
    for name in _QUICK_SETS if quick else REAL:
        try:
            rows += _rows(name, REAL[name](), 1 if quick else _SPLITS, bits)
        except MissingPackageError as error:
            missing.append(f"{name} is left out: {error}.")
    note = "Of a third of the samples; float64 is scikit-learn's LogisticRegression or LinearRegression."
    chart = Chart("bits", "points above float64", "data")
    columns: Sequence[str] = ("data", "metric", "bits", "points", "points above float64", "source")
    quality = Table("Held-out samples by the bits of a feature", columns, rows, [chart], note)
    times: list[list[Cell]] = []
    for features, batch in _SHAPES:
        for each in bits:
            seconds = board_seconds(_SAMPLES, features, TrainingOptions(batch=batch, precision=each))
            assert seconds is not None
            times.append([f"{features:,} columns, B = {batch}", each, float(f"{1000 * seconds:.3g}"), Source.MODELLED])
    columns = ("data", "bits", "ms an epoch", "source")
    chart = Chart("bits", "ms an epoch", "data", log_y=True)
    boards = Table(f"Epoch of {_SAMPLES:,} samples on one U280", columns, times, [chart])
    losses = [
        f"{row[0]}: {row[2]} bits lose {-row[4]:.1f} points of {row[1]} against float64."
        for row in rows
        if isinstance(row[4], float) and row[4] < -0.5 and row[2] in ("4", "8")
    ]
    return Finding([quality, boards], missing, losses)
