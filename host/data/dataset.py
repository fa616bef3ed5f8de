"""Data sets: samples and labels before scaling, in one process or distributed over several."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data import order
from p4sgd.host.data.sample_weights import check_weights
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.fixed import ByteArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from p4sgd.host.data.encoding import TableEncoding
    from p4sgd.host.data.table import Table

__all__ = [
    "Dataset",
    "DistributedDataset",
    "FeatureSpace",
    "Features",
    "Labelled",
    "check_labels",
    "find_not_finite",
    "join_shares",
]


Features: TypeAlias = "npt.NDArray[np.float64] | npt.NDArray[np.float32] | csr_array"
"""A matrix (samples, features): dense, or sparse in CSR form, which is never made dense as a whole."""

_Value = TypeVar("_Value", bound=np.generic)

_BLOCK_VALUES = 1 << 18
"""Values that are checked at once (2 MB of float64, which stay in the processor's cache)."""


@dataclass(frozen=True)
class FeatureSpace:
    """The features of samples, to read other samples with the same features.

    Parameters
    ----------
    count
        Number of features.
    names
        Their names, if the source has any.
    zero_based
        Whether indices in a LIBSVM source begin at 0; ``None`` if that is not known.
    hash_bits
        If names or indices are hashed: ``count`` is 2^hash_bits, and the reader of the format says which column a
        feature belongs to.
    encoding
        If the source is a table with texts or gaps: how features are made of its columns.
    label_column
        Number of the label column that was chosen, from 1 or backwards from −1, if the columns have no names to find it
        by; ``None`` if it is the last one, or is not known.
    """

    count: int
    names: tuple[str, ...] = ()
    zero_based: bool | None = None
    hash_bits: int | None = None
    encoding: "TableEncoding | None" = None
    label_column: int | None = field(default=None, compare=False)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Headers of the columns that the features are made of, if the source has any."""
        return self.names if self.encoding is None else self.encoding.table.names

    @property
    def column_count(self) -> int:
        """Number of these columns."""
        return self.count if self.encoding is None else len(self.encoding.columns)

    def name(self, column: int) -> str:
        """What a feature is called, by its place from 0: its name in the source, or its number there."""
        if self.names:
            return self.names[column]
        if self.hash_bits is not None:
            return f"column {column}"
        return f"feature {column if self.zero_based else column + 1}"


class Labelled(Protocol):
    """Labelled samples: a `Dataset`, or only the labels of one."""

    @property
    def name(self) -> str:
        """Source of the labels, for messages."""
        ...

    @property
    def labels(self) -> npt.NDArray[np.float64]:
        """float64 (samples,), or of several targets (samples, targets); zeros if there are none."""
        ...

    @property
    def label_names(self) -> tuple[str, ...]:
        """If the labels are texts: text of label i, in alphabetical order; otherwise empty."""
        ...

    @property
    def target_names(self) -> tuple[str, ...]:
        """If the labels are (samples, targets), the names of the targets; otherwise empty."""
        ...

    @property
    def labelled(self) -> bool:
        """Whether there are labels."""
        ...

    @property
    def sample_weights(self) -> npt.NDArray[np.float64] | None:
        """float64 (samples,), how much each sample counts; ``None`` if all count the same."""
        ...


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
    labelled
        Whether there are labels.
    feature_names, zero_based, hash_bits, encoding, label_column
        See `FeatureSpace`.
    table
        If the features are still the columns of a table: what these hold. `p4sgd.host.data.encoding.encode` makes
        features of them.
    remarks
        What the user should know about the source.
    row_order
        Row of ``features`` of each sample, (samples,), a permutation; ``None`` if they are in order.
    sample_weights
        float64 (samples,), at least 0: how much each sample counts; ``None`` if all count the same.
    target_names
        Names of several targets.

    Raises
    ------
    UserError
        If there are no samples or no features, if the shapes do not match, or if a label or a weight is not
        finite, or a weight negative. Features are checked by the readers and by `p4sgd.host.data.Scaling.fit`.
    """

    features: Features
    labels: npt.NDArray[np.float64]
    name: str
    label_names: tuple[str, ...] = ()
    labelled: bool = True
    feature_names: tuple[str, ...] = ()
    zero_based: bool | None = None
    hash_bits: int | None = None
    encoding: "TableEncoding | None" = None
    table: "Table | None" = None
    remarks: tuple[str, ...] = ()
    row_order: order.Order | None = None
    sample_weights: npt.NDArray[np.float64] | None = None
    target_names: tuple[str, ...] = ()
    label_column: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", _normal(self.features, self.name))
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.float64))
        self._check_shapes()
        check_labels(self.labels, self.name)
        if self.sample_weights is not None:
            object.__setattr__(self, "sample_weights", np.asarray(self.sample_weights, dtype=np.float64))
            if self.sample_weights.shape != self.labels.shape[:1]:
                shape = self.sample_weights.shape
                raise UserError(f"{self.name}: there are {self.samples:,} samples, but weights of shape {shape}")
            check_weights(self.sample_weights, self.name)

    def _check_shapes(self) -> None:
        samples, features = self.features.shape
        if samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        if features == 0:
            raise UserError(f"{self.name}: the samples have no features")
        if self.labels.shape != (samples, *([len(self.target_names)] if self.target_names else [])):
            raise UserError(f"{self.name}: there are {samples:,} samples, but labels of shape {self.labels.shape}")

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.labels)

    @property
    def feature_count(self) -> int:
        """Number of features of a sample."""
        return int(self.features.shape[1])

    @property
    def space(self) -> FeatureSpace:
        """The features of the samples."""
        known = self.feature_names, self.zero_based, self.hash_bits, self.encoding, self.label_column
        return FeatureSpace(self.feature_count, *known)

    @property
    def stored(self) -> int:
        """Number of values that are stored: all of dense features."""
        return int(self.features.size)  # which of a csr_array is the number of stored values

    @property
    def sparse(self) -> bool:
        """Whether the features are a `csr_array`."""
        return not isinstance(self.features, np.ndarray)

    # -- distribution of the samples: here all are local; DistributedDataset overrides this -------------------------

    @property
    def communicator(self) -> Communicator:
        """The ranks over which the samples are distributed."""
        return SINGLE_PROCESS

    def local_features(self, which: slice) -> Features:
        """Features of those samples of a block that are in this process, in order."""
        return self.features[which if self.row_order is None else self.row_order[which]]

    def places(self, which: slice) -> npt.NDArray[np.intp]:
        """Where the samples of `local_features` are in the block."""
        return np.arange(len(range(*which.indices(self.samples))))

    def rows(self, which: slice) -> npt.NDArray[np.float64]:
        """`local_features` as a dense float64 array; keep the block small."""
        block = self.local_features(which)
        dense = block if isinstance(block, np.ndarray) else block.toarray()
        return np.asarray(dense, dtype=np.float64)

    def in_order(self, values: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        """Values of the samples in this process, in order, from those of the rows of ``features``."""
        return values if self.row_order is None else values[self.row_order]

    def gather(self, values: npt.NDArray[_Value], which: slice = slice(None)) -> npt.NDArray[_Value]:
        """Values of all samples of a block, from those of its local samples, (local samples,)."""
        return values

    def redistribute(self, parts: Sequence[ByteArray], which: slice) -> Sequence[ByteArray]:
        """Send features of local samples to the ranks of the workers that need them.

        Parameters
        ----------
        parts
            For every worker its features of the block's local samples: uint8 (local samples, features of the shard).
        which
            The block of samples.

        Returns
        -------
        For every worker of this process its features of all samples of the block.
        """
        return parts

    def take(self, rows: npt.NDArray[np.intp], name: str | None = None) -> Self:
        """Some of the samples, in the given order, optionally under another name."""
        places = rows if self.row_order is None else self.row_order[rows]
        return replace(
            self, features=self.features[places], **self._of_samples(rows), name=name or self.name, row_order=None
        )

    def reordered(self, rows: npt.NDArray[np.intp]) -> Self:
        """All samples in another order. No copy of the features is made: they are read in that order."""
        return replace(
            self, **self._of_samples(rows), row_order=rows if self.row_order is None else self.row_order[rows]
        )

    def _of_samples(self, rows: npt.NDArray[np.intp]) -> dict[str, Any]:
        """What there is of each sample besides its features, for some of them."""
        weights = self.sample_weights
        return {"labels": self.labels[rows], "sample_weights": None if weights is None else weights[rows]}

    def held_out(self, fraction: float) -> int:
        """Number of samples that `split` holds out, at least one."""
        return order.held_out(self.samples, fraction)

    def split(self, fraction: float, *, seed: int, stratified: bool) -> tuple[Self, Self]:
        """Shuffle the samples and hold out a part of them.

        Parameters
        ----------
        fraction
            Fraction to hold out, above 0 and below 1; see `held_out`.
        seed
            Seed of the shuffle. The same seed and data give the same split.
        stratified
            Hold out the same fraction of every class, to within one sample.

        Returns
        -------
        The other samples and the held-out samples, both shuffled.

        Raises
        ------
        UserError
            If one of the two would be empty.
        """
        rest, chosen = order.split(self.labels, fraction, seed=seed, stratified=stratified, name=self.name)
        return self.take(rest), self.take(chosen, f"held-out samples of {self.name}")


def _normal(features: Features, name: str) -> Features:
    """Convert features to one of the types that `Dataset` holds."""
    if features.ndim != 2:
        raise UserError(f"{name}: features must be a matrix of samples and features, not of shape {features.shape}")
    if features.dtype.kind not in "buif":
        raise UserError(f"{name}: features must be numbers, not {features.dtype}")
    if not isinstance(features, np.ndarray) and scipy.sparse.issparse(features):
        if hasattr(features, "check_format"):
            try:
                features.check_format(full_check=True)  # SciPy's products do not check indices
            except ValueError as error:
                raise UserError(f"{name}: the sparse matrix is damaged: {error}") from error
        matrix = scipy.sparse.csr_array(features)
        if matrix.dtype not in (np.float32, np.float64):
            matrix = matrix.astype(np.float64)
        if not matrix.has_canonical_format:
            if np.shares_memory(matrix.data, features.data):
                matrix = matrix.copy()  # do not change the caller's matrix
            matrix.sum_duplicates()
        return matrix
    array = np.asarray(features)
    if array.dtype not in (np.float32, np.float64):
        # exact in float32 up to 16 bits, at half the memory
        array = array.astype(np.float32 if array.dtype.itemsize <= 2 else np.float64)
    return cast("npt.NDArray[np.float64]", array)


def check_labels(labels: npt.NDArray[np.float64], name: str, first: int = 0) -> None:
    """Check that labels are finite.

    Parameters
    ----------
    labels
        float64 (samples,) or (samples, targets).
    name
        Source of the labels, for messages.
    first
        Number of samples of the source before these, for messages.

    Raises
    ------
    UserError
        For the first label that is NaN or infinite.
    """
    strange = np.argwhere(~np.isfinite(labels))
    if strange.size:
        place = tuple(strange[0])
        raise UserError(f"{name}: the label of sample {first + place[0] + 1} is {labels[place]}: leave that sample out")


def find_not_finite(features: Features) -> tuple[int, int] | None:
    """Row and column (from 0) of the first NaN or infinity in a matrix; ``None`` if there is none."""
    if not isinstance(features, np.ndarray):
        strange = np.flatnonzero(~np.isfinite(features.data))
        if not strange.size:
            return None
        row = int(np.searchsorted(features.indptr, strange[0], side="right")) - 1
        return row, int(features.indices[strange[0]])
    step = max(1, _BLOCK_VALUES // max(1, features.shape[1]))
    for first in range(0, features.shape[0], step):
        finite = np.isfinite(features[first : first + step])
        if not finite.all():
            rows, columns = np.nonzero(~finite)
            return first + int(rows[0]), int(columns[0])
    return None


@dataclass(frozen=True, eq=False, kw_only=True)
class DistributedDataset(Dataset):
    """A data set of which every rank has all labels and weights, but the features of only some samples.

    Parameters
    ----------
    features
        As in `Dataset`, but only those of local samples, (local samples, features).
    owners
        Rank that has each sample, (samples,).
    ranks
        The ranks. Labels, names and owners are the same on all of them.
    """

    owners: npt.NDArray[np.uint8]
    ranks: Communicator

    def _check_shapes(self) -> None:
        if self.samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        if self.feature_count == 0:
            raise UserError(f"{self.name}: the samples have no features")
        if self.owners.size != len(self.labels) or self._places.size != self.features.shape[0]:
            raise ValueError(
                f"{self._places.size} of {len(self.labels)} samples are of this rank, not {self.features.shape}"
            )

    @property
    def communicator(self) -> Communicator:
        """The ranks."""
        return self.ranks

    @cached_property
    def _places(self) -> npt.NDArray[np.intp]:
        """Indices of the local samples, ascending."""
        return np.flatnonzero(self.owners == self.ranks.rank)

    def take(self, rows: npt.NDArray[np.intp], name: str | None = None) -> Self:
        """Some of the samples, in the given order, which is the same on all ranks. They stay on their ranks."""
        owners = self.owners[rows]
        own = np.searchsorted(self._places, rows[owners == self.ranks.rank])
        return replace(
            self, features=self.features[own], **self._of_samples(rows), owners=owners, name=name or self.name
        )

    def reordered(self, rows: npt.NDArray[np.intp]) -> Self:
        """See `Dataset.reordered`; here features are copied."""
        return self.take(rows)

    def local_features(self, which: slice) -> Features:
        """See `Dataset.local_features`."""
        first, last = np.searchsorted(self._places, which.indices(self.samples)[:2])
        return self.features[first:last]

    def places(self, which: slice) -> npt.NDArray[np.intp]:
        """See `Dataset.places`."""
        return np.flatnonzero(self.owners[which] == self.ranks.rank)

    def gather(self, values: npt.NDArray[_Value], which: slice = slice(None)) -> npt.NDArray[_Value]:
        """See `Dataset.gather`; every rank gets all values."""
        owners = self.owners[which]
        result = np.empty(owners.size, values.dtype)
        for rank, part in enumerate(self.ranks.all_gather(values)):
            result[owners == rank] = part
        return result

    def redistribute(self, parts: Sequence[ByteArray], which: slice) -> Sequence[ByteArray]:
        """See `Dataset.redistribute`; rank i has worker i."""
        owners = self.owners[which]
        block = np.empty((owners.size, parts[self.ranks.rank].shape[1]), np.uint8)
        for rank, part in enumerate(self.ranks.all_to_all(parts)):
            rows = np.flatnonzero(owners == rank)
            block[rows] = part.reshape(rows.size, block.shape[1])
        return [block]


def join_shares(
    features: Features, labels: npt.NDArray[np.float64], name: str, communicator: Communicator, **about: Any
) -> Dataset:
    """The data set that consists of the shares that the ranks have read, in the order of the ranks.

    Parameters
    ----------
    features
        Features of the local share.
    labels
        Labels of all samples.
    name, about
        As in `Dataset`; the same on all ranks.
    communicator
        The ranks.
    """
    if communicator.size == 1:
        return Dataset(features, labels, name, **about)
    counts = communicator.all_gather(features.shape[0])
    owners = np.repeat(np.arange(communicator.size, dtype=np.uint8), counts)
    return DistributedDataset(features, labels, name, owners=owners, ranks=communicator, **about)
