"""Data sets that come with scikit-learn."""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import RawLabels
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.source import Rows, Source
from p4sgd.host.errors import UserError

_Labels = TypeVar("_Labels", bound=Any)

_TUMOUR = "radius,texture,perimeter,area,smoothness,compactness,concavity,concave points,symmetry,fractal dimension"
_TUMOURS = tuple(form.format(each) for form in ("mean {}", "{} error", "worst {}") for each in _TUMOUR.split(","))
_WINE = (
    "alcohol malic_acid ash alcalinity_of_ash magnesium total_phenols flavanoids nonflavanoid_phenols proanthocyanins "
    "color_intensity hue od280/od315_of_diluted_wines proline"
)


class BuiltIn(NamedTuple):
    """A data set: names of the features, and of classes that are texts, in the order of their numbers, as
    ``feature_names`` and ``target_names`` in scikit-learn; the file, if scikit-learn returns what it has, and its lines
    before the first sample; and what labels 0 and 1 mean where they are numbers, in the data and in predictions."""

    names: tuple[str, ...]
    classes: tuple[str, ...] = ()
    file: str = ""
    skipped: int = 0
    meanings: tuple[str, ...] = ()


BUILTIN = {
    "breast_cancer": BuiltIn(_TUMOURS, (), "breast_cancer.csv", 1, ("malignant", "benign")),
    "diabetes": BuiltIn(("age", "sex", "bmi", "bp", *(f"s{place}" for place in range(1, 7)))),
    "digits": BuiltIn(tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8)), (), "digits.csv.gz"),
    "iris": BuiltIn(
        tuple(f"{part} {size} (cm)" for part in ("sepal", "petal") for size in ("length", "width")),
        ("setosa", "versicolor", "virginica"),
        "iris.csv",
        1,
    ),
    "wine": BuiltIn(tuple(_WINE.split()), ("class_0", "class_1", "class_2"), "wine_data.csv", 1),
}
"""Built-in data sets by name."""


def with_meanings(labels: _Labels, data: object) -> _Labels:
    """The labels of a model, of class `LabelCoding`, with names for people if they are those of built-in ``data``."""
    known = BUILTIN.get(str(data))
    return labels if known is None or not (known.meanings and labels.classes) else replace(labels, names=known.meanings)


def is_builtin(source: str) -> bool:
    """Whether a source is the name of a built-in data set, such as ``digits`` or ``digits:3``."""
    return source.partition(":")[0] in BUILTIN


class BuiltinSource(Source):
    """A data set that comes with scikit-learn, in one block.

    With a colon and a label in its name, or the number of a class that has a name, that class becomes 1 and all others
    become 0.
    """

    size = 0

    def blocks(self, *, whole: bool = False) -> Iterator[Rows]:
        name, colon, wanted = self.name.partition(":")
        features, labels = _load(name)
        names = BUILTIN[name].classes
        if colon:
            if name == "diabetes":
                raise UserError(f"{self.name}: the labels of {name} are measurements, not classes")
            numbers = [str(label) for label in range(int(labels.max()) + 1)]
            known = names or numbers
            if wanted not in (*known, *numbers):
                raise UserError(f"{self.name}: {name} has no label {wanted!r}; there are {', '.join(known)}")
            labels = (labels == (known if wanted in known else numbers).index(wanted)).astype(float)
            names = ()
        self._names = BUILTIN[name].names
        yield Rows(features, (RawLabels(labels.astype(np.intp), names) if names else RawLabels(labels),))

    def settle(self) -> FeatureSpace:
        like = self.options.like
        if like is None:
            return FeatureSpace(len(self._names), self._names)
        if len(self._names) != like.count:
            raise UserError(f"{self.name}: there are {len(self._names)} features, {like.count} are needed")
        return FeatureSpace(like.count)  # which may have other names


def _load(name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Features (samples, features) and labels (samples,) of a data set, float64.

    Importing scikit-learn takes longer than training on its data sets, so a plain table is read from its folder. It
    loads diabetes itself, whose features it scales, and what a later version has elsewhere.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None, "scikit-learn is a dependency"
    assert package.origin is not None, "it is no namespace"
    path = Path(package.origin).parent / "datasets" / "data" / BUILTIN[name].file
    if path.is_file():
        table = np.loadtxt(path, delimiter=",", skiprows=BUILTIN[name].skipped)
        return np.ascontiguousarray(table[:, :-1]), table[:, -1]
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")()
    return bunch.data, bunch.target.astype(float)
