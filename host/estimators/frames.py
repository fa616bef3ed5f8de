"""DataFrames as tables, whose texts, categories, dates, booleans and gaps become features."""

import dataclasses
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import CellError, suits
from p4sgd.host.data.encoding import TableEncoding
from p4sgd.host.data.survey import Survey
from p4sgd.host.data.table import Table, UnknownTexts, unknown_remarks
from p4sgd.host.errors import UserError, listed
from p4sgd.host.estimators.parameters import value_errors, warn

NAME = "X"
"""Name of the samples, for messages and the model file."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Samples as rows of a table, float64 (samples, columns): `p4sgd.host.data.table.Table.rows`."""

    rows: npt.NDArray[np.float64]
    table: Table

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape


def opened(X: Any) -> Any:
    """Samples whose rows are there: `ValueError` for a lazy frame. A part of a table of pyarrow becomes a table."""
    if hasattr(X, "collect") and not hasattr(X, "shape"):
        raise ValueError(f"X is a {type(X).__name__}, whose rows are not there yet: give what collect() returns")
    pyarrow = sys.modules.get("pyarrow")
    return X if pyarrow is None or not isinstance(X, pyarrow.RecordBatch) else pyarrow.Table.from_batches([X])


def as_table(X: Any, *, numbers: bool) -> Any:
    """A table of pyarrow, or a DataFrame of whatever library as one.

    ``None`` if X is something else, or without ``numbers`` a frame of pandas that has nothing else, and may be sparse.
    """
    if not hasattr(X, "columns") or len(getattr(X, "shape", ())) != 2:
        return None
    if hasattr(X, "iloc") and not X.columns.is_unique:
        twice = list(map(str, X.columns[X.columns.duplicated()].unique()))
        raise ValueError(f"X: several columns are called {listed(twice, 5)}: give each a name of its own")
    if not numbers and hasattr(X, "iloc") and all(dtype.kind in "iuf" for dtype in X.dtypes):
        return None
    import pyarrow as pa

    if hasattr(X, "iloc"):
        X = X.copy(deep=False)
        for name, dtype in X.dtypes.items():  # what pyarrow knows nothing of
            if hasattr(dtype, "categories") and dtype.categories.dtype.kind == "O":  # ranges, for example
                X[name] = X[name].cat.rename_categories(str)
            elif hasattr(dtype, "fill_value"):
                X[name] = X[name].sparse.to_dense()
    try:
        return pa.Table.from_pandas(X, preserve_index=False) if hasattr(X, "iloc") else pa.table(X)
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"X: a column has neither numbers nor texts alone: {error}") from error


def decoded(columns: Any) -> Any:
    """Columns of pyarrow with texts in place of those of polars, for which it has few functions."""
    from pyarrow import DictionaryArray, chunked_array, large_string, types

    text, plain = large_string(), []
    for column in columns.columns:
        if types.is_dictionary(column.type) and types.is_string_view(column.type.value_type):
            parts = [(part.indices, part.dictionary.cast(text)) for part in column.chunks]
            column = chunked_array([DictionaryArray.from_arrays(*part).dictionary_decode() for part in parts], text)
        plain.append(column.cast(text) if types.is_string_view(column.type) else column)
    return type(columns).from_arrays(plain, columns.column_names)


def is_plain(columns: Any) -> bool:
    """Whether a table of pyarrow has nothing but integers and floating-point numbers."""
    from pyarrow import types

    return all(types.is_integer(kind) or types.is_floating(kind) for kind in columns.schema.types)


def rows_of(columns: Any, known: Table | None, *, missing: str, dates: str, warns: bool = True) -> Rows:
    """The rows of what `as_table` returns, as those of a ``known`` table, which warns of texts that it does not know.
    Without one the columns are surveyed first, with ``missing`` one of `p4sgd.host.data.encoding.FILLINGS` and
    ``dates`` one of `p4sgd.host.data.dates.DATES`.

    Raises `ValueError` for the first value that its column cannot have.
    """
    names, table = columns.column_names, known
    if isinstance(known, TableEncoding):
        missing = known.missing
    elif known is not None:
        missing = "error"
    for name, kind in zip(names, columns.schema.types, strict=True):
        if not suits(kind):
            raise ValueError(f"X, column {name}: holds {kind}, neither numbers, texts nor dates: leave it out")

    def told(cell: CellError) -> UserError:
        return cell.described(f"{NAME}, row {cell.row + 1}, column {names[cell.column]}")

    arrays, unknown = [column.combine_chunks() for column in columns.columns], UnknownTexts()
    with value_errors():
        if table is None:
            survey = Survey(names, len(names), dates=dates)
            survey.add(arrays, 0)
            table = survey.finish(NAME, gaps=missing != "error", tell=told)
            for remark in survey.remarks:
                warn(remark)
        try:
            rows = table.rows(arrays, unknown, gaps=missing != "error")
        except CellError as error:
            raise told(error) from None
    for remark in unknown_remarks(unknown) if warns else ():
        warn(remark)
    return Rows(rows, table)
