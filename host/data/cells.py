"""Values as they stand in files: numbers, texts, gaps and labels. Tables are pyarrow arrays."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dates import dates_of
from p4sgd.host.data.notation import (
    MISSING,
    PLAIN,
    TYPED,
    Notation,
    has_unit,
    number,
    other_notations,
    ways_to_read,
)
from p4sgd.host.data.sample_numbers import RULES
from p4sgd.host.data.sample_numbers import suits as suits_role
from p4sgd.host.errors import UserError, on_command_line, option, shortened

TRUTH = {"false": 0.0, "true": 1.0}
"""Texts of booleans, which are numbers, in lower case."""

EXACT = 1 << 53
"""From here on float64 does not represent every integer."""


TOO_LARGE = "too large to be told from others: use labels below 2^53"


def is_too_large(text: str) -> bool:
    """Whether a number is an integer that float64 may not tell from others."""
    return re.fullmatch(r"[+-]?\d+", text) is not None and abs(float(text)) >= EXACT


class LabelError(UserError):
    """A label that is none, of a ``sample`` from 0, of which the reader of the format may know the place."""

    def __init__(self, sample: int, problem: str) -> None:
        super().__init__(f"the label of sample {sample + 1} {problem}")
        self.sample, self.problem = sample, problem


@dataclass(frozen=True, eq=False)
class RawLabels:
    """Labels of some samples: ``values`` (samples,) are numbers of any type, or intp indices into ``texts``, which are
    distinct; ``None`` if the labels are numbers."""

    values: npt.NDArray[Any]
    texts: Sequence[str] | None = None

    @classmethod
    def from_column(cls, column: Any, notation: Notation = PLAIN) -> Self:
        """Those in a pyarrow array of texts, of which gaps become empty, and numbers are as Python writes them."""
        encoded = column.dictionary_encode()
        texts, places = notation.respell_labels(encoded.dictionary.to_pylist()), encoded.indices
        if places.null_count:
            places, texts = places.fill_null(len(texts)), [*texts, ""]
        # Not to_numpy, which imports pandas where that is installed, for a second.
        return cls(np.from_dlpack(places).astype(np.intp), texts)

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

    def encode(self) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
        """Labels as float64 (samples,), and the names of the classes, empty if all labels are numbers.

        Names are numbered from 0 in alphabetical order. Raises `LabelError` if a label is missing, infinite, or too
        large an integer, or if some are numbers and others are not.
        """
        missing, infinite = "is missing: leave that sample out", ": it must be finite"
        if self.texts is None:
            with np.errstate(invalid="ignore"):  # NaNs that signal
                values = self.values.astype(np.float64)
            self._refuse(np.isnan(values), missing, shown=False)
            self._refuse(np.isinf(values), infinite)
            self._refuse((np.abs(values) >= EXACT) & (self.values.dtype.kind in "iu"), f", {TOO_LARGE}")
            return values, ()
        texts = [text.strip() for text in self.texts]
        self._refuse([text in MISSING for text in texts], missing, shown=False)
        found = list(map(number, texts))
        words = np.array([value is None for value in found])
        numbers: npt.NDArray[np.float64] = np.array(found, np.float64)  # NaN for words
        self._refuse(~(words | np.isfinite(numbers)), infinite)
        self._refuse(list(map(is_too_large, texts)), f", {TOO_LARGE}")
        if not words.any():
            return numbers[self.values], ()
        first = texts[self.values[0]]
        self._refuse(words != words[self.values[0]], f", but {first!r} before: name all, or number all")
        if all(map(other_notations, texts)):
            self._refuse(words, f", which is not a number: say {ways_to_read(first)}")
        if all(map(has_unit, texts)):
            self._refuse(words, ", which is not a number: write it without a unit")
        known = {text: float(place) for place, text in enumerate(sorted(set(texts)))}
        return np.array([known[text] for text in texts])[self.values], tuple(known)

    def _refuse(self, wrong: npt.ArrayLike, problem: str, *, shown: bool = True) -> None:
        """Raise `LabelError` for the first of some labels, bool (samples,) or of texts (texts,)."""
        which = np.asarray(wrong, np.bool_)
        places = np.argwhere(which if self.texts is None else which[self.values])
        if places.size:
            label = self.values[tuple(places[0])]
            label = label if self.texts is None else repr(self.texts[label].strip())
            raise LabelError(int(places[0][0]), f"is {label}{problem}" if shown else problem)


class CellError(Exception):
    """A value that a column of a table cannot have; the reader of the format knows its place in the file.

    ``row`` counts from 0 among those that are read, ``column`` among the features. ``text`` is the value as it stands,
    ``None`` if it is null, and ``gap`` tells whether it is missing. ``order`` is that of the dates that belong there.
    """

    def __init__(self, row: int, column: int, text: str | None, *, gap: bool, notation: Notation = TYPED) -> None:
        super().__init__(row, column, text, gap)
        self.row, self.column, self.text, self.gap, self.notation = row, column, text, gap, notation
        self.order = ""

    def described(self, place: str, unit: str = "row", role: str | None = None) -> UserError:
        """The error for the user; a sample is in a ``unit``, a line or a row. A value that is of no feature has a
        ``role``, one of `p4sgd.host.data.sample_numbers.ROLES`."""
        if self.text is None or self.gap:
            shown = f" ({self.text})" if self.text else ""
            more = "" if role else f", or train with {option('missing', 'mean')} or {option('missing', 'indicator')}"
            return UserError(f"{place}: the value is missing{shown}: fill it in or leave the {unit} out{more}")
        if self.order:
            if len(set(dates_of(self.text).values())) > 1:
                shown = f"day and month of {self.text} may be either way round"
                return UserError(f"{place}: {shown}: write the year first")
            form = "-".join({"y": "2024", "m": "03", "d": "31"}[part] for part in self.order)
            return UserError(f"{place}: {shortened(self.text)} is not a date such as {form}: correct it")
        value = self.notation.number(self.text)
        if role and value is not None and np.isfinite(value):
            return UserError(f"{place}: the {role} is {value:g}: it must be {RULES[role]}")
        if value is not None:
            return UserError(f"{place}: the value is {self.text}: it must be finite")
        if role:
            remedy = on_command_line(f"correct it, or name another column with --{role}-column", "correct it")
            return UserError(f"{place}: the {role} {shortened(self.text)} is not a number: {remedy}")
        ways = ways_to_read(self.text, self.notation)
        remedy = on_command_line(
            f"say {ways}, or --categorical if the column has texts"
            if ways
            else "correct it, or say --missing-values if it is a gap, --categorical if the column has texts, "
            "--label-column if it is the label, --ignore-column to leave it out",
            "correct it or leave it out",
        )
        return UserError(f"{place}: {shortened(self.text)} is not a number: {remedy}")


class Cells:
    """The cells of a column in a part of a table, a pyarrow array.

    ``notation`` tells how texts write numbers and gaps, which nulls and NaN are in any case. ``are_numbers`` and
    ``are_truths`` tell that the format says that these are numbers or booleans, and booleans; ``are_texts`` that it
    says that they are categories: of a dictionary, whatever its values are, or with `TYPED` notation texts. ``array``
    has the cells as numbers, or as texts without blanks around them.
    """

    def __init__(self, array: Any, notation: Notation = TYPED) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind, self.notation = array.type, notation
        self.are_numbers, self.are_truths = is_numeric(kind), pa.types.is_boolean(kind)
        self.are_texts = pa.types.is_dictionary(kind) or (not self.are_numbers and not notation.missing)
        if not self.are_numbers and not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
            array = _texts(array)
        self.array = array if self.are_numbers else pc.utf8_trim_whitespace(array)

    @cached_property
    def _missing(self) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        return pc.is_in(self.array, value_set=pa.array([*self.notation.missing, None], self.array.type))

    @cached_property
    def gaps(self) -> npt.NDArray[np.bool_]:
        gaps: npt.NDArray[np.bool_]
        gaps = np.isnan(self.numbers) if self.are_numbers else self._missing.to_numpy(zero_copy_only=False)
        return gaps

    @property
    def has_codes(self) -> bool:
        """Whether texts are digits after a 0, as 01001 is."""
        import pyarrow.compute as pc

        return not (self.are_numbers or self.are_texts) and bool(
            pc.any(pc.match_substring_regex(self.array, r"^0\d+$")).as_py()
        )

    @cached_property
    def numbers(self) -> npt.NDArray[np.float64]:
        """The cells as numbers, NaN for gaps and for texts that are none: float64 (rows,)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = self.array
        if not self.are_numbers:
            known = pc.if_else(self._missing, pa.scalar(None, known.type), known)
            if not self.notation.plain:
                matched = pc.match_substring_regex(known, self.notation.pattern)
                if self.notation.thousands:
                    known = pc.replace_substring_regex(known, self.notation.group, "")
                known = pc.replace_substring(known, self.notation.decimal, PLAIN.decimal)
                known = pc.if_else(matched, known, pa.scalar(None, known.type))
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
        found = map(self.notation.number, texts)
        parsed = [
            words.get(text.lower(), np.nan) if value is None else value
            for text, value in zip(texts, found, strict=True)
        ]
        cells = np.array([*parsed, np.nan])[which]
        cells[self.gaps] = np.nan
        return cells

    @cached_property
    def encoded(self) -> tuple[list[str], npt.NDArray[np.intp]]:
        """The different texts, and for each row the place of its text; of a null, the place after the last one."""
        found = (_texts(self.array) if self.are_numbers else self.array).dictionary_encode()
        values = found.dictionary.to_pylist()
        return values, found.indices.fill_null(len(values)).to_numpy().astype(np.intp)

    @property
    def texts(self) -> list[str | None]:
        """The cells as texts."""
        texts: list[str | None] = (_texts(self.array) if self.are_numbers else self.array).to_pylist()
        return texts

    def text(self, row: int) -> str | None:
        value = self.array[row].as_py()
        return None if value is None else str(value)

    def error(self, where: npt.NDArray[np.bool_], column: int = 0) -> CellError:
        """The error of the first of some cells, (rows,)."""
        row = int(where.argmax())
        return CellError(row, column, self.text(row), gap=bool(self.gaps[row]), notation=self.notation)


