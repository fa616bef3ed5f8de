"""DataFrames as tables, whose texts, booleans and gaps become features."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import CellError, is_text, plain_type, suits
from p4sgd.host.data.encoding import TableEncoding
from p4sgd.host.data.survey import Survey
from p4sgd.host.data.table import Table, UnknownTexts, unknown_remarks
from p4sgd.host.errors import UserError
from p4sgd.host.estimators.parameters import value_errors

NAME = "X"
"""Name of the samples, for messages and the model file."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Samples as rows of a table, float64 (samples, columns): `p4sgd.host.data.table.Table.rows`."""

    rows: npt.NDArray[np.float64]
    table: Table

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.rows.shape


def as_table(X: Any, *, numbers: bool) -> Any:
    """A DataFrame, of whatever library, as a table of pyarrow.

    ``None`` if X is something else, or without ``numbers`` a frame of pandas that has nothing else, and may be sparse.
    """
    if not hasattr(X, "columns") or len(getattr(X, "shape", ())) != 2:
        return None
    if not numbers and hasattr(X, "iloc") and all(dtype.kind in "iuf" for dtype in X.dtypes):
        return None
    import pyarrow as pa

    try:
        return pa.Table.from_pandas(X, preserve_index=False) if hasattr(X, "iloc") else pa.table(X)
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"X: a column has neither numbers nor texts alone: {error}") from error


def has_texts(columns: Any) -> bool:
    """Whether a table of pyarrow has columns of texts, or of booleans."""
    from pyarrow import types

    return any(is_text(kind) or types.is_boolean(kind) for kind in map(plain_type, columns.schema.types))


def rows_of(columns: Any, encoding: TableEncoding | None, missing: str) -> Rows:
    """The rows of what `as_table` returns, with the features of an encoding; without one the columns are surveyed
    first, and ``missing`` is one of `p4sgd.host.data.encoding.FILLINGS`.

    Raises `ValueError` for the first value that its column cannot have.
    """
    names, gaps = columns.column_names, (missing if encoding is None else encoding.missing) != "error"
    table: Table | None = encoding
    for name, kind in zip(names, map(plain_type, columns.schema.types), strict=True):
        if not suits(kind):
            raise ValueError(f"X, column {name}: holds {kind}, neither numbers nor texts: leave it out")

    def told(cell: CellError) -> UserError:
        return cell.described(f"{NAME}, row {cell.row + 1}, column {names[cell.column]}")

    arrays, unknown = [column.combine_chunks() for column in columns.columns], UnknownTexts()
    with value_errors():
        if table is None:
            survey = Survey(names, len(names))
            survey.add(arrays, 0)
            table = survey.finish(NAME, gaps=gaps, tell=told)
        try:
            rows = table.rows(arrays, unknown, gaps=gaps)
        except CellError as error:
            raise told(error) from None
    for remark in unknown_remarks([unknown]):
        warnings.warn(remark, stacklevel=5)
    return Rows(rows, table)
