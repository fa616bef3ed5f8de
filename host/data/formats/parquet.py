"""Parquet files: a sample a row, a feature a column."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.columns import Columns, ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, find_not_finite, join_shares
from p4sgd.host.data.formats.opening import BLOCK_VALUES
from p4sgd.host.data.labels import encode_labels, index_column, join_texts, real_labels
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, share_of
from p4sgd.host.errors import UserError

__all__ = ["ParquetTable", "open_parquet", "parquet_blocks", "parquet_labels", "read_parquet"]


def read_parquet(path: Path, options: ReadOptions) -> Dataset:
    """Read a Parquet file as a dense data set, batch by batch.

    Columns that pandas made of an index are left out. Feature columns hold numbers or booleans; the label column may
    hold texts (see `p4sgd.host.data.labels.encode_labels`).

    Raises
    ------
    UserError
        If the file cannot be read; the message names file, row and column.
    """
    with open_parquet(path, options) as table:
        return _read(table, options.communicator)


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """An open file.

    Parameters
    ----------
    path
        Its name.
    file
        What pyarrow reads it with.
    kept
        Places of the columns that are data.
    columns
        What these are.
    """

    path: Path
    file: Any
    kept: Sequence[int]
    columns: Columns

    @property
    def samples(self) -> int:
        """How many samples it has."""
        return int(self.file.metadata.num_rows)


@contextmanager
def open_parquet(path: Path, options: ReadOptions) -> Iterator[ParquetTable]:
    """Open a file and look at its columns.

    Raises
    ------
    UserError
        If it cannot be read, also from within the ``with`` block, or holds something else than numbers.
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
            yield ParquetTable(path, file, kept, columns)
    except pa.ArrowException as error:
        raise UserError(f"{path}: cannot be read as Parquet: {error}") from error
    except OSError as error:  # pyarrow says "damaged" so, too
        raise UserError(f"{path}: cannot be read as Parquet: {error.strerror or error}") from error


def _without_index(schema: Any) -> list[int]:
    """Places of the columns that are data: pandas stores the index of a table as columns too."""
    try:
        described = schema.pandas_metadata or {}
    except ValueError:  # not pandas' after all
        described = {}
    index = [name for name in described.get("index_columns", ()) if isinstance(name, str)]
    return [
        place
        for place, name in enumerate(schema.names)
        if name not in index and not re.fullmatch(r"__index_level_\d+__", name)
    ]


def _used(columns: Columns) -> list[int]:
    return [*columns.features, *([] if columns.label is None else [columns.label])]


def _suits(kind: Any, *, label: bool) -> bool:
    from pyarrow import types

    kind = _plain_type(kind)
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    text = types.is_string(kind) or types.is_large_string(kind)
    return numeric or (label and text)


def parquet_blocks(table: ParquetTable, rows: range) -> Iterator[tuple[npt.NDArray[np.float64], Any]]:
    """Some rows, block by block: features, and the labels as an array of pyarrow, if wanted.

    Raises
    ------
    UserError
        If a value is missing or not finite; the message names row and column.
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
        yield block, None if columns.label is None else _plain(batch.column(kept[columns.label]))


def _batches(table: ParquetTable, rows: range) -> Iterator[tuple[int, Any]]:
    """Some rows, batch by batch, and the number of a batch's first row; row groups that have none are not read."""
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


def parquet_labels(
    column: Any, name: str, *, first: int = 0, ranks: Communicator = SINGLE_PROCESS
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Labels as numbers, and the names of the classes if they are texts.

    Parameters
    ----------
    column
        A chunked array of pyarrow.
    name
        Where the labels come from, for messages.
    first
        Samples of the source that came before these, for messages.
    ranks
        The ranks that have a column each; what is returned are the labels of all, one after another.

    Raises
    ------
    UserError
        As `encode_labels` and `real_labels`.
    """
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return encode_labels(*join_texts(ranks.all_gather(index_column(column))), name, first=first)
    numbers = column.to_numpy() if pa.types.is_integer(column.type) else _numbers(column)
    return np.concatenate(ranks.all_gather(real_labels(numbers, name))), ()


def _read(table: ParquetTable, ranks: Communicator) -> Dataset:
    import pyarrow as pa

    name, feature_names = str(table.path), table.columns.feature_names
    share = share_of(ranks, table.samples)
    features = np.empty((len(share), len(table.columns.features)))
    parts: list[Any] = []
    first = 0
    for block, column in parquet_blocks(table, share):
        features[first : first + block.shape[0]] = block
        first += block.shape[0]
        parts.append(column)
    if table.columns.label is None:
        labels = np.zeros(table.samples)
        return join_shares(features, labels, name, ranks, labelled=False, feature_names=feature_names)
    kind = _plain_type(table.file.schema_arrow.field(table.kept[table.columns.label]).type)
    labels, names = parquet_labels(pa.chunked_array(parts, type=kind), name, ranks=ranks)
    return join_shares(features, labels, name, ranks, label_names=names, feature_names=feature_names)


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
