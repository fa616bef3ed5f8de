"""Cells of tables: values of a column, which the formats give as pyarrow arrays, as numbers or texts, and gaps."""

from collections.abc import Mapping, Set
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.raw_labels import MISSING, number
from p4sgd.host.errors import UserError, on_command_line, option, shortened

TRUTH = {"false": 0.0, "true": 1.0}
"""Texts of booleans, which are numbers, in lower case."""


class CellError(Exception):
    """A value that a column cannot have; the reader of the format knows its place in the file.

    ``row`` counts from 0 among those that are read, ``column`` among the features. ``text`` is the value as it stands,
    ``None`` if it is null, and ``gap`` tells whether it is missing.
    """

    def __init__(self, row: int, column: int, text: str | None, *, gap: bool) -> None:
        super().__init__(row, column, text, gap)
        self.row, self.column, self.text, self.gap = row, column, text, gap

    def described(self, place: str, unit: str = "row", *, weight: bool = False) -> UserError:
        """The error for the user; a sample is in a ``unit``, a line or a row."""
        if self.text is None or self.gap:
            shown = f" ({self.text})" if self.text else ""
            more = "" if weight else f", or train with {option('missing', 'mean')} or {option('missing', 'indicator')}"
            return UserError(f"{place}: the value is missing{shown}: fill it in or leave the {unit} out{more}")
        value = number(self.text)
        if weight and value is not None and value < 0:
            return UserError(f"{place}: the weight is {value:g}: it must be at least 0")
        if value is not None:
            return UserError(f"{place}: the value is {self.text}: it must be finite")
        remedy = "write a decimal point"
        if not has_decimal_comma(self.text):
            remedy = on_command_line(
                "correct it, give --label-column if this column is the label, or leave it out with --ignore-column",
                "correct it or leave it out",
            )
        return UserError(f"{place}: {shortened(self.text)} is not a number: {remedy}")


class Cells:
    """The cells of a column in a part of a table, a pyarrow array.

    ``gap_texts`` are texts that mean a missing value, as nulls and NaN do: `MISSING` in a format without nulls.
    """

    def __init__(self, array: Any, gap_texts: Set[str] = frozenset()) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_null(array.type):
            array = array.cast(pa.string())
        self.are_truths = pa.types.is_boolean(array.type)
        """Whether the format says that the column has booleans."""
        self.are_numbers = not is_text(array.type)
        """Whether it says that the column has numbers or booleans."""
        if pa.types.is_string_view(array.type):
            array = array.cast(pa.large_string())  # of which pyarrow knows more functions
        self.gap_texts = gap_texts
        self._array = array if self.are_numbers else pc.utf8_trim_whitespace(array)

    @cached_property
    def _missing(self) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        return pc.is_in(self._array, value_set=pa.array([*self.gap_texts, None], self._array.type))

    @cached_property
    def gaps(self) -> npt.NDArray[np.bool_]:
        gaps: npt.NDArray[np.bool_]
        gaps = np.isnan(self.numbers) if self.are_numbers else self._missing.to_numpy(zero_copy_only=False)
        return gaps

    @cached_property
    def numbers(self) -> npt.NDArray[np.float64]:
        """The cells as numbers, NaN for gaps and for texts that are none: float64 (rows,)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = self._array
        if not self.are_numbers:
            known = pc.if_else(self._missing, pa.scalar(None, known.type), known)
        try:
            found: npt.NDArray[np.float64] = known.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            return found
        except pa.ArrowInvalid:
            return self._parsed({})

    @cached_property
    def truths(self) -> npt.NDArray[np.float64]:
        return self.numbers if self.are_numbers else self._parsed(TRUTH)

    def _parsed(self, words: Mapping[str, float]) -> npt.NDArray[np.float64]:
        texts, which = self.encoded
        parsed = [words.get(text.lower(), np.nan) if (value := number(text)) is None else value for text in texts]
        found = np.array([*parsed, np.nan])[which]
        found[self.gaps] = np.nan
        return found

    @cached_property
    def encoded(self) -> tuple[list[str], npt.NDArray[np.intp]]:
        """The different texts, and for each row the place of its text; of a null, the place after the last one."""
        import pyarrow as pa

        found = (self._array.cast(pa.string()) if self.are_numbers else self._array).dictionary_encode()
        values = found.dictionary.to_pylist()
        return values, found.indices.fill_null(len(values)).to_numpy().astype(np.intp)

    def text(self, row: int) -> str | None:
        value = self._array[row].as_py()
        return None if value is None else str(value)

    def error(self, where: npt.NDArray[np.bool_], column: int = 0) -> CellError:
        """The error of the first of some cells, (rows,)."""
        row = int(where.argmax())
        return CellError(row, column, self.text(row), gap=bool(self.gaps[row]))


def weights_of(array: Any) -> npt.NDArray[np.float64]:
    """Weights of samples in a pyarrow array of numbers or texts, float64 (rows,); `CellError` for the first below 0."""
    cells = Cells(array, MISSING)
    strange = ~(np.isfinite(cells.numbers) & (cells.numbers >= 0))
    if strange.any():
        raise cells.error(strange)
    return cells.numbers


def has_decimal_comma(text: str) -> bool:
    """Whether a text would be a number if it had a decimal point in place of a comma."""
    return "," in text and number(text.replace(",", ".")) is not None


def plain_type(kind: Any) -> Any:
    """A type of pyarrow without dictionary encoding."""
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def is_text(kind: Any) -> bool:
    """Whether a type of pyarrow is that of texts."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def suits(kind: Any) -> bool:
    """Whether a column of this type of pyarrow, without dictionary encoding, holds numbers, booleans, texts or nothing.

    Where all values are missing, as in a table with few rows, there is no telling what else it would hold.
    """
    from pyarrow import types

    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    return numeric or is_text(kind) or types.is_null(kind)
