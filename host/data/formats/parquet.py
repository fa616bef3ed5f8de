"""Parquet files: one sample per row, one feature per column.

Columns in which pandas stores an index are left out. Feature columns hold numbers or booleans; the label column may
also hold texts.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.columns import Columns, ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, FeatureSpace, find_not_finite
from p4sgd.host.data.formats.source import BLOCK_VALUES, RowSource
from p4sgd.host.data.labels import RawLabels
from p4sgd.host.distributed.communicator import share_of
from p4sgd.host.errors import UserError

__all__ = ["ParquetSource"]


class ParquetSource(RowSource):
    """A Parquet file as dense samples. Reading takes memory for decoded columns of a row group, besides the samples."""

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        with _open(self.path, self.options) as table:
            names = table.columns.feature_names
            first = 0
            for features, labels, weights in _parts(table, range(table.samples)):
                yield self._block(features, labels, first, weights, feature_names=names)
                first += features.shape[0]
                self._done = first / table.samples
            if first == 0:
                raise UserError(f"{self.name}: there are no samples")
            self._space = FeatureSpace(len(table.columns.features), names)

    def _read(self) -> Dataset:
        with _open(self.path, self.options) as table:
            share = share_of(self.options.communicator, table.samples)
            features = np.empty((len(share), len(table.columns.features)))
            parts: list[RawLabels] = []
            weights = None if table.columns.weight is None else np.empty(len(share))
            first = 0
            for block, labels, own in _parts(table, share):
                features[first : first + block.shape[0]] = block
                if weights is not None:
                    weights[first : first + block.shape[0]] = own
                first += block.shape[0]
                if labels is not None:
                    parts.append(labels)
            joined = None if table.columns.label is None else RawLabels.join(parts)
            return self._join(features, joined, weights, feature_names=table.columns.feature_names)


@dataclass(frozen=True, eq=False)
class _Table:
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


@contextmanager
def _open(path: Path, options: ReadOptions) -> Iterator[_Table]:
    """Open a file and choose its columns.

    Raises
    ------
    UserError
        If it cannot be read, also within the ``with`` block, or does not hold numbers.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            kept = _without_index(file.schema_arrow)
            names = [file.schema_arrow.field(place).name for place in kept]
            columns = choose_columns(len(names), names, options, str(path))
            for place in _used(columns):
                kind = file.schema_arrow.field(kept[place]).type
                if not _suits(kind, label=place == columns.label):
                    raise UserError(f"{path}, {columns[place]}: holds {kind}, not numbers")
            yield _Table(path, file, kept, columns)
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


def _used(columns: Columns) -> list[int]:
    return [*columns.features, *(place for place in (columns.label, columns.weight) if place is not None)]


def _suits(kind: Any, *, label: bool) -> bool:
    from pyarrow import types

    kind = _plain_type(kind)
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    text = types.is_string(kind) or types.is_large_string(kind)
    return numeric or (label and text)


def _parts(
    table: _Table, rows: range
) -> Iterator[tuple[npt.NDArray[np.float64], RawLabels | None, npt.NDArray[np.float64] | None]]:
    """Some rows, block by block: features, and labels and weights if these are needed.

    Raises
    ------
    UserError
        If a value is missing or not finite, or a weight negative; the message names row and column.
    """
    path, columns, kept = table.path, table.columns, table.kept
    for first, batch in _batches(table, rows):
        for place in _used(columns):
            column = batch.column(kept[place])
            if column.null_count:
                row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise UserError(
                    f"{path}, row {row + 1}, {columns[place]}: the value is missing: fill it in or leave the row out"
                )
        block = np.empty((batch.num_rows, len(columns.features)))
        for feature, place in enumerate(columns.features):
            block[:, feature] = _numbers(batch.column(kept[place]))
        strange = find_not_finite(block)
        if strange is not None:
            row, feature = strange
            where = f"{path}, row {first + row + 1}, {columns[columns.features[feature]]}"
            raise UserError(f"{where}: the value is {block[row, feature]}: it must be finite")
        labels = None if columns.label is None else _raw_labels(batch.column(kept[columns.label]))
        weights = None
        if columns.weight is not None:
            weights = _numbers(batch.column(kept[columns.weight]))
            strange_rows = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
            if strange_rows.size:
                row = int(strange_rows[0])
                where = f"{path}, row {first + row + 1}, {columns[columns.weight]}"
                raise UserError(f"{where}: the weight is {weights[row]:g}: it must be finite and at least 0")
        yield block, labels, weights


def _batches(table: _Table, rows: range) -> Iterator[tuple[int, Any]]:
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

    column = _plain(column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return RawLabels.from_column(column)
    return RawLabels(column.to_numpy() if pa.types.is_integer(column.type) else _numbers(column))


def _plain_type(kind: Any) -> Any:
    """The type of a column without dictionary encoding."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _plain(column: Any) -> Any:
    """A column without dictionary encoding."""
    import pyarrow as pa

    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _numbers(column: Any) -> Any:
    """A column as float64."""
    import pyarrow as pa

    return _plain(column).cast(pa.float64(), safe=False).to_numpy()
