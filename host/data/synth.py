"""Synthetic data sets with size and sparsity of well-known ones and a hidden linear model to learn, and a table.

README.md has the sources of the numbers. How frequent a feature is, is our choice.
"""

import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.dataset import Dataset
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file

_NOISE = 0.02
"""Fraction of labels that are flipped, so that no model can be right for more than 98 %."""

_FACTORS = 8
"""Dimension of the subspace near which the samples of a dense set lie."""

_DIGITS = 6
"""Decimal places of a feature, so that text files hold it exactly."""

_BLOCK = 1 << 16
"""Samples of a categorical set that are made at once. The labels depend on it: see `CategoricalSource`."""


@dataclass(frozen=True)
class Shape:
    """Numbers of samples, features and stored (non-zero) values of a data set, and what its samples are like.

    Samples of a categorical set have the same number of stored values, one of every field; those of a text have not.
    """

    samples: int
    features: int
    stored: int
    kind: Literal["dense", "text", "categorical"]

    @property
    def density(self) -> float:
        return self.stored / (self.samples * self.features)

    @property
    def nonzeros(self) -> float:
        return self.stored / self.samples

    def scaled(self, scale: float) -> "Shape":
        """``scale`` times the samples (at least 16) and the features (at least 8).

        Dense and text sets keep their density, but texts have at least two features on average. Categorical samples
        keep their number of stored values, and get at least two features for each of them.
        """
        samples, features = max(16, round(self.samples * scale)), max(8, round(self.features * scale))
        if self.kind == "categorical":
            fields = round(self.nonzeros)
            return Shape(samples, max(features, 2 * fields), samples * fields, self.kind)
        least = 0 if self.kind == "dense" else 2 * samples
        return Shape(samples, features, max(round(self.density * samples * features), least), self.kind)

    def resized(self, samples: int | None, features: int | None, nonzeros: int | None) -> "Shape":
        """Other numbers, where given; a dense set keeps its density, others the stored values of a sample."""
        samples, features = samples or self.samples, features or self.features
        each = self.density * features if self.kind == "dense" else nonzeros or self.nonzeros
        return Shape(samples, features, round(each * samples), self.kind)


SHAPES: Mapping[str, Shape] = {
    "gisette": Shape(6_000, 5_000, 29_729_997, "dense"),
    "real-sim": Shape(72_309, 20_958, 3_709_083, "text"),
    "rcv1": Shape(20_242, 47_236, 1_498_952, "text"),
    "avazu": Shape(14_596_137, 1_000_000, 15 * 14_596_137, "categorical"),
    "criteo": Shape(45_840_617, 1_000_000, 39 * 45_840_617, "categorical"),
    "kdd12": Shape(149_639_105, 54_686_452, 11 * 149_639_105, "categorical"),
    "zipf": Shape(1_000_000, 10_000_000, 20 * 1_000_000, "categorical"),
}
"""Shapes by name. All but ``zipf``, a categorical set to choose the numbers of, are those of known data sets."""


def make_source(
    name: str,
    *,
    seed: int = 0,
    scale: float = 1.0,
    samples: int | None = None,
    features: int | None = None,
    nonzeros: int | None = None,
) -> "Dataset | CategoricalSource":
    """Make a data set of two classes, −1 and +1, of about the same size; categorical ones are made block by block.

    Text sets have a few frequent features and many rare ones, and samples of different lengths and unit norm; so have
    categorical sets, but with samples of one length. Dense sets lie near a low-dimensional subspace, within [−1, 1].
    Labels come from a hidden linear model; 2 % of them are flipped. The same arguments give the same data.

    ``name`` is one of `SHAPES`, whose numbers are multiplied by ``scale``, above 0 and at most 1 (`Shape.scaled`), or
    replaced (`Shape.resized`). Raises `UserError` if a number is out of range.
    """
    _check(scale, seed=seed, samples=samples, features=features, nonzeros=nonzeros)
    shape = SHAPES[name].scaled(scale) if scale < 1 else SHAPES[name]
    if nonzeros is not None and shape.kind == "dense":
        raise UserError(f"{name} is dense: nonzeros can be chosen for sparse shapes only")
    shape = shape.resized(samples, features, nonzeros)
    if shape.features >= 1 << 31:
        raise UserError(f"features must be less than {1 << 31:,}, not {shape.features:,}")
    if shape.kind != "dense" and 2 * shape.nonzeros > shape.features:
        raise UserError(
            f"a sample of {shape.nonzeros:.4g} non-zero values needs at least twice as many features, not "
            f"{shape.features:,}: choose more features or fewer nonzeros"
        )
    title = f"synthetic {name}" + (f" at scale {scale:g}" if scale < 1 else "")
    if shape.kind == "categorical":
        return CategoricalSource(shape, seed, title)
    rng = np.random.default_rng(seed)
    return _dense(shape, rng, title) if shape.kind == "dense" else _text(shape, rng, title)


