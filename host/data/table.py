"""Tables with text and gaps: what their columns hold, and the features that are made of them.

A reader first finds out what each column holds (`Survey`): numbers, or texts. Rows of the table are then float64:
numbers as they are, of texts their place among the column's texts (`Table`), NaN for gaps. Such rows are shuffled,
shared among ranks and sorted into buckets like any others. The training rows decide which features there are
(`EncodingFit`), and a `TableEncoding` makes these of the rows of any table with the same columns. The model file has
it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy  # which imports scipy.sparse at its first use

from p4sgd.host.data.dataset import Dataset, Features, FeatureSpace
from p4sgd.host.data.labels import MISSING, number
from p4sgd.host.data.statistics import is_sparse
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import UserError, listed, shortened

__all__ = [
    "FILLINGS",
    "MOST_TEXTS",
    "CellError",
    "Column",
    "EncodingFit",
    "RowNumbers",
    "Survey",
    "Table",
    "TableEncoding",
    "UnknownTexts",
    "encode",
    "has_gaps",
    "is_text",
    "space_from_json",
    "space_to_json",
    "suits",
    "weights_of",
]

FILLINGS = ("error", "mean", "indicator")
"""What is done about missing values."""

MOST_TEXTS = 1000
"""Most different texts of a column. Names, tickets and dates have more in all but small tables, and the weight of each
would be learned from few samples. Each text is a column of the image: without a limit a mistake could fill the memory.
"""

_TRUTH = {"false": 0.0, "true": 1.0}
"""Texts of booleans, which are numbers, in lower case."""

_GAP = "missing"
"""What stands for a gap in the name of a feature."""

_UNKNOWN = -1
"""The place of a text that is not among those of a column."""

_DISTINCT = 0.5
"""A column of more different texts than this part of the samples tells samples apart and does not describe them."""

_FEW = 20
"""Least different texts of such a column."""

_LEAST_ROWS = 10
"""Rows from which on numbers in order are no coincidence."""

_UNIT = 1126
"""Every float64 is a multiple of 2^-1074, and with a mantissa of 53 bits an integer times 2^-1126 or more."""

_BLOCK_VALUES = 1 << 18
"""Values that are added up at once; columns have fewer than 2^26 rows then, as `_exact_sum` needs."""

_SHOWN = 5
"""Most columns that a message names."""


class CellError(Exception):
    """A value that a column cannot have; the reader of the format knows where it is.

    Parameters
    ----------
    row, column
        Its row among those of this rank and its column among the features, from 0.
    text
        The value as it stands; for a gap ``None``, an empty text or one that means a missing value.
    """

    def __init__(self, row: int, column: int, text: str | None) -> None:
        super().__init__(row, column, text)
        self.row, self.column, self.text = row, column, text

    def told(self, place: str, unit: str = "row", *, weight: bool = False) -> UserError:
        """The error for the user; ``unit`` is what holds a sample, a line or a row."""
        if self.text is None or self.text in MISSING:
            shown = f" ({self.text})" if self.text else ""
            more = "" if weight else ", or train with --missing mean or --missing indicator"
            return UserError(f"{place}: the value is missing{shown}: fill it in or leave the {unit} out{more}")
        value = number(self.text)
        if weight and value is not None and value < 0:
            return UserError(f"{place}: the weight is {value:g}: it must be at least 0")
        if value is not None:
            return UserError(f"{place}: the value is {self.text}: it must be finite")
        comma = "," in self.text and number(self.text.replace(",", ".")) is not None
        remedy = (
            "write a decimal point"
            if comma
            else "correct it, give --label-column if this column is the label, or leave it out with --ignore-column"
        )
        return UserError(f"{place}: {shortened(self.text)} is not a number: {remedy}")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name
        Its header; empty if there is none.
    values
        Its texts in alphabetical order; ``None`` if it holds numbers.
    truth
        Whether the numbers may be written as true and false, in upper or lower case.
    mean
        Of numbers in an encoding: what stands for a gap; ``None`` if gaps are refused.
    gaps
        Whether values are missing; in an encoding, whether gaps have a feature of their own.
    """

    name: str = ""
    values: tuple[str, ...] | None = None
    truth: bool = False
    mean: float | None = None
    gaps: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of texts: what there is a feature for, unless there are two, which are told apart by one feature."""
        return (*(self.values or ()), *((_GAP,) if self.gaps else ()))

    @property
    def features(self) -> int:
        """Number of its features."""
        if self.values is None:
            return 1 + self.gaps
        return 1 if len(self.kinds) == 2 else len(self.kinds)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each text."""
        return {text: place for place, text in enumerate(self.values or ())}


