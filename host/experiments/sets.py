"""Data sets for experiments: real ones that Python packages ship, and made ones.

Some are files of statsmodels and plotnine, whose own dependencies are not needed:
``pip install --no-deps statsmodels plotnine``.
"""

import csv
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.datasets

from p4sgd.host.data import Dataset
from p4sgd.host.data.synth import make_source

FloatArray = npt.NDArray[np.float64]


class MissingPackageError(Exception):
    """The package that ships a data set is not installed."""


@dataclass(frozen=True)
class LabelledSet:
    """Samples with labels: features float64 (samples, features) or a CSR array, labels float64 (samples,), and the name
    of a loss. Classes are 0 and 1."""

    features: Any
    labels: FloatArray
    loss: str


def _shipped(name: str, label: int | None = None) -> LabelledSet:
    """A data set of scikit-learn: a regression, two classes, or one class against all others."""
    bunch = getattr(sklearn.datasets, f"load_{name}")()
    if label is None and bunch.target.max() > 1:
        return LabelledSet(bunch.data, bunch.target.astype(float), "squared")
    return LabelledSet(bunch.data, (bunch.target == (1 if label is None else label)).astype(float), "logistic")


def _parity() -> LabelledSet:
    bunch = sklearn.datasets.load_digits()
    return LabelledSet(bunch.data, (bunch.target % 2).astype(float), "logistic")


def _table(
    package: str,
    path: str,
    target: str,
    *,
    positive: str | None = None,
    above: float | None = None,
    leave: Sequence[str] = (),
) -> LabelledSet:
    """A CSV file of a package. Texts become columns of 0 and 1, and rows that lack a value are left out."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingPackageError(f"pip install --no-deps {package}")
    text = (Path(spec.origin).parent / path).read_text().replace("\t", ",").replace("'", '"')
    rows = [row for row in csv.DictReader(text.splitlines()) if not {"", "NA"} & set(row.values())]
    columns = []
    for name in rows[0]:
        if name and name != target and name not in leave:
            values = [row[name] for row in rows]
            try:
                columns.append(np.array(values, float))
            except ValueError:
                columns += [np.array([value == each for value in values], float) for each in sorted(set(values))]
    goal = np.array([row[target] == positive for row in rows] if positive else [row[target] for row in rows], float)
    if above is not None:
        goal = (goal > above).astype(float)
    loss = "squared" if positive is None and above is None else "logistic"
    return LabelledSet(np.column_stack(columns), goal, loss)


def _part(whole: LabelledSet, samples: int) -> LabelledSet:
    """Some of the samples, at random."""
    rows = np.random.default_rng(0).permutation(whole.labels.size)[:samples]
    return LabelledSet(whole.features[rows], whole.labels[rows], whole.loss)


def _diamonds(samples: int = 10_000) -> LabelledSet:
    return _part(_table("plotnine", "data/diamonds.csv", "price"), samples)


REAL: Mapping[str, Callable[[], LabelledSet]] = {
    "breast_cancer": lambda: _shipped("breast_cancer"),
    "digits:parity": _parity,
    "digits:8": lambda: _shipped("digits", 8),
    "wine:1": lambda: _shipped("wine", 1),
    "iris:1": lambda: _shipped("iris", 1),
    "diabetes": lambda: _shipped("diabetes"),
    "diamonds": _diamonds,
    "fair": lambda: _table("statsmodels", "datasets/fair/fair.csv", "affairs", above=0.0),
    "anes96": lambda: _table("statsmodels", "datasets/anes96/anes96.csv", "vote", positive="1"),
    "randhie": lambda: _part(_table("statsmodels", "datasets/randhie/randhie.csv", "mdvis", above=0.0), 10_000),
    "penguins": lambda: _table("plotnine", "data/penguins.csv", "species", positive="Adelie"),
    "mpg": lambda: _table("plotnine", "data/mpg.csv", "hwy", leave=("model", "cty")),
    "midwest": lambda: _table("plotnine", "data/midwest.csv", "percbelowpoverty", leave=("PID", "county")),
}
"""Real data sets by name."""


def _chances(z: FloatArray, rng: np.random.Generator, size: float = 3.0) -> FloatArray:
    """Classes 0 and 1 by chance, class 1 more likely for large z."""
    chances: FloatArray = 1 / (1 + np.exp(-size * (z - z.mean()) / z.std()))
    return (rng.random(z.size) < chances).astype(float)


def _autoregressive(samples: int = 5_000, features: int = 128, correlation: float = 0.95) -> LabelledSet:
    """Neighbouring columns are correlated."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(samples, features))
    for column in range(1, features):
        x[:, column] = correlation * x[:, column - 1] + np.sqrt(1 - correlation**2) * x[:, column]
    return LabelledSet(x, _chances(x @ rng.normal(size=features), rng), "logistic")


def _factors(samples: int = 5_000, features: int = 128) -> LabelledSet:
    """All columns are mixtures of 8 factors, with a mean and some noise."""
    rng = np.random.default_rng(2)
    factors = rng.normal(size=(samples, 8))
    x = factors @ rng.normal(size=(8, features)) + rng.normal(size=(samples, features)) + 3
    return LabelledSet(x, _chances(x @ rng.normal(size=features), rng), "logistic")