def numbers_of(array: Any, role: str, notation: Notation = PLAIN) -> npt.NDArray[np.float64]:
    """Numbers of samples in a pyarrow array of numbers or texts, float64 (rows,); `CellError` for the first that does
    not suit its role."""
    cells = Cells(array, notation)
    strange = ~suits_role(cells.numbers, role)
    if strange.any():
        raise cells.error(strange)
    return cells.numbers


def is_numeric(kind: Any) -> bool:
    """Whether a type of pyarrow is that of numbers or booleans."""
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind))


def suits(kind: Any) -> bool:
    """Whether a column of this type of pyarrow holds numbers, booleans, texts, dates or, if all are missing, nothing;
    or is a dictionary of these."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return is_numeric(kind) or text or types.is_date(kind) or types.is_timestamp(kind) or types.is_null(kind)


def _texts(array: Any) -> Any:
    """Any values as texts: whole numbers without a point, dates without a time of 0:00, times as on the clock; NaN
    is null."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if types.is_null(array.type) or types.is_string_view(array.type):
        return array.cast(pa.large_string())  # of which pyarrow knows more functions
    encoded = array if types.is_dictionary(array.type) else array.dictionary_encode()
    values = encoded.dictionary
    if types.is_timestamp(values.type) and values.type.tz is not None:
        values = pc.local_timestamp(values)
    if types.is_temporal(values.type):
        texts = pc.replace_substring_regex(values.cast(pa.string()), r"( 00:00:00)?(\.0+)?$", "").cast(
            pa.large_string()
        )
    else:
        texts = pa.array([_text(value) for value in values.to_pylist()], pa.large_string())
    return pa.DictionaryArray.from_arrays(encoded.indices, texts).dictionary_decode()


def _text(value: Any) -> str | None:
    if isinstance(value, float):
        return None if value != value else str(int(value)) if value.is_integer() else str(value)
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
