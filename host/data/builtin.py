"""Data sets that come with scikit-learn."""

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import RawLabels
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.source import Rows, Source
from p4sgd.host.distributed.communicator import share_of
from p4sgd.host.errors import UserError

_Labels = TypeVar("_Labels", bound=Any)

BUILTIN = {
    "breast_cancer": "569 tumours, 30 features: malignant (0) or benign (1)",
    "diabetes": "442 patients, 10 features: progression of the disease after a year, a regression",
    "digits": "1797 images of handwritten digits, 64 features, labels 0 to 9; digits:3 is digit 3 against the rest",
    "iris": "150 flowers, 4 features, labels setosa, versicolor, virginica; iris:setosa is that one against the rest",
    "wine": "178 wines, 13 features, labels class_0 to class_2; wine:class_0 is that one against the rest",
}
"""Built-in data sets by name, with descriptions."""

_TABLES = {
    "breast_cancer": ("breast_cancer.csv", 1),
    "digits": ("digits.csv.gz", 0),
    "iris": ("iris.csv", 1),
    "wine": ("wine_data.csv", 1),
}
"""Those that scikit-learn returns as its files have them: name of the file, and lines before the first sample."""

_CLASSES = {"iris": ("setosa", "versicolor", "virginica"), "wine": ("class_0", "class_1", "class_2")}
"""Names of classes that are texts, in the order of their numbers: ``target_names`` in scikit-learn."""


_TUMOUR = "radius,texture,perimeter,area,smoothness,compactness,concavity,concave points,symmetry,fractal dimension"

_WINE = (
    "alcohol malic_acid ash alcalinity_of_ash magnesium total_phenols flavanoids nonflavanoid_phenols proanthocyanins "
    "color_intensity hue od280/od315_of_diluted_wines proline"
)

_NAMES = {
    "breast_cancer": tuple(
        form.format(each) for form in ("mean {}", "{} error", "worst {}") for each in _TUMOUR.split(",")
    ),
    "diabetes": ("age", "sex", "bmi", "bp", *(f"s{place}" for place in range(1, 7))),
    "digits": tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8)),
    "iris": ("sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"),
    "wine": tuple(_WINE.split()),
}
"""Names of the features: ``feature_names`` in scikit-learn."""


_MEANINGS = {"breast_cancer": ("malignant", "benign")}
"""What labels 0 and 1 mean where they are numbers, in the data and in predictions."""


def with_meanings(labels: _Labels, data: object) -> _Labels:
    """The labels of a model, of class `LabelCoding`, with names for people if they are those of built-in ``data``."""
    names = _MEANINGS.get(str(data))
    return labels if names is None or not labels.classes else dataclasses.replace(labels, names=names)


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
        names = _CLASSES.get(name, ())
        if colon:
            if name == "diabetes":
                raise UserError(f"{self.name}: the labels of {name} are measurements, not classes")
            numbers = [str(label) for label in range(int(labels.max()) + 1)]
            known = names or numbers
            if wanted not in (*known, *numbers):
                raise UserError(f"{self.name}: {name} has no label {wanted!r}; there are {', '.join(known)}")
            labels = (labels == (known if wanted in known else numbers).index(wanted)).astype(float)
            names = ()
        share = share_of(self.ranks, labels.size)
        own, self._names = slice(share.start, share.stop), _NAMES[name]
        yield Rows(features[own], (RawLabels(labels[own].astype(np.intp), names) if names else RawLabels(labels[own]),))

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
    file, header = _TABLES.get(name, ("", 0))
    path = Path(package.origin).parent / "datasets" / "data" / file
    if path.is_file():
        table = np.loadtxt(path, delimiter=",", skiprows=header)
        return np.ascontiguousarray(table[:, :-1]), table[:, -1]
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")()
    return bunch.data, bunch.target.astype(float)
