"""Synthetic data sets with size and density of well-known ones, and a hidden linear model to learn.

Numbers of samples, features and stored values are from the LIBSVM data page (https://www.csie.ntu.edu.tw/~cjlin/
libsvmtools/datasets/binary.html) and from the tables in G.-X. Yuan, C.-H. Ho and C.-J. Lin, "An Improved GLMNET for
L1-regularized Logistic Regression", JMLR 13 (2012).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.dataset import Dataset
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file

__all__ = ["SHAPES", "Shape", "make_dataset", "write_dataset"]

_NOISE = 0.02
"""Fraction of labels that are flipped, so that no model can be right for more than 98 %."""

_FACTORS = 8
"""Dimension of the subspace near which the samples of a dense set lie."""

_DIGITS = 6
"""Decimal places of a feature, so that text files hold it exactly."""


@dataclass(frozen=True)
class Shape:
    """Shape of a data set: numbers of samples, features and stored (non-zero) values, and whether it is dense."""

    samples: int
    features: int
    stored: int
    dense: bool

    @property
    def density(self) -> float:
        """Fraction of non-zero values."""
        return self.stored / (self.samples * self.features)

    def scaled(self, scale: float) -> "Shape":
        """The same density with ``scale`` times the samples (at least 16) and features (at least 8).

        Sparse samples keep at least two features on average.
        """
        samples, features = max(16, round(self.samples * scale)), max(8, round(self.features * scale))
        stored = round(self.density * samples * features)
        return Shape(samples, features, stored if self.dense else max(stored, 2 * samples), self.dense)


SHAPES: Mapping[str, Shape] = {
    "gisette": Shape(6_000, 5_000, 29_729_997, dense=True),
    "real-sim": Shape(72_309, 20_958, 3_709_083, dense=False),
    "rcv1": Shape(20_242, 47_236, 1_498_952, dense=False),
}
"""Shapes by name: gisette is 99.1 % dense, real-sim 0.24 %, rcv1 0.16 %."""


def make_dataset(name: str, *, seed: int = 0, scale: float = 1.0) -> Dataset:
    """Make a data set of two classes, −1 and +1, of about the same size.

    Sparse sets resemble text data: few features are frequent, most are rare, and samples have unit norm. Dense sets lie
    near a low-dimensional subspace, within [−1, 1]. Labels come from a hidden linear model; 2 % of them are flipped.
    The same name, seed and scale give the same data.

    Parameters
    ----------
    name
        One of `SHAPES`.
    seed
        Seed of all random numbers.
    scale
        Factor for the numbers of samples and of features, above 0 and at most 1.

    Raises
    ------
    UserError
        If there is no such name or the scale is out of range.
    """
    if name not in SHAPES:
        raise UserError(f"there is no shape {name!r}: choose one of {', '.join(SHAPES)}")
    if not 0 < scale <= 1:
        raise UserError(f"scale must be above 0 and at most 1, not {scale:g}")
    if seed < 0:
        raise UserError(f"seed must be at least 0, not {seed}")
    shape = SHAPES[name].scaled(scale) if scale < 1 else SHAPES[name]
    rng = np.random.default_rng(seed)
    title = f"synthetic {name}" + (f" at scale {scale:g}" if scale < 1 else "")
    return _dense(shape, rng, title) if shape.dense else _sparse(shape, rng, title)


def _dense(shape: Shape, rng: np.random.Generator, title: str) -> Dataset:
    factors = rng.standard_normal((shape.samples, _FACTORS)).astype(np.float32)
    loadings = rng.standard_normal((_FACTORS, shape.features)).astype(np.float32)
    features = factors @ loadings
    features *= np.float32(0.25 / np.sqrt(_FACTORS))
    for first in range(0, shape.samples, 256):  # in blocks, to keep the noise small
        block = features[first : first + 256]
        block += 0.15 * rng.standard_normal(block.shape, dtype=np.float32)
        np.clip(block, -1, 1, out=block)
        np.round(block, _DIGITS, out=block)
        block[block == 0] = np.float32(10.0**-_DIGITS)
    zeros = rng.choice(features.size, features.size - shape.stored, replace=False)
    features.reshape(-1)[zeros] = 0
    hidden = rng.standard_normal(_FACTORS)
    return Dataset(features, _labels(factors @ hidden, rng), title)


def _sparse(shape: Shape, rng: np.random.Generator, title: str) -> Dataset:
    frequency = 1 / (np.arange(shape.features) + 10.0) ** 0.9  # Zipf's law, flattened at the top
    frequency = rng.permutation(frequency)
    place = np.cumsum(frequency) / frequency.sum()
    length = rng.lognormal(sigma=0.6, size=shape.samples)
    ends = np.cumsum(length) / length.sum()

    def draw(count: int) -> npt.NDArray[np.int64]:
        """Random flat indices: sample · features + feature; long samples and frequent features are more likely."""
        samples = np.minimum(np.searchsorted(ends, rng.random(count)), shape.samples - 1)
        columns = np.minimum(np.searchsorted(place, rng.random(count)), shape.features - 1)
        return samples * np.int64(shape.features) + columns

    # One value in every sample, and in the first and the last column: a text file does not show empty ones.
    own = np.arange(shape.samples) * np.int64(shape.features) + draw(shape.samples) % shape.features
    always = np.unique(np.concatenate([own, [0, shape.features - 1]]))
    keys = always
    while keys.size < shape.stored:
        keys = np.unique(np.concatenate([keys, draw(2 * (shape.stored - keys.size) + 16)]))
    surplus = np.setdiff1d(keys, always, assume_unique=True)
    keys = np.sort(np.concatenate([always, rng.permutation(surplus)[: max(0, shape.stored - always.size)]]))

    rows, columns = keys // shape.features, keys % shape.features
    values = rng.gamma(2.0, size=keys.size)
    lengths = np.sqrt(np.bincount(rows, values**2, shape.samples))
    values = np.maximum(np.round(values / lengths[rows], _DIGITS), 10.0**-_DIGITS)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape.samples))])
    matrix = scipy.sparse.csr_array(
        (values, columns.astype(np.int32), indptr.astype(np.int32)), shape=(shape.samples, shape.features)
    )
    # Frequent features matter most: weights of rare ones could not be learned from few samples.
    hidden = rng.standard_normal(shape.features) * frequency**0.9
    return Dataset(matrix, _labels(matrix @ hidden, rng), title)


def _labels(margin: npt.NDArray[np.floating], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """±1 on either side of the median margin, some of them flipped."""
    labels = np.where(margin > np.median(margin), 1.0, -1.0)
    wrong = rng.random(labels.size) < _NOISE
    labels[wrong] *= -1
    return labels


def write_dataset(dataset: Dataset, path: Path) -> None:
    """Write a data set as LIBSVM text (.libsvm, .svm, .svmlight) or as NumPy arrays (.npz), by the extension.

    An .npz file holds ``features``, or the arrays of `scipy.sparse.save_npz`, and ``labels``. It is written atomically.

    Raises
    ------
    UserError
        If the extension is unknown or the file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix == ".npz":
        with new_file(path) as file:
            np.savez(file, allow_pickle=False, **_arrays(dataset))
    elif suffix in (".libsvm", ".svm", ".svmlight"):
        from sklearn.datasets import dump_svmlight_file

        with new_file(path) as file:
            dump_svmlight_file(dataset.features, dataset.labels, file, zero_based=False)
    else:
        raise UserError(f"{path}: cannot write this format: name the file .libsvm or .npz")


def _arrays(dataset: Dataset) -> dict[str, npt.NDArray[np.generic]]:
    features = dataset.features
    if isinstance(features, np.ndarray):
        return {"features": features, "labels": dataset.labels}
    return {
        "format": np.array(b"csr"),
        "shape": np.array(features.shape),
        "indptr": features.indptr,
        "indices": features.indices,
        "data": features.data,
        "labels": dataset.labels,
    }
