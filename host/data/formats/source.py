"""Base classes of the readers of data files, which read in blocks or as a whole."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.columns import Columns, ReadOptions
from p4sgd.host.data.dataset import Dataset, Features, FeatureSpace, check_labels, join_shares
from p4sgd.host.data.formats.text_file import check_compression
from p4sgd.host.data.matrix import find_not_finite
from p4sgd.host.data.raw_labels import RawLabels
from p4sgd.host.data.sample_weights import check_weights
from p4sgd.host.data.survey import RowNumbers
from p4sgd.host.data.table import Column, Table, UnknownTexts
from p4sgd.host.errors import UserError

__all__ = ["BLOCK_VALUES", "GrowingArray", "RowSource", "Source", "TableSource", "TextSource", "check_finite"]

BLOCK_VALUES = 1 << 19
"""Approximate number of values in a block of dense samples; 4 MB of float64."""


class Source(ABC):
    """A data file.

    `blocks` reads the samples in blocks, in bounded memory and as often as needed; `read` reads them all. Each format
    is a subclass.

    Parameters
    ----------
    path
        The file.
    options
        How to read it.
    guessed
        Name of the format, if it was only guessed.
    """

    def __init__(self, path: Path, options: ReadOptions, guessed: str | None = None) -> None:
        self.path = path
        self.options = options
        self._guessed = guessed
        self._space: FeatureSpace | None = None
        self.table: Table | None = None
        """What the columns of a table hold; known once all blocks have been read, or set from an earlier pass."""
        self.remarks: tuple[str, ...] = ()
        """What the user should know about the data, once all blocks have been read."""

    @property
    def name(self) -> str:
        """Name of the source, for messages."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.path.stat().st_size

    @property
    @abstractmethod
    def position(self) -> int:
        """Approximate number of bytes that have been read."""

    @property
    def space(self) -> FeatureSpace:
        """The features of the samples; known once all blocks have been read."""
        assert self._space is not None, "not all blocks were read"
        if self._space.column_names:
            return self._space
        return replace(self._space, label_column=self._label_column)

    @property
    def _label_column(self) -> int | None:
        """The number of the label column, if it was chosen by that alone."""
        column = self.options.label_column
        return int(column or 0) if _is_number(column) and not self.options.target_columns else None

    def blocks(self, space: FeatureSpace | None = None) -> Iterator[Dataset]:
        """All samples in the order of the file, as a sequence of small data sets.

        Every block numbers labels that are texts by itself. The features of a table are its columns, see
        `p4sgd.host.data.table.Table.rows`.

        Parameters
        ----------
        space
            Value of `space` after an earlier pass. Without it the blocks of a LIBSVM file have the features seen so
            far, with indices as in the file, and in those of a table columns may be numbers that turn out as texts.

        Raises
        ------
        UserError
            When the reader meets an error; the message names file and line, or row and column.
        """
        with self._explained():
            yield from self._blocks(space)

    def read(self) -> Dataset:
        """All samples as one data set. With several ranks, each reads its share.

        Raises
        ------
        UserError
            As `blocks`.
        """
        with self._explained():
            return self._read()

    @abstractmethod
    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        """As `blocks`; sets ``_space``."""

    @abstractmethod
    def _read(self) -> Dataset:
        """As `read`."""

    def _block(
        self,
        features: Features,
        labels: RawLabels | None,
        first: int,
        weights: npt.NDArray[np.float64] | None = None,
        **about: Any,
    ) -> Dataset:
        """A data set of some samples; ``first`` is the number of samples in the file before them."""
        if weights is not None:
            check_weights(weights, self.name, first)
            about["sample_weights"] = weights
        if labels is None:
            return Dataset(features, np.zeros(features.shape[0]), self.name, labelled=False, **about)
        values, names = labels.encode(self.name, first)
        check_labels(values, self.name, first)
        return Dataset(features, values, self.name, names, **about)

    def _join(
        self,
        features: Features,
        labels: RawLabels | None,
        weights: npt.NDArray[np.float64] | None = None,
        targets: npt.NDArray[np.float64] | None = None,
        **about: Any,
    ) -> Dataset:
        """The data set of all ranks, from the samples that this one has read; ``targets`` are further labels."""
        ranks = self.options.communicator
        if not about.get("feature_names"):
            about["label_column"] = self._label_column
        if any(ranks.all_gather(weights is not None)):
            own = np.ones(features.shape[0]) if weights is None else weights
            about["sample_weights"] = np.concatenate(ranks.all_gather(own))
        if labels is None:
            unlabelled = np.zeros(sum(ranks.all_gather(features.shape[0])))
            return join_shares(features, unlabelled, self.name, ranks, labelled=False, **about)
        values, names = RawLabels.join(ranks.all_gather(labels)).encode(self.name)
        if values.ndim == 2:
            about |= {"target_names": tuple(f"target {place + 1}" for place in range(values.shape[1]))}
        elif targets is not None:
            columns = [self.options.label_column, *self.options.target_columns]
            if names:
                if not {name.lower() for name in names} <= {"false", "true"}:
                    raise _no_numbers(self.name, columns[0])
                values, names = np.array([name.lower() == "true" for name in names], np.float64)[values.astype(int)], ()
            values = np.column_stack([values, np.concatenate(ranks.all_gather(targets))])
            about["target_names"] = tuple(f"column {each}" if _is_number(each) else str(each) for each in columns)
        return join_shares(features, values, self.name, ranks, label_names=names, **about)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add to an error that the format was guessed.

        Damage in compressed data may show as an error in the text before the checksum is reached, so it is looked for
        first.
        """
        try:
            yield
        except UserError as error:
            if self.path.is_file():
                check_compression(self.path)
            if self._guessed is not None:
                raise UserError(
                    f"{error} (it looks like {self._guessed}; if it is not, say so with --format)"
                ) from error
            raise


class TableSource(Source):
    """A file that is a table."""

    def _known_table(self, columns: Columns) -> Table | None:
        """What the columns hold, if that does not depend on their rows."""
        like = self.options.like
        if self.table is not None or like is None:
            return self.table
        numbers = self._numbers(columns)
        if like.encoding is None:
            return numbers
        return Table((*like.encoding.columns, *numbers.columns[len(columns.features) - columns.targets :]))

    def _numbers(self, columns: Columns) -> Table:
        return Table.of_numbers(columns.feature_names, len(columns.features))

    def _join_rows(
        self,
        rows: npt.NDArray[np.float64],
        labels: RawLabels | None,
        weights: npt.NDArray[np.float64] | None,
        columns: Columns,
        table: Table,
        unknown: UnknownTexts,
    ) -> Dataset:
        """The data set of all ranks, from the rows of the table that this one has read."""
        ranks, like = self.options.communicator, self.options.like
        targets, names = None, columns.feature_names
        if columns.targets:
            targets, rows = np.split(rows, [-columns.targets], axis=1)[::-1]
            table, own = Table(table.columns[: -columns.targets]), table.columns[-columns.targets :]
            names = names[: -columns.targets]
            self._check_targets(targets, own, sum(ranks.all_gather(rows.shape[0])[: ranks.rank]))
        if like is None:
            numbers = RowNumbers(columns.numbered[: rows.shape[1]])
            numbers.add(rows, sum(ranks.all_gather(rows.shape[0])[: ranks.rank]))
            remarks = (*columns.remarks, *numbers.remarks(ranks))
            about: dict[str, Any] = {"feature_names": names, "table": table, "remarks": remarks}
            return self._join(rows, labels, weights, targets, **about)
        if like.encoding is None:
            return self._join(rows, labels, weights, targets, feature_names=names)
        return self._join(
            like.encoding.apply(rows),
            labels,
            weights,
            targets,
            feature_names=like.names,
            encoding=like.encoding,
            remarks=unknown.remarks(ranks),
        )

    def _check_targets(self, targets: npt.NDArray[np.float64], columns: Sequence[Column], first: int) -> None:
        """Refuse further labels that are texts, or missing; ``first`` is the number of samples before these."""
        for column, values, name in zip(columns, targets.T, self.options.target_columns, strict=True):
            if column.values:
                raise _no_numbers(self.name, name)
            if not np.isfinite(values).all():
                sample = first + int(np.isnan(values).argmax()) + 1
                raise UserError(f"{self.name}: the label {name} of sample {sample} is missing: leave that sample out")


def _no_numbers(name: str, column: str | int | None) -> UserError:
    return UserError(
        f"{name}: the labels of {column} are texts, those of several targets must be numbers: write 0 and 1 for two "
        f"classes, or train on one column at a time"
    )


def _is_number(column: str | int | None) -> bool:
    try:
        int(column or "")
    except ValueError:
        return False
    return True


class TextSource(Source):
    """A file that is read sequentially, compressed or not."""

    _raw: BinaryIO | None = None

    @property
    def position(self) -> int:
        """Number of bytes that have been read, before decompression."""
        return 0 if self._raw is None or self._raw.closed else self._raw.tell()

    def _watch(self, raw: BinaryIO) -> None:
        """Keep the file on the disk, for its position."""
        self._raw = raw


class RowSource(Source):
    """A file whose number of samples is known; ``_done`` is the fraction that has been read."""

    _done = 0.0

    @property
    def position(self) -> int:
        """Approximate number of bytes that have been read, from the fraction of samples."""
        return int(self._done * self.size)


class GrowingArray:
    """A vector to which blocks are appended.

    It is enlarged in place, for which the system moves the pages of a large array without copying them. The values are
    in memory once; collecting blocks and concatenating them would take twice as much.

    Parameters
    ----------
    dtype
        Type of the values.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._values: npt.NDArray[Any] = np.empty(0, dtype)
        self._size = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append the values of an array of any shape."""
        end = self._size + values.size
        if end > self._values.size:
            self._values.resize(max(end, self._values.size * 9 // 8), refcheck=False)
        self._values[self._size : end] = values.reshape(-1)
        self._size = end

    def finish(self) -> npt.NDArray[Any]:
        """Return all values. Nothing can be appended afterwards."""
        self._values.resize(self._size, refcheck=False)
        return self._values


def check_finite(dataset: Dataset, first: int = 0) -> Dataset:
    """Check that all features are finite; returns the data set. ``first`` rows of the file come before its rows.

    Raises
    ------
    UserError
        For the first NaN or infinity; the message names row and column.
    """
    strange = find_not_finite(dataset.features)
    if strange is not None:
        row, column = strange
        value, place = dataset.features[row, column], f"row {first + row + 1}, feature {column + 1}"
        raise UserError(f"{dataset.name}, {place}: the value is {value}: it must be finite")
    return dataset
