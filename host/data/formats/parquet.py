"""Parquet files: one sample per row, one feature per column.

Columns in which pandas stores an index are left out. Columns hold numbers, booleans or texts, which may be encoded as
dictionaries.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import CellError, is_text, plain_type, suits, weights_of
from p4sgd.host.data.columns import Columns, ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.formats.source import BLOCK_VALUES, RowSource, TableSource
from p4sgd.host.data.raw_labels import RawLabels
from p4sgd.host.data.survey import RowNumbers, Survey
from p4sgd.host.data.table import Column, Table, UnknownTexts
from p4sgd.host.distributed.communicator import share_of
from p4sgd.host.errors import UserError

__all__ = ["ParquetSource"]


class ParquetSource(TableSource, RowSource):
    """A Parquet file as dense samples. Reading takes memory for decoded columns of a row group, besides the samples."""

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        with _open(self.path, self.options) as file:
            self.table = self._table(file, range(file.samples))
            first, numbers = 0, RowNumbers(file.columns.numbered)
            for rows, labels, weights in self._parts(file, self.table, range(file.samples)):
                yield self._block(rows, labels, first, weights, feature_names=file.columns.feature_names)
                numbers.add(rows, first)
                first += rows.shape[0]
                self._done = first / file.samples
            if first == 0:
                raise UserError(f"{self.name}: there are no samples")
            self.remarks = (*file.columns.remarks, *numbers.remarks())
            self._space = FeatureSpace(len(file.columns.features), file.columns.feature_names)

    def _read(self) -> Dataset:
        with _open(self.path, self.options) as file:
            share = share_of(self.options.communicator, file.samples)
            table, unknown = self._table(file, share), UnknownTexts()
            rows = np.empty((len(share), len(file.columns.features)))
            parts: list[RawLabels] = []
            weights = None if file.columns.weight is None else np.empty(len(share))
            first = 0
            for block, labels, own in self._parts(file, table, share, unknown):
                rows[first : first + block.shape[0]] = block
                if weights is not None:
                    weights[first : first + block.shape[0]] = own
                first += block.shape[0]
                if labels is not None:
                    parts.append(labels)
            joined = None if file.columns.label is None else RawLabels.join(parts)
            return self._join_rows(rows, joined, weights, file.columns, table, unknown)

    def _table(self, file: "_File", share: range) -> Table:
        """What the columns hold. Only if there may be texts or gaps they have to be read for that.

        Raises
        ------
        UserError
            As `p4sgd.host.data.survey.Survey.finish`.
        """
        from pyarrow import types

        known = self._known_table(file.columns)
        if known is not None:
            return known
        kinds = [file.kind(place) for place in file.columns.features]
        if not self.options.takes_gaps and not any(map(is_text, kinds)):
            names = [name for _, name in file.columns.numbered]
            made = (Column(name, truth=types.is_boolean(kind)) for name, kind in zip(names, kinds, strict=True))
            return Table(tuple(made))
        survey = Survey(file.columns.feature_names, len(kinds))
        for _, batch in _batches(file, share):
            survey.add(file.arrays(batch))

        def tell(cell: CellError) -> UserError:
            return self._told(file, cell.after(share.start))

        options = self.options
        return survey.finish(self.name, gaps=options.takes_gaps, tell=tell, ranks=options.communicator)

    def _told(self, file: "_File", cell: CellError, weight: int | None = None) -> UserError:
        """The error of a cell of the features, or of the column with the weights, whose row is that of the file."""
        place = file.columns.features[cell.column] if weight is None else weight
        return cell.told(f"{self.path}, row {cell.row + 1}, {file.columns[place]}", weight=weight is not None)

    def _parts(
        self, file: "_File", table: Table, share: range, unknown: UnknownTexts | None = None
    ) -> Iterator[tuple[npt.NDArray[np.float64], RawLabels | None, npt.NDArray[np.float64] | None]]:
        """Some rows, block by block, and labels and weights if these are needed.

        Raises
        ------
        UserError
            For the first value that its column cannot have; the message names row and column.
        """
        columns = file.columns
        for first, batch in _batches(file, share):
            try:
                rows = table.rows(file.arrays(batch), gaps=self.options.takes_gaps, unknown=unknown)
            except CellError as error:
                raise self._told(file, error.after(first)) from None
            labels = None if columns.label is None else batch.column(file.kept[columns.label])
            if labels is not None and columns.label is not None and labels.null_count:
                row = first + int(np.flatnonzero(labels.is_null().to_numpy(zero_copy_only=False))[0])
                raise UserError(
                    f"{self.path}, row {row + 1}, {columns[columns.label]}: the value is missing: fill it in or leave "
                    f"the row out"
                )
            weights = None
            try:
                if columns.weight is not None:
                    weights = weights_of(batch.column(file.kept[columns.weight]))
            except CellError as error:
                raise self._told(file, error.after(first), columns.weight) from None
            yield rows, None if labels is None else _raw_labels(labels), weights


@dataclass(frozen=True, eq=False)
class _File:
    """An open file.

    Parameters
    ----------
    path
        Its path.
    file
        pyarrow's reader.
    kept
        Indices of the columns that are data.
    columns
        Roles of these columns.
    """

    path: Path
    file: Any
    kept: Sequence[int]
    columns: Columns

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.file.metadata.num_rows)

    def kind(self, place: int) -> Any:
        """The type of a column, without dictionary encoding."""
        return plain_type(self.file.schema_arrow.field(self.kept[place]).type)

    def arrays(self, batch: Any) -> list[Any]:
        """The features in a batch of rows."""
        return [batch.column(self.kept[place]) for place in self.columns.features]


@contextmanager
def _open(path: Path, options: ReadOptions) -> Iterator[_File]:
    """Open a file and choose its columns.

    Raises
    ------
    UserError
        If it cannot be read, also within the ``with`` block, or holds neither numbers nor texts.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            kept = _without_index(file.schema_arrow)
            names = [file.schema_arrow.field(place).name for place in kept]
            columns = choose_columns(len(names), names, options, str(path))
            file_of = _File(path, file, kept, columns)
            others = (place for place in (columns.label, columns.weight) if place is not None)
            for place in (*columns.features, *others):
                if not suits(file_of.kind(place)):
                    raise UserError(
                        f"{path}, {columns[place]}: holds {file_of.kind(place)}, neither numbers nor texts: leave it "
                        f"out with --ignore-column"
                    )
            yield file_of
    except pa.ArrowException as error:
        raise UserError(f"{path}: cannot be read as Parquet: {error}") from error
    except OSError as error:  # pyarrow raises it for damaged files too
        raise UserError(f"{path}: cannot be read as Parquet: {error.strerror or error}") from error


