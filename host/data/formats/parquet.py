"""Parquet files: one sample per row, one feature per column.

Columns in which pandas stores an index are left out. Columns hold numbers, booleans, texts, dates, or as dictionaries
categories.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from p4sgd.host.data.cells import Cells, RawLabels, is_numeric, suits
from p4sgd.host.data.columns import Columns, choose_columns
from p4sgd.host.data.formats.source import BLOCK_VALUES, NotNumbersError, Rows
from p4sgd.host.data.formats.tables import Arrays, TableSource
from p4sgd.host.data.table import NumberColumn, Table
from p4sgd.host.errors import UserError


class ParquetSource(TableSource):
    """A Parquet file as dense samples. Reading takes memory for decoded columns of a row group, besides the samples."""

    @cached_property
    def _kinds(self) -> list[tuple[int, str, Any]]:
        """Index, name, and type of the columns but for those of an index of pandas."""
        with self._open() as file:
            schema = file.schema_arrow
        try:
            described = schema.pandas_metadata or {}
        except ValueError:  # metadata that pandas did not write
            described = {}
        index = [name for name in described.get("index_columns", ()) if isinstance(name, str)]
        return [
            (place, field.name, field.type)
            for place, field in enumerate(schema)
            if field.name not in index and not re.fullmatch(r"__index_level_\d+__", field.name)
        ]

    @cached_property
    def columns(self) -> Columns:
        columns = choose_columns(len(self._kinds), [name for _, name, _ in self._kinds], self.options, self.name)
        for place in (*columns.features, *columns.labels, *columns.beside.values()):
            if not suits(kind := self._kinds[place][2]):
                raise columns.refusal(place, f"holds {kind}, neither numbers, texts nor dates: use --ignore-column")
        return columns

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Open the file; `UserError` if it cannot be read, also within the ``with`` block."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                yield file
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # pyarrow raises all for damaged files
            problem = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            raise UserError(f"{self.name}: cannot be read as Parquet: {problem}") from error

    def _numbers(self) -> Iterator[Rows]:
        """The rows, if the types of the columns say that these hold numbers and nothing is missing."""
        from pyarrow import types

        chosen = [self._kinds[place] for place in self.columns.features]
        if self.options.takes_gaps or self._makes_more or not all(is_numeric(kind) for *_, kind in chosen):
            raise NotNumbersError
        self.table = Table(tuple(NumberColumn(name, truth=types.is_boolean(kind)) for _, name, kind in chosen))
        yield from self._known_rows()

    def _arrays(self) -> Iterator[Arrays]:
        """The rows in batches."""
        columns, first = self.columns, 0
        step = max(1, BLOCK_VALUES // columns.count)
        with self._open() as file:
            counted = file.metadata.num_rows
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(batch_size=step, row_groups=[group]):
                    yield Arrays.of(first, columns, [batch.column(place) for place, *_ in self._kinds])
                    first += batch.num_rows
                    self._done = first / max(first, counted, 1)
            if first != counted:
                raise UserError(f"{self.name}: is damaged: it says that it has {counted:,} rows, and has {first:,}")

    def _locate(self, row: int, column: int) -> str:
        return f"{self.name}, row {row + 1}, {self.columns[column]}"

    def _labels(self, label: Any) -> RawLabels:
        import pyarrow as pa

        if not is_numeric(label.type):
            return RawLabels.from_column(Cells(label).array)
        if not pa.types.is_integer(label.type):
            label = label.cast(pa.float64(), safe=False)
        return RawLabels(label.to_numpy(zero_copy_only=False))
