"""Parquet files: one sample per row, one feature per column.

Columns in which pandas stores an index are left out. Columns hold numbers, booleans or texts, which may be encoded as
dictionaries.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from p4sgd.host.data.cells import is_text, plain_type, suits
from p4sgd.host.data.columns import Columns, choose_columns
from p4sgd.host.data.formats.source import BLOCK_VALUES, NotNumbersError, Rows
from p4sgd.host.data.formats.tables import Arrays, TableSource
from p4sgd.host.data.raw_labels import RawLabels
from p4sgd.host.data.table import Column, Table
from p4sgd.host.errors import UserError


class ParquetSource(TableSource):
    """A Parquet file as dense samples. Reading takes memory for decoded columns of a row group, besides the samples."""

    @cached_property
    def _schema(self) -> Any:
        with self._open() as file:
            return file.schema_arrow

    @cached_property
    def _kept(self) -> list[int]:
        """Indices of the columns that are data; pandas stores the index of a table as columns too."""
        try:
            described = self._schema.pandas_metadata or {}
        except ValueError:  # metadata that pandas did not write
            described = {}
        index = [name for name in described.get("index_columns", ()) if isinstance(name, str)]
        return [
            place
            for place, name in enumerate(self._schema.names)
            if name not in index and not re.fullmatch(r"__index_level_\d+__", name)
        ]

    @cached_property
    def columns(self) -> Columns:
        """See `TableSource.columns`."""
        names = [self._schema.field(place).name for place in self._kept]
        columns = choose_columns(len(names), names, self.options, self.name)
        for place in (*columns.features, columns.label, columns.weight):
            if place is not None and not suits(kind := self._kind(place)):
                raise UserError(
                    f"{self.path}, {columns[place]}: holds {kind}, neither numbers nor texts: leave it out with "
                    f"--ignore-column"
                )
        return columns

    def _kind(self, place: int) -> Any:
        """The type of a column, without dictionary encoding."""
        return plain_type(self._schema.field(self._kept[place]).type)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Open the file; `UserError` if it cannot be read, also within the ``with`` block."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path) as file:
                yield file
        except pa.ArrowException as error:
            raise UserError(f"{self.path}: cannot be read as Parquet: {error}") from error
        except OSError as error:  # pyarrow raises it for damaged files too
            raise UserError(f"{self.path}: cannot be read as Parquet: {error.strerror or error}") from error

    def _numbers(self) -> Iterator[Rows]:
        """The rows, if the types of the columns say that these hold numbers and nothing is missing."""
        from pyarrow import types

        kinds = [self._kind(place) for place in self.columns.features]
        if self.options.takes_gaps or any(map(is_text, kinds)):
            raise NotNumbersError
        names = [name for _, name in self.columns.numbered]
        made = (Column(name, truth=types.is_boolean(kind)) for name, kind in zip(names, kinds, strict=True))
        self.table = Table(tuple(made))
        yield from self._known_rows()

    def _arrays(self) -> Iterator[Arrays]:
        """The rows in batches. Row groups without any rows of the share are not read."""
        columns, kept = self.columns, self._kept
        step, first = max(1, BLOCK_VALUES // columns.count), 0
        with self._open() as file:
            rows = self.share.of(file.metadata.num_rows)
            for group in range(file.num_row_groups):
                end = first + file.metadata.row_group(group).num_rows
                if first < rows.stop and rows.start < end:
                    for batch in file.iter_batches(batch_size=step, row_groups=[group]):
                        own = range(max(first, rows.start), min(first + batch.num_rows, rows.stop))
                        if own:
                            part = batch.slice(own.start - first, len(own))
                            yield Arrays(
                                own.start,
                                [part.column(kept[place]) for place in columns.features],
                                None if columns.label is None else part.column(kept[columns.label]),
                                None if columns.weight is None else part.column(kept[columns.weight]),
                            )
                        first += batch.num_rows
                        self._done = first / file.metadata.num_rows
                first = end

    def _locate(self, row: int, column: int) -> str:
        return f"{self.path}, row {row + 1}, {self.columns[column]}"

    def _labels(self, arrays: Arrays) -> RawLabels:
        import pyarrow as pa

        label = arrays.label
        if label.null_count:
            row = arrays.first + int(np.flatnonzero(label.is_null().to_numpy(zero_copy_only=False))[0])
            assert self.columns.label is not None
            raise UserError(
                f"{self._locate(row, self.columns.label)}: the value is missing: fill it in or leave the row out"
            )
        if pa.types.is_dictionary(label.type):
            label = label.dictionary_decode()
        if is_text(label.type):
            return RawLabels.from_column(label.cast(pa.large_string()))
        if not pa.types.is_integer(label.type):
            label = label.cast(pa.float64(), safe=False)
        return RawLabels(label.to_numpy())