def _without_index(schema: Any) -> list[int]:
    """Indices of the columns that are data; pandas stores the index of a table as columns too."""
    try:
        described = schema.pandas_metadata or {}
    except ValueError:  # metadata that pandas did not write
        described = {}
    index = [name for name in described.get("index_columns", ()) if isinstance(name, str)]
    return [
        place
        for place, name in enumerate(schema.names)
        if name not in index and not re.fullmatch(r"__index_level_\d+__", name)
    ]


def _batches(table: _File, rows: range) -> Iterator[tuple[int, Any]]:
    """Some rows in batches, each with the index of its first row. Row groups without any of these rows are not read."""
    step = max(1, BLOCK_VALUES // table.columns.count)
    first = 0
    for group in range(table.file.num_row_groups):
        end = first + table.file.metadata.row_group(group).num_rows
        if first < rows.stop and rows.start < end:
            for batch in table.file.iter_batches(batch_size=step, row_groups=[group]):
                own = range(max(first, rows.start), min(first + batch.num_rows, rows.stop))
                if own:
                    yield own.start, batch.slice(own.start - first, len(own))
                first += batch.num_rows
        first = end


def _raw_labels(column: Any) -> RawLabels:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        return RawLabels.from_column(column.cast(pa.large_string()))
    if not pa.types.is_integer(column.type):
        column = column.cast(pa.float64(), safe=False)
    return RawLabels(column.to_numpy())
