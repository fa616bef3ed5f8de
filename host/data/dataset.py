"""Data sets: samples and labels before scaling."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import order
from p4sgd.host.data.encoding import FeatureSpace, TableEncoding
from p4sgd.host.data.matrix import Features, checked, pick_columns, to_dense
from p4sgd.host.data.sample_numbers import WEIGHT, check_numbers, counting
from p4sgd.host.data.table import Table
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.fixed import IntArray

FloatArray = npt.NDArray[np.float64]

_Value = TypeVar("_Value", bound=np.generic)


_OF_EACH = ("sample_weights", "offsets")
"""Fields with a number of each sample, if they are not ``None``."""


def _of_each(data: "Labelled", rows: npt.NDArray[np.intp]) -> dict[str, Any]:
    """`_OF_EACH` of some samples."""
    return {name: None if (values := getattr(data, name)) is None else values[rows] for name in _OF_EACH}


@dataclass(frozen=True, eq=False)
class LabelledSamples:
    """Samples without their features; see `Dataset` for the fields."""

    name: str
    labels: FloatArray
    label_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    labelled: bool = True
    sample_weights: FloatArray | None = None
    offsets: FloatArray | None = None
    offset_kind: str | None = None

    @classmethod
    def of(cls, data: "Labelled", rows: npt.NDArray[np.intp], name: str | None = None) -> Self:
        """Some samples, in the given order, optionally under another name."""
        about = data.label_names, data.target_names, data.labelled
        return cls(name or data.name, data.labels[rows], *about, **_of_each(data, rows), offset_kind=data.offset_kind)

    @classmethod
    def column(cls, data: "Labelled", place: int) -> Self:
        """All samples with one of several columns of labels."""
        labels = np.ascontiguousarray(data.labels[:, place])
        name = f"{data.name}, {data.target_names[place]}"
        about = {each: getattr(data, each) for each in ("labelled", *_OF_EACH, "offset_kind")}
        return cls(name, labels, **about)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and labels.

    Parameters
    ----------
    features
        (samples, features): float64 or float32 in any memory order, or a `scipy.sparse` matrix or array, which becomes
        a `csr_array` with sorted indices and without duplicates. Other types become float64, or if dense and of at
        most 16 bits, float32.
    labels
        float64 (samples,), or of several targets (samples, targets); zeros if there are none.
    name
        Source of the samples, for messages.
    label_names
        If the labels in the source are texts: text of label i, in alphabetical order.
    space
        What the features are; their number is counted.
    table
        If the features are still the columns of a table: what these hold.
    row_order
        Row of ``features`` of each sample, (samples,), a permutation; ``None`` if they are in order.
    sample_weights
        float64 (samples,), at least 0: how much each sample counts; ``None`` if all count the same.
    offsets
        float64 (samples,): known addends of the activations, in the unit of a number to predict, with a logarithmic
        link of its logarithm; ``None`` if ``space.offset`` is.
    communicator
        The processes (ranks) that train together: each of them has all samples.

    Raises `UserError` if there are no samples or no features, if the shapes do not match, or if a label or a weight is
    not finite, or a weight negative. Features are checked by the readers and by `p4sgd.host.data.Scaling.fit`.
    """

    features: Features
    labels: FloatArray
    name: str
    label_names: tuple[str, ...] = ()
    labelled: bool = True
    space: FeatureSpace = field(default_factory=lambda: FeatureSpace(0))
    table: Table | None = None
    remarks: tuple[str, ...] = ()
    row_order: order.Order | None = None
    sample_weights: FloatArray | None = None
    target_names: tuple[str, ...] = ()
    offsets: FloatArray | None = None
    communicator: Communicator = SINGLE_PROCESS

    def __post_init__(self) -> None:
        if self.row_order is None:  # else they are those of a data set in another order
            object.__setattr__(self, "features", checked(self.features, self.name))
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.float64))
        if self.samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        if self.feature_count == 0:
            raise UserError(f"{self.name}: the samples have no features")
        object.__setattr__(self, "space", replace(self.space, count=self.feature_count))
        shapes = {"labels": (self.labels, (self.samples, *([len(self.target_names)] if self.target_names else [])))}
        if self.sample_weights is not None:
            object.__setattr__(self, "sample_weights", np.asarray(self.sample_weights, dtype=np.float64))
            shapes["weights"] = self.sample_weights, (self.samples,)
        if self.offsets is not None:
            shapes[f"{self.offset_kind}s"] = self.offsets, (self.samples,)
        for what, (values, shape) in shapes.items():
            if values.shape != shape:
                problem = f"there are {self.samples:,} samples, but {what} of shape {values.shape}"
                raise UserError(f"{self.name}: {problem}")
        strange = np.argwhere(~np.isfinite(self.labels))
        if strange.size:
            label = self.labels[tuple(strange[0])]
            raise UserError(f"{self.name}: the label of sample {strange[0][0] + 1} is {label}: leave that sample out")
        if self.sample_weights is not None:
            check_numbers(self.sample_weights, WEIGHT, self.name)

    @property
    def samples(self) -> int:
        return int(self.features.shape[0])

    @property
    def feature_count(self) -> int:
        return int(self.features.shape[1])

    @property
    def offset_kind(self) -> str | None:
        return self.space.offset

    @property
    def stored(self) -> int:
        """Number of values that are stored: all of dense features."""
        return int(self.features.size)

    @property
    def sparse(self) -> bool:
        return not isinstance(self.features, np.ndarray)

    def parts(self) -> "Sequence[Dataset]":
        """The samples in blocks, here one; a training set larger than memory has several."""
        return (self,)

    def feature_blocks(self) -> Sequence[Features]:
        return (self.features,)

    def local_rows(self, which: slice) -> order.Order:
        """Rows of ``features`` that are samples of a block, in order."""
        return np.arange(*which.indices(self.samples)) if self.row_order is None else self.row_order[which]

    def local_features(self, which: slice, columns: IntArray | None = None) -> Features:
        """Features of the samples of a block, in order, or some of them."""
        rows: Any = which if self.row_order is None else self.row_order[which]
        if isinstance(self.features, np.ndarray) and columns is not None and not isinstance(rows, slice):
            some: Features = self.features[np.ix_(rows, columns)]  # without a copy of all columns
            return some
        return pick_columns(self.features[rows], columns)

    def rows(self, which: slice) -> FloatArray:
        """`local_features` as a dense float64 array; keep the block small."""
        return np.asarray(to_dense(self.local_features(which)), dtype=np.float64)

    def in_order(self, values: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        """Values of the samples in order, from those of the rows of ``features``."""
        return values if self.row_order is None else values[self.row_order]

    def take(self, rows: npt.NDArray[np.intp], name: str | None = None) -> Self:
        """Some of the samples, in the given order, optionally under another name."""
        places = rows if self.row_order is None else self.row_order[rows]
        return self._of_rows(rows, features=self.features[places], name=name or self.name, row_order=None)

    def counted(self) -> Self:
        """Without the samples of weight 0, which count nowhere in training; `UserError` if there are no others."""
        places = counting(self.sample_weights, self.samples, self.name)
        return self if places.size == self.samples else self.take(places)

    def reordered(self, rows: npt.NDArray[np.intp]) -> Self:
        """All samples in another order. No copy of the features is made: they are read in that order."""
        return self._of_rows(rows, row_order=rows if self.row_order is None else self.row_order[rows])

    def _of_rows(self, rows: npt.NDArray[np.intp], **changed: Any) -> Self:
        return replace(self, labels=self.labels[rows], **_of_each(self, rows), **changed)

    def encoded(self, encoding: TableEncoding) -> Self:
        """The samples with features in place of the columns of a table."""
        space = replace(self.space, names=encoding.names, encoding=encoding)
        return replace(self, features=encoding.apply(self.features, self.table), space=space, table=None)

    def held_out(self, fraction: float) -> int:
        return order.held_out(self.samples, fraction)

    def split(self, fraction: float, *, seed: int, stratified: bool) -> tuple[Self, Self]:
        rest, chosen = order.split(self.labels, fraction, seed=seed, stratified=stratified, name=self.name)
        return self.take(rest), self.take(chosen, f"held-out samples of {self.name}")


class TrainingRows(Protocol):
    """Training samples in the order of training, which can be read again and again in blocks, as those of a `Dataset`.

    `parts` are whole micro-batches, except the last, and are let go of before the next ones are read.
    `local_features` is for the first samples only.
    """

    @property
    def name(self) -> str: ...

    @property
    def samples(self) -> int: ...

    @property
    def feature_count(self) -> int: ...

    @property
    def communicator(self) -> Communicator: ...

    def parts(self) -> Iterable[Dataset]: ...

    def feature_blocks(self) -> Iterable[Features]: ...

    def local_features(self, which: slice, columns: IntArray | None = None) -> Features: ...


Labelled: TypeAlias = Dataset | LabelledSamples
"""Labelled samples, with or without their features."""


def with_features(samples: LabelledSamples, features: Features, space: FeatureSpace, **more: Any) -> Dataset:
    """The data set of samples and their ``features``; ``more`` are fields of it."""
    about = vars(samples) | more | {"space": replace(space, offset=samples.offset_kind)}
    del about["offset_kind"]
    return Dataset(features, **about)