def _one_hot(samples: int = 5_000) -> LabelledSet:
    """Six categories of 2 to 30 values as columns of 0 and 1, some of them rare."""
    rng = np.random.default_rng(3)
    counts = (2, 3, 5, 10, 20, 30)
    x = np.hstack([np.eye(count)[rng.choice(count, samples, p=rng.dirichlet(np.ones(count)))] for count in counts])
    x = x[:, x.any(axis=0)]
    return LabelledSet(x, _chances(x @ rng.normal(size=x.shape[1]), rng), "logistic")


def _scales(samples: int = 5_000, features: int = 64) -> LabelledSet:
    """A regression on columns with standard deviations from 10⁻⁴ to 10⁴ and a mean."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(samples, features)) + 2 * rng.normal(size=features)
    z = x @ rng.normal(size=features)
    return LabelledSet(x * 10 ** rng.uniform(-4, 4, features), z + 0.5 * z.std() * rng.normal(size=samples), "squared")


def _tails(samples: int = 5_000, features: int = 64) -> LabelledSet:
    """Columns of Student's t distribution with 3 degrees of freedom."""
    rng = np.random.default_rng(5)
    x = rng.standard_t(3, size=(samples, features))
    return LabelledSet(x, _chances(x @ rng.normal(size=features), rng), "logistic")


def _classification(samples: int, features: int) -> LabelledSet:
    """Clusters of scikit-learn: a third of the columns tell classes, a fifth are mixtures of these."""
    made = {"n_informative": features // 3, "n_redundant": features // 5, "flip_y": 0.05, "random_state": 0}
    x, y = sklearn.datasets.make_classification(samples, features, **made)
    return LabelledSet(x, y.astype(float), "logistic")


def _shape(name: str, **choices: Any) -> LabelledSet:
    """A set of `p4sgd.host.data.synth`."""
    made = make_source(name, **choices)
    if not isinstance(made, Dataset):
        made = made.dataset(*map(np.concatenate, zip(*made.blocks(), strict=True)))
    features = made.features
    if isinstance(features, np.ndarray):
        features = features.astype(float)
    return LabelledSet(features, (made.labels > 0).astype(float), "logistic")


def _docstrings() -> LabelledSet:
    """Paragraphs of the docstrings of NumPy and SciPy as tf-idf, and which package they are of."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, labels = list[str](), list[float]()
    for label, package in enumerate(("numpy", "scipy")):
        found = set[str]()
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if info.name.startswith("_") or info.name in ("conftest", "f2py", "distutils", "testing"):
                continue
            module = importlib.import_module(f"{package}.{info.name}")
            for name in getattr(module, "__all__", ()):  # what else it has depends on what was imported before
                parts = (inspect.getdoc(getattr(module, name)) or "").split("\n\n")
                # Examples with random numbers and sets of names differ from process to process.
                alike = (part for part in parts if "may vary" not in part and "deprecated" not in part)
                found |= {part for part in alike if len(part.split()) >= 8}
        texts += [part.replace(package, "") for part in sorted(found)]
        labels += [float(label)] * (len(texts) - len(labels))
    return LabelledSet(TfidfVectorizer(sublinear_tf=True).fit_transform(texts), np.array(labels), "logistic")


MADE: Mapping[str, Callable[[], LabelledSet]] = {
    "autoregressive": _autoregressive,
    "factors": _factors,
    "one-hot": _one_hot,
    "scales": _scales,
    "tails": _tails,
}
"""Made data sets by name."""

LARGE: Mapping[str, Callable[[], LabelledSet]] = {
    "correlated": lambda: _autoregressive(20_000, 512),
    "factors": lambda: _factors(20_000, 256),
    "clusters": lambda: _classification(100_000, 100),
    "tall": lambda: _classification(320_000, 54),
    "one-hot": lambda: _one_hot(50_000),
    "gisette": lambda: _shape("gisette", scale=0.5),
    "digits:parity": _parity,
    "breast_cancer": REAL["breast_cancer"],
    "docstrings": _docstrings,
    "rcv1": lambda: _shape("rcv1"),
    "real-sim": lambda: _shape("real-sim"),
    "avazu": lambda: _shape("avazu", samples=100_000),
}
"""Two classes in data of many shapes, by name; `p4sgd.host.data.synth` has the last three and gisette."""

SMALL: Mapping[str, Callable[[], LabelledSet]] = {
    "breast_cancer": REAL["breast_cancer"],
    "one-hot": lambda: _one_hot(3_000),
    "rcv1": lambda: _shape("rcv1", scale=0.05),
}
"""A few quick ones."""

SPARSE = ("docstrings", "rcv1", "real-sim", "avazu")
"""Names of those of both that are sparse."""


def sets_of(quick: bool) -> Mapping[str, Callable[[], LabelledSet]]:
    """`SMALL` or `LARGE`."""
    return SMALL if quick else LARGE