class UnknownTexts:
    """Texts that a model does not know, counted while a table is read: by column, how many, and one of them."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[int, str]] = {}

    def add(self, column: str, count: int, example: str) -> None:
        """Count some more."""
        before, first = self.found.get(column, (0, example))
        self.found[column] = (before + count, first)

    def remarks(self, ranks: Communicator) -> tuple[str, ...]:
        """What the user should know, with what all ranks have found."""
        joined = UnknownTexts()
        for part in ranks.all_gather(self.found):
            for column, (count, example) in part.items():
                joined.add(column, count, example)
        return tuple(
            f"{column}: {count:,} value{'s' * (count > 1)} that the model does not know, such as {shortened(example)}: "
            f"taken for none of those that it knows"
            for column, (count, example) in joined.found.items()
        )


@dataclass(frozen=True)
class Table:
    """What the columns of a table hold.

    Parameters
    ----------
    columns
        The columns that are features.
    """

    columns: tuple[Column, ...]

    @classmethod
    def of_numbers(cls, names: Sequence[str], count: int) -> Self:
        """A table of numbers; ``names`` are empty if there is no header."""
        return cls(tuple(map(Column, names)) if names else (Column(),) * count)

    @property
    def plain(self) -> bool:
        """Whether there are only numbers that are written as such."""
        return all(column.values is None and not column.truth for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The headers; empty if there are none."""
        names = tuple(column.name for column in self.columns)
        return names if any(names) else ()

    def widest(self, missing: str) -> "TableEncoding":
        """An encoding with at least the features that any training rows call for; ``missing`` is one of `FILLINGS`."""
        mean, told = None if missing == "error" else 0.0, missing == "indicator"
        return TableEncoding(
            tuple(
                dataclasses.replace(column, mean=mean if column.values is None else None, gaps=told and column.gaps)
                for column in self.columns
            ),
            missing,
        )

    def label(self, place: int) -> str:
        """What a column is called."""
        return self.columns[place].name or f"feature {place + 1}"

    def to_json(self) -> list[dict[str, Any]]:
        """As JSON data, which preserve floats exactly."""
        return [dataclasses.asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> Self:
        """Undo `to_json`.

        Raises
        ------
        KeyError, TypeError, ValueError
            If something is missing or of the wrong type.
        """
        columns = []
        for each in data:
            texts, mean = each["values"], each["mean"]
            values = None if texts is None else tuple(map(str, texts))
            mean = None if mean is None else float(mean)
            columns.append(Column(str(each["name"]), values, bool(each["truth"]), mean, bool(each["gaps"])))
        return cls(tuple(columns))

    def rows(
        self, arrays: Sequence[Any], *, gaps: bool, unknown: UnknownTexts | None = None
    ) -> npt.NDArray[np.float64]:
        """Rows of the table as numbers.

        Parameters
        ----------
        arrays
            pyarrow arrays of these columns.
        gaps
            Whether values may be missing.
        unknown
            Takes note of texts that a column does not have, which become −1.

        Returns
        -------
        float64 (rows, columns).

        Raises
        ------
        CellError
            For the first value that its column cannot have.
        """
        made = np.empty((len(arrays[0]), len(self.columns)))
        everything = list(map(_Cells, arrays))
        for place, (column, cells) in enumerate(zip(self.columns, everything, strict=True)):
            if column.values is not None:
                made[:, place] = self._codes(place, cells, unknown)
            else:
                made[:, place] = cells.truths if column.truth else cells.numbers
        if np.isfinite(made).all():
            return made
        wrong: list[tuple[int, int, str | None]] = []
        for place, cells in enumerate(everything):
            strange = ~np.isfinite(made[:, place])
            if gaps:
                strange &= ~cells.gaps
            if strange.any():
                row = int(strange.argmax())
                wrong.append((row, place, cells.text(row)))
        if wrong:
            raise CellError(*min(wrong, key=lambda each: each[:2]))
        return made

    def _codes(self, place: int, cells: "_Cells", unknown: UnknownTexts | None) -> npt.NDArray[np.float64]:
        texts, which = cells.encoded
        known = self.columns[place].places
        codes = np.array([known.get(text, _UNKNOWN) for text in texts] + [np.nan], np.float64)
        if unknown is not None and (codes == _UNKNOWN).any():
            counts = np.bincount(which, minlength=codes.size)
            strange = [row for row in np.flatnonzero(codes == _UNKNOWN) if counts[row] and texts[row] not in MISSING]
            if strange:
                unknown.add(self.label(place), int(counts[strange].sum()), texts[strange[0]])
        result = codes[which]
        result[cells.gaps] = np.nan
        return result


class _Cells:
    """The cells of a column in a part of a table."""

    def __init__(self, array: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        self.are_truths = pa.types.is_boolean(array.type)
        """Whether the format says that the column has booleans."""
        self.are_numbers = not is_text(array.type)
        """Whether it says that the column has numbers or booleans."""
        if pa.types.is_string_view(array.type):
            array = array.cast(pa.large_string())  # of which pyarrow knows more functions
        self._array = array if self.are_numbers else pc.utf8_trim_whitespace(array)

    @cached_property
    def _missing(self) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        return pc.is_in(self._array, value_set=pa.array([*MISSING, None], self._array.type))

    @cached_property
    def gaps(self) -> npt.NDArray[np.bool_]:
        """Whether each value is missing: (rows,)."""
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
        """The same, where true and false are 1 and 0."""
        return self.numbers if self.are_numbers else self._parsed(_TRUTH)

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
        """A cell as text."""
        value = self._array[row].as_py()
        return None if value is None else str(value)


def weights_of(array: Any) -> npt.NDArray[np.float64]:
    """Weights of samples in a pyarrow array of numbers or texts: float64 (rows,).

    Raises
    ------
    CellError
        For the first that is no number of at least 0; its column does not matter.
    """
    cells = _Cells(array)
    strange = ~(np.isfinite(cells.numbers) & (cells.numbers >= 0))
    if strange.any():
        row = int(strange.argmax())
        raise CellError(row, 0, cells.text(row))
    return cells.numbers


def has_gaps(array: Any) -> bool:
    """Whether a value of a pyarrow array is missing."""
    return bool(_Cells(array).gaps.any())


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


# -- what a table holds ------------------------------------------------------------------------------------------------


@dataclass
class _Findings:
    """What is known of a column, so far or in all ranks.

    Parameters
    ----------
    numbers, texts
        Number of cells of each kind; gaps count as neither.
    values
        The different texts of all cells; ``None`` if they are too many.
    truths
        Whether the format says that these are booleans.
    text, gap, infinity
        Row and text of the first of each; ``None`` if there is none.
    """

    numbers: int = 0
    texts: int = 0
    values: set[str] | None = field(default_factory=set)
    truths: bool = False
    text: tuple[int, str | None] | None = None
    gap: tuple[int, str | None] | None = None
    infinity: tuple[int, str | None] | None = None

    @property
    def boolean(self) -> bool:
        """Whether all texts are true or false, or the format says so."""
        if self.numbers and self.texts:
            return False
        return self.truths or bool(self.values and all(text.lower() in _TRUTH for text in self.values))

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers: if not more cells are texts than are numbers, or all are true or false."""
        return self.texts <= self.numbers or self.boolean

    def add_values(self, values: Iterable[str] | None) -> None:
        """Add some texts to the different ones."""
        if self.values is not None:
            self.values = None if values is None else self.values.union(values)
            if self.values is not None and len(self.values) > MOST_TEXTS:
                self.values = None


class Survey:
    """Finds out what the columns of a table hold, from all rows of it.

    Parameters
    ----------
    names
        Headers of the columns; empty if there are none.
    count
        Number of columns.
    """

    def __init__(self, names: Sequence[str], count: int) -> None:
        self._names = tuple(names) or ("",) * count
        self._found = [_Findings() for _ in range(count)]
        self._rows = 0

    def add(self, arrays: Sequence[Any]) -> None:
        """Look at some rows: a pyarrow array for each column."""
        for found, array in zip(self._found, arrays, strict=True):
            self._add(found, _Cells(array))
        self._rows += len(arrays[0])

    def _add(self, found: _Findings, cells: _Cells) -> None:
        numbers, gaps = cells.numbers, cells.gaps
        texts = np.zeros_like(gaps)
        if not cells.are_numbers:
            known, which = cells.encoded if found.values is not None or np.isnan(numbers[~gaps]).any() else ([], None)
            if which is not None:
                strange = np.array([number(text) is None and text not in MISSING for text in known] + [False])
                texts = strange[which]
                found.add_values(text for text in known if text not in MISSING)
        found.truths |= cells.are_truths
        found.texts += int(texts.sum())
        found.numbers += int((~texts & ~gaps).sum())
        infinite = ~np.isfinite(numbers) & ~gaps & ~texts
        for name, where in (("text", texts), ("gap", gaps), ("infinity", infinite)):
            if getattr(found, name) is None and where.any():
                row = int(where.argmax())
                setattr(found, name, (self._rows + row, cells.text(row)))

    def finish(
        self, source: str, *, gaps: bool, tell: Callable[[CellError], UserError], ranks: Communicator = SINGLE_PROCESS
    ) -> Table:
        """What the columns hold, the same on all ranks.

        Parameters
        ----------
        source
            Name of the table, for messages.
        gaps
            Whether values may be missing.
        tell
            Makes the error of a cell of this rank.
        ranks
            The ranks, each of which has looked at its rows.

        Raises
        ------
        UserError
            For the first value that does not go with its column, on the rank that has it; or if a column has too many
            texts.
        """
        everywhere = ranks.all_gather(self._found)
        columns, wrong = [], []
        for place, name in enumerate(self._names):
            total = _Findings()
            parts = [found[place] for found in everywhere]
            for part in parts:
                total.numbers += part.numbers
                total.texts += part.texts
                total.truths |= part.truths
                total.add_values(part.values)
            missing = any(part.gap is not None for part in parts)
            for rank, part in enumerate(parts):
                strange = [part.gap if not gaps else None]
                if total.numeric:
                    strange += [part.infinity, None if total.boolean else part.text]
                wrong += [(rank, each[0], place, each[1]) for each in strange if each is not None]
            if total.numeric:
                columns.append(Column(name, truth=total.boolean, gaps=missing))
            elif total.values is not None:
                columns.append(Column(name, tuple(sorted(total.values)), gaps=missing))
            else:
                columns.append(Column(name, ()))
        if wrong:
            rank, row, place, text = min(wrong, key=lambda each: each[:3])
            if rank == ranks.rank:
                raise tell(CellError(row, place, text))
        for place, column in enumerate(columns):
            if column.values == ():
                known = Table(tuple(columns)).label(place)
                raise UserError(
                    f"{source}: {known} has more than {MOST_TEXTS:,} different texts, of which each would become a "
                    f"feature: leave it out with --ignore-column {column.name or 'NUMBER'}, or give it fewer texts"
                )
        return Table(tuple(columns))


class RowNumbers:
    """Looks for columns with the numbers of the rows, which a table has by mistake.

    Parameters
    ----------
    columns
        Number from 1 and header of each feature.
    """

    def __init__(self, columns: Sequence[tuple[int, str]]) -> None:
        self._columns = [(place, *each) for place, each in enumerate(columns) if _counts_rows(each[1])]
        self._fits = np.ones((2, len(self._columns)))
        self._rows = 0

    def add(self, rows: Features, first: int) -> None:
        """Look at some rows, of which ``first`` are before them in the table."""
        assert isinstance(rows, np.ndarray)
        self._rows = max(self._rows, first + rows.shape[0])
        for candidate, (place, _, _) in enumerate(self._columns):
            for begin in (0, 1):
                expected = np.arange(first + begin, first + begin + rows.shape[0])
                if self._fits[begin, candidate] and not np.array_equal(rows[:, place], expected):
                    self._fits[begin, candidate] = 0.0

    def remarks(self, ranks: Communicator = SINGLE_PROCESS) -> tuple[str, ...]:
        """What the user should know."""
        rows = max(ranks.all_gather(self._rows))
        fits = ranks.all_min(self._fits).max(axis=0) if self._columns else ()
        return tuple(
            f"column {column}{f' ({name})' * bool(name)} has the numbers of the rows and is taken for a feature: "
            f"--ignore-column {column} leaves it out"
            for (_, column, name), fit in zip(self._columns, fits, strict=True)
            if fit and rows >= _LEAST_ROWS
        )


def _counts_rows(name: str) -> bool:
    """Whether a column with this header may hold the numbers of the rows."""
    name = name.strip().lower()
    return name in ("", "index", "row", "rownames", "no", "nr", "unnamed: 0") or name.endswith("id")


# -- what a model makes of a table -------------------------------------------------------------------------------------


class EncodingFit:
    """Collects of the training rows what an encoding depends on. The result does not depend on how they are divided.

    Parameters
    ----------
    table
        What the columns hold.
    missing
        One of `FILLINGS`.
    """

    def __init__(self, table: Table, missing: str) -> None:
        self._table = table
        self._missing = missing
        # Of texts how many rows have each, of numbers how many are known; the last one counts gaps.
        self._counts = [np.zeros(1 + len(column.values or (0,)), np.int64) for column in table.columns]
        self._sums = [0] * len(table.columns)

    def add(self, rows: Features) -> None:
        """Take some training rows into account: float64 (rows, columns), as `Table.rows` gives them."""
        rows = _dense(rows)
        step = max(1, _BLOCK_VALUES // rows.shape[1])
        for first in range(0, rows.shape[0], step):
            self._add(rows[first : first + step])

    def _add(self, rows: npt.NDArray[np.float64]) -> None:
        for place, column in enumerate(self._table.columns):
            values, counts = rows[:, place], self._counts[place]
            gaps = np.isnan(values)
            known = values[~gaps]
            counts[-1] += int(gaps.sum())
            if column.values is not None:
                counts[:-1] += np.bincount(known.astype(np.intp), minlength=counts.size - 1)
            else:
                counts[0] += known.size
                if self._missing != "error":
                    self._sums[place] += _exact_sum(known)

    def finish(self, ranks: Communicator = SINGLE_PROCESS) -> "TableEncoding":
        """The encoding, from the rows of all ranks."""
        counts = np.split(ranks.all_sum(np.concatenate(self._counts)), np.cumsum([each.size for each in self._counts]))
        sums = list(map(sum, zip(*ranks.all_gather(self._sums), strict=True)))
        columns = []
        for column, count, total in zip(self._table.columns, counts[:-1], sums, strict=True):
            gaps = self._missing == "indicator" and bool(count[-1])
            if column.values is not None:
                kept = tuple(text for text, rows in zip(column.values, count[:-1].tolist(), strict=True) if rows)
                columns.append(Column(column.name, kept, gaps=gaps))
            else:
                mean = None if self._missing == "error" else _mean(total, int(count[0]))
                columns.append(Column(column.name, None, column.truth, mean, gaps))
        return TableEncoding(tuple(columns), self._missing)


def _exact_sum(values: npt.NDArray[np.float64]) -> int:
    """Σ values · 2^1126, an integer: sums of float64 would depend on the order and the division of the rows."""
    if not values.size:
        return 0
    mantissas, exponents = np.frexp(values)
    lowest = int(exponents.min())
    integers = (mantissas * 2.0**53).astype(np.int64)
    total = 0
    for part, shift in ((integers >> 27, 27), (integers & ((1 << 27) - 1), 0)):  # so that sums fit 53 bits
        sums = np.bincount(exponents - lowest, weights=part)
        total += sum(int(each) << (place + shift) for place, each in enumerate(sums.tolist()) if each)
    return total << (lowest - 53 + _UNIT)


def _mean(total: int, count: int) -> float:
    """The mean of so many numbers from `_exact_sum`, correctly rounded; 0 of none."""
    return total / (count << _UNIT) if count else 0.0


@dataclass(frozen=True)
class TableEncoding:
    """The features that a model makes of a table, fitted to its training rows.

    A column of numbers is a feature, and with the filling ``indicator`` another one, 0 or 1, says where values were
    missing. A column of texts becomes a feature for each text of the training rows, 1 for the samples that have it; of
    two texts the second one has the only feature. Other texts are all zeros, and so are gaps with the filling ``mean``.
    With ``indicator`` a gap is a text of its own.

    Parameters
    ----------
    columns
        The columns of the table that are features.
    missing
        One of `FILLINGS`.
    """

    columns: tuple[Column, ...]
    missing: str

    def __post_init__(self) -> None:
        if self.missing not in FILLINGS:
            raise ValueError(f"there is no filling {self.missing!r}")
        for column in self.columns:
            if column.values is not None and (
                list(column.values) != sorted(set(column.values)) or column.mean is not None
            ):
                raise ValueError(f"the texts of {column.name} are out of order")
            if column.values is None and (column.mean is None) != (self.missing == "error"):
                raise ValueError(f"{column.name} has the mean {column.mean}")
            if column.mean is not None and not math.isfinite(column.mean):
                raise ValueError(f"{column.name} has the mean {column.mean}")

    @cached_property
    def table(self) -> Table:
        """The columns, to read other tables."""
        return Table(self.columns)

    @property
    def count(self) -> int:
        """Number of features."""
        return sum(column.features for column in self.columns)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the features: that of their column, or ``column=text``."""
        named: list[str] = []
        for place, column in enumerate(self.columns):
            label = self.table.label(place)
            if column.values is None:
                named += [label, *([f"{label}={_GAP}"] if column.gaps else [])]
            else:
                named += [f"{label}={kind}" for kind in column.kinds[-column.features :] if column.features]
        return tuple(named)

    @property
    def stored(self) -> int:
        """Most values of a sample that are not 0."""
        return sum(1 + (column.values is None and column.gaps) for column in self.columns)

    @property
    def sparse(self) -> bool:
        """Whether features are a `csr_array`: if they are sparse whatever the rows are."""
        return is_sparse(self.stored, self.count)

    @property
    def space(self) -> FeatureSpace:
        """The features."""
        return FeatureSpace(self.count, self.names, encoding=self)

    def apply(self, rows: Features, table: Table | None = None) -> Features:
        """Features of some rows.

        Parameters
        ----------
        rows
            float64 (rows, columns), as `Table.rows` gives them.
        table
            The table that they are of; ``None`` if it is that of the encoding.

        Returns
        -------
        float64 (rows, features), or a `csr_array` if they are sparse.
        """
        rows = _dense(rows)
        places = np.full((rows.shape[0], self.stored), -1, np.int32)
        values = np.ones(places.shape)
        slot, first = 0, 0
        for number_of, column in enumerate(self.columns):
            cells = rows[:, number_of]
            gaps = np.isnan(cells)
            if column.values is None:
                places[:, slot] = first
                values[:, slot] = cells if column.mean is None else np.where(gaps, column.mean, cells)
                if column.gaps:
                    slot += 1
                    places[gaps, slot] = first + 1
            else:
                lookup = self._lookup(number_of, table or self.table)
                chosen = lookup[np.where(gaps, lookup.size - 2, cells).astype(np.intp)]
                places[:, slot] = np.where(chosen < 0, -1, first + chosen)
            slot += 1
            first += column.features
        used = places >= 0
        if not self.sparse:
            made = np.zeros((rows.shape[0], self.count))
            made[np.nonzero(used)[0], places[used]] = values[used]
            return made
        used &= values != 0
        ends = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
        return scipy.sparse.csr_array((values[used], places[used], ends), shape=(rows.shape[0], self.count))

    def features_of(self, data: Dataset) -> Dataset:
        """A data set with features in place of its columns, which `Dataset.table` describes."""
        return dataclasses.replace(
            data, features=self.apply(data.features, data.table), feature_names=self.names, encoding=self, table=None
        )

    def _lookup(self, place: int, table: Table) -> npt.NDArray[np.int32]:
        """The feature of each text of a column, then of a gap, then of an unknown text, at place −1; −1 for none."""
        column, known = self.columns[place], self.columns[place].places
        gap = len(known) if column.gaps else -1
        lookup = np.array([*(known.get(text, -1) for text in table.columns[place].values or ()), gap, -1], np.int32)
        return lookup - (len(column.kinds) == 2) * (lookup >= 0)

    def remarks(self, samples: int) -> tuple[str, ...]:
        """What the user should know, of so many training samples."""
        many = [
            self.table.label(place)
            for place, column in enumerate(self.columns)
            if column.values is not None and len(column.values) > max(_FEW, _DISTINCT * samples)
        ]
        if not many:
            return ()
        return (
            f"{listed(many, _SHOWN)}: nearly every sample has another text, of which other samples learn nothing: "
            f"--ignore-column leaves {'it' if len(many) == 1 else 'them'} out",
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON data, which preserve floats exactly."""
        return {"columns": self.table.to_json(), "missing": self.missing}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Undo `to_json`.

        Raises
        ------
        KeyError, TypeError, ValueError
            If something is missing, of the wrong type, or contradicts itself.
        """
        return cls(Table.from_json(data["columns"]).columns, str(data["missing"]))


def _dense(rows: Features) -> npt.NDArray[np.float64]:
    assert isinstance(rows, np.ndarray), "rows of a table are dense"
    return rows.astype(np.float64, copy=False)


def encode(data: Dataset, trained: npt.NDArray[np.bool_], missing: str) -> Dataset:
    """A data set with the features that its training samples call for.

    Parameters
    ----------
    data
        Rows of a table, in the order of the file; other data are returned as they are.
    trained
        Whether each sample is trained on, (samples,).
    missing
        One of `FILLINGS`.
    """
    table, rows = data.table, data.features
    if table is None or (table.plain and missing == "error"):
        return dataclasses.replace(data, table=None)
    fit = EncodingFit(table, missing)
    own = trained[data.places(slice(None))]
    fit.add(rows if own.all() else rows[own])
    encoding = fit.finish(data.communicator)
    remarks = (*data.remarks, *encoding.remarks(int(trained.sum())))
    return dataclasses.replace(encoding.features_of(data), remarks=remarks)


def space_to_json(space: FeatureSpace) -> dict[str, Any]:
    """Features as JSON data; an encoding is only there if there is one."""
    fields = {name: value for name, value in vars(space).items() if name != "encoding"}
    return fields | ({} if space.encoding is None else {"encoding": space.encoding.to_json()})


def space_from_json(data: Mapping[str, Any]) -> FeatureSpace:
    """Undo `space_to_json`.

    Raises
    ------
    KeyError, TypeError, ValueError
        If something is missing or of the wrong type.
    """
    encoding = data.get("encoding")
    known = None if encoding is None else TableEncoding.from_json(encoding)
    return FeatureSpace(**{**data, "names": tuple(data["names"]), "encoding": known})