def _check(scale: float, **numbers: int | None) -> None:
    if not 0 < scale <= 1:
        raise UserError(f"scale must be above 0 and at most 1, not {scale:g}")
    for name, number in numbers.items():
        least = {"seed": 0, "nonzeros": 1}.get(name, 2)
        if number is not None and number < least:
            raise UserError(f"{name} must be at least {least}, not {number}")


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
    margin = factors @ rng.standard_normal(_FACTORS)
    return Dataset(features, _labels(margin, np.median(margin), rng), title)


def _text(shape: Shape, rng: np.random.Generator, title: str) -> Dataset:
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
    margin = matrix @ hidden
    return Dataset(matrix, _labels(margin, np.median(margin), rng), title)


@dataclass(frozen=True)
class CategoricalSource:
    """Samples with one value of each of some fields, as of clicks on advertisements, made block by block.

    A field of n values has n features. In every sample, one feature of every field is not 0; it has the same number
    everywhere, such that samples have unit norm. Values are log-uniform, as those of TensorFlow's
    ``log_uniform_candidate_sampler``: value r of n has probability log(1 + 1 / r) / log(1 + n), in proportion to about
    1 / r, which is Zipf's law with exponent 1. The sizes of the fields fall geometrically from one to the next, down to
    a few values. The features of all fields are mixed, as by hashing.

    A label says whether the sample's margin is above the median of the first 65,536 samples. ``shape`` is categorical,
    and has at least two features for each field.
    """

    shape: Shape
    seed: int
    name: str
    sparse: ClassVar[bool] = True

    @property
    def samples(self) -> int:
        return self.shape.samples

    @property
    def feature_count(self) -> int:
        return self.shape.features

    @property
    def stored(self) -> int:
        return self.shape.stored

    @property
    def fields(self) -> int:
        """Number of fields, which is that of the stored values of a sample."""
        return self.stored // self.samples

    @property
    def value(self) -> float:
        return round(1 / math.sqrt(self.fields), _DIGITS)

    def field_sizes(self) -> npt.NDArray[np.int64]:
        """Number of features of every field, at least 2; int64 (fields,)."""
        weights = np.geomspace(self.feature_count, 2, self.fields)
        spare = self.feature_count - 2 * self.fields
        sizes: npt.NDArray[np.int64] = 2 + (spare * (weights / weights.sum())).astype(np.int64)
        sizes[0] += self.feature_count - sizes.sum()
        return sizes

    def blocks(self) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]]:
        """The samples, in blocks of 65,536; 8 bytes for each feature and less than 200 MB are in memory.

        Yields the columns of the values that are not 0, ascending in every sample, int32 (samples, fields), and labels.
        """
        features = self.feature_count
        setup, draws, flips = np.random.default_rng(self.seed).spawn(3)
        # Text files show the first and the last column only if they are not empty: here they are the most frequent
        # value of the first field and the rarest of the last one, and the first sample has both.
        order = np.arange(features, dtype=np.int32)
        setup.shuffle(order[1:-1])
        hidden = setup.standard_normal(features, dtype=np.float32)
        sizes = self.field_sizes()
        starts = np.cumsum(sizes) - sizes
        middle = None
        for first in range(0, self.samples, _BLOCK):
            uniform = draws.random((min(_BLOCK, self.samples - first), self.fields))
            place = np.exp(uniform * np.log1p(sizes))  # from 1 to size + 1
            which = starts + np.minimum(place.astype(np.int64), sizes) - 1
            if first == 0:
                which[0, 0], which[0, -1] = 0, features - 1
            # Frequent values matter most: weights of rare ones could not be learned from few samples.
            margin = (hidden[which] / np.sqrt(place)).sum(axis=1)
            middle = np.median(margin) if middle is None else middle
            yield np.sort(order[which], axis=1), _labels(margin, middle, flips)

    def dataset(self, columns: npt.NDArray[np.int32], labels: npt.NDArray[np.float64]) -> Dataset:
        """The samples of one or more blocks; see `blocks`."""
        ends = np.arange(0, columns.size + 1, self.fields, dtype=scipy.sparse.get_index_dtype(maxval=columns.size))
        parts = (np.full(columns.size, self.value), columns.reshape(-1), ends)
        return Dataset(scipy.sparse.csr_array(parts, shape=(labels.size, self.feature_count)), labels, self.name)


def _labels(margin: npt.NDArray[np.floating], middle: np.floating, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    labels = np.where(margin > middle, 1.0, -1.0)
    wrong = rng.random(labels.size) < _NOISE
    labels[wrong] *= -1
    return labels


def write_dataset(dataset: Dataset | CategoricalSource, path: Path) -> None:
    """Write a data set as LIBSVM text (.libsvm, .svm, .svmlight) or as NumPy arrays (.npz), by the extension.

    An .npz file holds ``features``, or the arrays of `scipy.sparse.save_npz`, and ``labels``. It is written atomically.
    Of a `CategoricalSource` one block is in memory, and for an .npz file 24 bytes for each sample.
    """
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".libsvm", ".svm", ".svmlight"):
        raise UserError(f"{path}: cannot write this format: name the file .libsvm or .npz")
    with new_file(path) as file:
        if suffix != ".npz":
            from sklearn.datasets import dump_svmlight_file

            for part in [dataset] if isinstance(dataset, Dataset) else starmap(dataset.dataset, dataset.blocks()):
                dump_svmlight_file(part.features, part.labels, file, zero_based=False)
        elif isinstance(dataset, CategoricalSource):
            _write_archive(dataset, file)
        elif isinstance(dataset.features, np.ndarray):
            np.savez(file, allow_pickle=False, features=dataset.features, labels=dataset.labels)
        else:
            matrix = dataset.features
            arrays = {"indptr": matrix.indptr, "indices": matrix.indices, "data": matrix.data, "labels": dataset.labels}
            np.savez(file, allow_pickle=False, **_sparse_form(matrix.shape), **arrays)


