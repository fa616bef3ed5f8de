"""Parquet files: a sample a row, a feature a column."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from p4sgd.host.data.columns import Columns, ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, find_not_finite
from p4sgd.host.data.labels import encode_labels, join_texts, real_labels
from p4sgd.host.data.spread import join_shares
from p4sgd.host.errors import UserError
from p4sgd.host.launch.communicator import Communicator, share_of

__all__ = ["read_parquet"]

_BATCH_VALUES = 1 << 19


def read_parquet(path: Path, options: ReadOptions) -> Dataset:
    """Read a Parquet file as a dense data set, batch by batch.

    Columns that pandas made of an index are left out. Feature columns hold numbers or booleans; the label column may
    hold texts (see `p4sgd.host.data.labels.encode_labels`).

    Raises
    ------
    UserError
        If the file cannot be read; the message names file, row and column.
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
            return _read(file, kept, columns, path, options.communicator)
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


def _read(file: Any, kept: list[int], columns: Columns, path: Path, ranks: Communicator) -> Dataset:
    import pyarrow as pa

    total = file.metadata.num_rows
    share = share_of(ranks, total)
    features = np.empty((len(share), len(columns.features)))
    parts: list[Any] = []
    for first, batch in _batches(file, share, columns.count):
        for place in _used(columns):
            column = batch.column(kept[place])
            if column.null_count:
                row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise UserError(
                    f"{path}, row {row + 1}, {columns[place]}: the value is missing: fill it in or leave the row out"
                )
        block = features[first - share.start :][: batch.num_rows]
        for feature, place in enumerate(columns.features):
            block[:, feature] = _numbers(batch.column(kept[place]))
        strange = find_not_finite(block)
        if strange is not None:
            row, feature = strange
            where = f"{path}, row {first + row + 1}, {columns[columns.features[feature]]}"
            raise UserError(f"{where}: the value is {block[row, feature]}: it must be finite")
        if columns.label is not None:
            parts.append(_plain(batch.column(kept[columns.label])))
    feature_names = columns.feature_names
    if columns.label is None:
        return join_shares(features, np.zeros(total), str(path), ranks, labelled=False, feature_names=feature_names)
    joined = pa.chunked_array(parts, type=_plain_type(file.schema_arrow.field(kept[columns.label]).type))
    names: tuple[str, ...] = ()
    if pa.types.is_string(joined.type) or pa.types.is_large_string(joined.type):
        encoded = joined.combine_chunks().dictionary_encode()
        which = encoded.indices.to_numpy().astype(np.intp)
        labels, names = encode_labels(*join_texts(encoded.dictionary.to_pylist(), which, ranks), str(path))
    else:
        numbers = joined.to_numpy() if pa.types.is_integer(joined.type) else _numbers(joined)
        labels = np.concatenate(ranks.all_gather(real_labels(numbers, str(path))))
    return join_shares(features, labels, str(path), ranks, label_names=names, feature_names=feature_names)


def _batches(file: Any, share: range, columns: int) -> Iterator[tuple[int, Any]]:
    """The rows of a share, batch by batch, and the number of a batch's first row; other row groups are not read."""
    first = 0
    for group in range(file.num_row_groups):
        end = first + file.metadata.row_group(group).num_rows
        if first < share.stop and share.start < end:
            for batch in file.iter_batches(batch_size=max(1, _BATCH_VALUES // columns), row_groups=[group]):
                own = range(max(first, share.start), min(first + batch.num_rows, share.stop))
                if own:
                    yield own.start, batch.slice(own.start - first, len(own))
                first += batch.num_rows
        first = end


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
