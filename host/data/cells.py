"""Values as they stand in files: numbers, texts, gaps and labels. Tables are pyarrow arrays."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError, on_command_line, option, shortened

MISSING = frozenset(
    {"", "#N/A", "#NA", "-NaN", "-nan", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "na", "nan", "null"}
)
"""Texts that mean a missing value."""

TRUTH = {"false": 0.0, "true": 1.0}
"""Texts of booleans, which are numbers, in lower case."""

EXACT = 1 << 53
"""From here on float64 does not represent every integer."""


def number(text: str | bytes) -> float | None:
    """The number that a text stands for, also NaN or infinite; ``None`` if it is none, such as ``1_0``."""
    underscored = "_" in text if isinstance(text, str) else b"_" in text
    try:
        return None if underscored else float(text)
    except ValueError:
        return None


def has_decimal_comma(text: str) -> bool:
    """Whether a text would be a number if it had a decimal point in place of a comma."""
    return "," in text and number(text.replace(",", ".")) is not None


def check_exact(text: str, name: str = "") -> None:
    """Refuse an integer of 2^53 or more, which float64 may not tell from others; ``text`` is any number."""
    if re.fullmatch(r"[+-]?\d+", text) and abs(float(text)) >= EXACT:
        place = f"{name}: " if name else ""
        raise UserError(f"{place}the label {text} is too large to be told from others: use labels below 2^53")


@dataclass(frozen=True, eq=False)
class RawLabels:
    """Labels of some samples: ``values`` (samples,) are numbers of any type, or intp indices into ``texts``, which are
    distinct; ``None`` if the labels are numbers."""

    values: npt.NDArray[Any]
    texts: Sequence[str] | None = None

    @classmethod
    def from_column(cls, column: Any) -> Self:
        encoded = column.dictionary_encode()
        # Not to_numpy, which imports pandas where that is installed, for a second.
        return cls(np.from_dlpack(encoded.indices).astype(np.intp), encoded.dictionary.to_pylist())

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        """Concatenate labels, which must be all numbers or all texts."""
        parts = [part for part in parts if part.values.size]
        if not parts:
            return cls(np.empty(0))
        if parts[0].texts is None:
            return cls(np.concatenate([part.values for part in parts]))
        places: dict[str, int] = {}
        joined = []
        for part in parts:
            assert part.texts is not None
            joined.append(np.array([places.setdefault(text, len(places)) for text in part.texts], np.intp)[part.values])
        return cls(np.concatenate(joined), list(places))

    def encode(self, name: str) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
        """Labels as float64 (samples,), and the names of the classes, empty if all labels are numbers.

        Names are numbered from 0 in alphabetical order. Raises `UserError`, with the ``name`` of the source, if a label
        is missing or is too large an integer, or if some are numbers and others are not.
        """
        if self.texts is None:
            if self.values.dtype.kind in "iu" and self.values.size:
                check_exact(str(self.values.min()), name)
                check_exact(str(self.values.max()), name)
            return self.values.astype(np.float64), ()
        texts = [text.strip() for text in self.texts]
        missing = [place for place, text in enumerate(texts) if text in MISSING]
        if missing:
            sample = int(np.isin(self.values, missing).argmax())
            raise UserError(f"{name}: the label of sample {sample + 1} is missing: leave that sample out")
        numbers = [number(text) for text in texts]
        words = [text for text, value in zip(texts, numbers, strict=True) if value is None]
        if not words:
            for text in texts:
                check_exact(text, name)
            return np.array(numbers, dtype=np.float64)[self.values], ()
        if len(words) < len(texts):
            raise UserError(f"{name}: the label {words[0]!r} is not a number, unlike others: correct it")
        known = {text: float(place) for place, text in enumerate(sorted(set(words)))}
        return np.array([known[text] for text in texts])[self.values], tuple(known)


class CellError(Exception):
    """A value that a column of a table cannot have; the reader of the format knows its place in the file.

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
    ``are_numbers`` and ``are_truths`` tell that the format says that these are numbers or booleans, and booleans.
    """

    def __init__(self, array: Any, gap_texts: Set[str] = frozenset()) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_null(array.type):
            array = array.cast(pa.string())
        self.are_truths = pa.types.is_boolean(array.type)
        self.are_numbers = not is_text(array.type)
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

    @property
    def truths(self) -> npt.NDArray[np.float64]:
        """`numbers`, among which texts may be true or false."""
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


def plain_type(kind: Any) -> Any:
    """A type of pyarrow without dictionary encoding."""
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def is_text(kind: Any) -> bool:
    """Whether a type of pyarrow is that of texts."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def suits(kind: Any) -> bool:
    """Whether a column of this plain type of pyarrow holds numbers, booleans, texts or, if all are missing, nothing."""
    from pyarrow import types

    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)
    return numeric or is_text(kind) or types.is_null(kind)