def _sparse_form(shape: tuple[int, int]) -> dict[str, npt.NDArray[np.generic]]:
    return {"format": np.array(b"csr"), "shape": np.array(shape)}


def _write_archive(source: CategoricalSource, file: BinaryIO) -> None:
    """Write what `numpy.savez` would, with indices of one block at a time; all values and lengths are the same."""
    stored, labels = source.stored, []
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("indices.npy", "w", force_zip64=True) as member:
            header = {"descr": "<i4", "fortran_order": False, "shape": (stored,)}
            np.lib.format.write_array_header_1_0(member, header)
            for columns, of_block in source.blocks():
                member.write(columns.astype("<i4", copy=False).tobytes())
                labels.append(of_block)
        arrays = _sparse_form((source.samples, source.feature_count)) | {
            "indptr": np.arange(0, stored + 1, source.fields),
            "data": np.broadcast_to(source.value, stored),
            "labels": np.concatenate(labels),
        }
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


# -- a table with texts and gaps ---------------------------------------------------------------------------------------

# Columns, numbers of passengers, and roughly the parts that are missing and that survived are those of the well-known
# table; how columns depend on each other is our choice.

TABLES = {"titanic": 1309}
"""Number of rows by name."""

_CLASSES = (323, 277, 709)
_DECKS = ("A", "B", "C", "D", "E", "F", "G")
_PORTS = ("Cherbourg", "Queenstown", "Southampton")


def make_table(name: str, *, seed: int = 0, scale: float = 1.0, samples: int | None = None) -> Any:
    """Make a table of passengers, a `pyarrow.Table` whose last column ``survived`` is the label, 0 or 1.

    The age is missing for a fifth of the passengers, the deck for most of those who are not in the first class. The
    same arguments give the same table. ``name`` is one of `TABLES`, whose number of rows is multiplied by ``scale``,
    above 0 and at most 1, or replaced by ``samples``.
    """
    import pyarrow as pa

    _check(scale, seed=seed, samples=samples)
    count = samples or max(16, round(TABLES[name] * scale))
    rng = np.random.default_rng(seed)
    pclass = 1 + rng.choice(3, count, p=np.array(_CLASSES) / sum(_CLASSES))
    female = rng.random(count) < 0.355
    age = np.clip(rng.normal(44 - 5 * pclass, 13).round(), 1, 80)
    companions = rng.poisson(0.45, (2, count))
    fare = (np.exp(rng.normal(5.2 - 0.85 * pclass, 0.45)) * (1 + 0.4 * companions.sum(axis=0))).round(4)
    deck = rng.choice(_DECKS, count, p=(0.08, 0.22, 0.32, 0.16, 0.14, 0.06, 0.02))
    port = rng.choice(_PORTS, count, p=(0.21, 0.09, 0.70))
    margin = 2.1 + 2.5 * female - 1.0 * pclass - 0.035 * (age - 30) - 0.3 * companions[0] - 0.5 * (port == _PORTS[2])
    survived = rng.random(count) < 1 / (1 + np.exp(-margin))
    no_age = rng.random(count) < 0.2
    no_deck = rng.random(count) < np.where(pclass == 1, 0.2, 0.95)
    no_port = rng.random(count) < 0.0015
    columns = {
        "pclass": pclass,
        "sex": np.where(female, "female", "male"),
        "age": pa.array(age, mask=no_age),
        "sibsp": companions[0],
        "parch": companions[1],
        "fare": fare,
        "deck": pa.array(deck, mask=no_deck),
        "embarked": pa.array(port, mask=no_port),
        "survived": survived.astype(np.int64),
    }
    return pa.table(columns)


def write_table(table: Any, path: Path) -> None:
    """Write a table as CSV or Parquet, by the extension (.csv, .parquet, .pq), whole or not at all."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet", ".pq"):
        raise UserError(f"{path}: cannot write a table in this format: name the file .csv or .parquet")
    with new_file(path) as file:
        if suffix == ".csv":
            from pyarrow import csv

            file.write((",".join(table.column_names) + "\n").encode())  # pyarrow puts headers in quotes
            csv.write_csv(table, file, csv.WriteOptions(include_header=False, quoting_style="none"))
        else:
            from pyarrow import parquet

            parquet.write_table(table, file)
