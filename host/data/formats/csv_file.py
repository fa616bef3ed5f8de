"""CSV files: one sample per line, with or without a header.

pyarrow parses some megabytes of text at a time. It reads numbers at once. If it rejects a block, because there are
texts or gaps, all fields are read as texts, twice: to find out what the columns hold, and to make numbers of them.
Python's reader only looks for the line of a mistake.
"""

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from p4sgd.host.data.cells import RawLabels
from p4sgd.host.data.columns import LABEL_NAMES, Columns, ReadOptions, choose_columns, is_number
from p4sgd.host.data.dates import dates_of
from p4sgd.host.data.encoding import FeatureSpace
from p4sgd.host.data.formats.source import NotNumbersError, Rows
from p4sgd.host.data.formats.tables import Arrays, TableSource
from p4sgd.host.data.formats.text_file import (
    decoded,
    find_encoding,
    is_utf8,
    line_blocks,
    open_data,
    temporary_file,
)
from p4sgd.host.data.notation import Notation, has_unit, other_notations
from p4sgd.host.data.sample_numbers import suits
from p4sgd.host.errors import UserError

_DELIMITERS = ";\t|,"
"""The first of those that divide the lines into most fields is taken."""

_BLOCK_BYTES = 1 << 22
"""Size of the blocks that pyarrow parses, without the rest of the last line."""

_MAX_FIELD = 1 << 30
"""Maximum length of a field, for Python's reader, whose default is lower."""

_BLANK = re.compile(r'\s*|"\s*"\s*')
"""A line that is no sample."""

_COUNTED = 3
"""A first line with so many fields 0, 1, 2 … beside texts may be pandas' header; fewer are soon those of a sample."""


class _Form(NamedTuple):
    """Structure of a file: the character between fields, its columns, and the lines before the first sample."""

    delimiter: str
    columns: Columns
    skipped: int


class CsvSource(TableSource):
    """A CSV file, compressed or not, as dense samples."""

    _unit = "line"
    _bare_codes = False
    """Whether there seem to be digits after a 0 without quotes, which are numbers, but may be meant for texts."""

    @cached_property
    def _notation(self) -> Notation:
        return self.options.notation

    @cached_property
    def _decoded(self) -> tuple[Path, str | None]:
        """The file, or a copy in UTF-8, and the encoding of the text, if it was guessed."""
        encoding = self.options.encoding or find_encoding(self.path)
        if is_utf8(encoding):
            return self.path, None
        self._copy = temporary_file(decoded(self.path, encoding, self.name))  # which is there as long as this object
        guessed = self.options.encoding is None and not encoding.startswith("utf")
        return Path(self._copy.name), encoding if guessed else None

    @property
    def _utf8(self) -> Path:
        return self._decoded[0]

    @cached_property
    def _form(self) -> _Form:
        return _detect(self._utf8, self.options, self.name)

    @cached_property
    def columns(self) -> Columns:
        return self._form.columns

    def _numbers(self) -> Iterator[Rows]:
        import pyarrow as pa

        columns = self.columns
        features = [str(place) for place in columns.features]
        try:
            if self._makes_more or columns.id is not None:
                raise NotNumbersError
            for batch in self._parsed(pa.float64(), list(self._notation.missing)):
                codes = (self._quoted_codes or self._bare_codes) and self.options.like is None
                if codes or any(column.null_count for column in batch.columns):
                    raise NotNumbersError
                block = batch.select(features).to_tensor().to_numpy()
                beside = {role: batch.column(str(place)).to_numpy() for role, place in columns.beside.items()}
                strange = any(not suits(values, role).all() for role, values in beside.items())
                if strange or not np.isfinite(block).all():
                    raise NotNumbersError
                yield Rows(block, tuple(self._labels(batch.column(str(place))) for place in columns.labels), beside)
        except pa.ArrowInvalid:
            raise NotNumbersError from None

    def _parsed(self, kind: Any, gaps: list[str]) -> Iterator[Any]:
        """The samples as batches of pyarrow: features and numbers of a type, labels as texts; `ArrowInvalid` if the
        text is not like that.

        Columns are called by their places from 0, because headers may repeat.
        """
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        columns = self.columns
        types: dict[str, Any] = {str(place): kind for place in (*columns.features, *columns.beside.values())}
        texts = columns.labels if columns.id is None else (*columns.labels, columns.id)
        types |= {str(place): pa.string() for place in texts}
        names = list(map(str, range(columns.count)))
        parsing = pa_csv.ParseOptions(
            delimiter=self._form.delimiter,
            invalid_row_handler=lambda row: (
                "skip" if row.actual_columns == 1 and _BLANK.fullmatch(row.text) else "error"
            ),
        )
        conversion = pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=gaps,
            strings_can_be_null=bool(gaps),
            decimal_point=self._notation.decimal,
        )
        # pyarrow gets blocks of bytes rather than the file, which it would read ahead in a thread of its own: a thread
        # that waits for the interpreter lock while the program ends after an error aborts the process.
        for text in self._text():
            if text.strip(b"\r\n"):  # pyarrow rejects blocks without lines
                reading = pa_csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False)
                yield from pa_csv.read_csv(pa.BufferReader(text), reading, parsing, conversion).to_batches()

    def settle(self) -> FeatureSpace:
        space, guessed = super().settle(), self._decoded[1]
        if guessed is not None:
            told = f"the text is not UTF-8, so it is read as {guessed}, that of Windows: --encoding NAME takes another"
            self.remarks = (*self.remarks, told)
        return space

    def _arrays(self) -> Iterator[Arrays]:
        """The fields as texts."""
        import pyarrow as pa

        columns, done = self.columns, 0
        try:
            for batch in self._parsed(pa.string(), []):
                names = map(int, batch.schema.names)
                yield Arrays.of(done, columns, dict(zip(names, batch.columns, strict=True)))
                done += batch.num_rows
        except pa.ArrowInvalid as error:
            for line, fields in self._records():
                if len(fields) != columns.count:
                    problem = f"has {len(fields)} fields, line {self._form.skipped or 1} has {columns.count}"
                    raise UserError(f"{self.name}, line {line}: {problem}") from None
            raise UserError(f"{self.name}: cannot be read as CSV: {error}") from error

    def _locate(self, row: int, column: int) -> str:
        line, _ = next(itertools.islice(self._records(), row, None))
        return f"{self.name}, line {line}, {self.columns[column]}"

    def _labels(self, label: Any) -> RawLabels:
        return RawLabels.from_column(label, self._notation)

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        before = self._form.skipped
        blocks = (io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", newline="") for text in self._text())
        reader = csv.reader(itertools.chain.from_iterable(blocks), delimiter=self._form.delimiter)
        line = before
        try:
            for fields in reader:
                first, line = line + 1, before + reader.line_num
                if fields and not (len(fields) == 1 and not fields[0].strip()):
                    yield first, fields
        except UnicodeDecodeError:
            for _ in decoded(self._utf8, "utf-8", self.name):  # which says in which line
                pass
            raise
        except csv.Error as error:
            raise UserError(f"{self.name}, line {line + 1}: {error}") from None

    def _text(self) -> Iterator[bytes]:
        """The lines in blocks, none of which ends in a quoted field, which pyarrow would close there."""
        with self._open() as file:
            done = 0
            for text in line_blocks(file, _BLOCK_BYTES):
                whole = text + self._rest_of_field(file, text, done)
                self._look_for_codes(whole, first=done == 0)
                done += len(whole)
                yield whole

    def _rest_of_field(self, file: BinaryIO, text: bytes, done: int) -> bytes:
        """Further lines up to the end of the quoted field in which a text ends, if it does, after ``done`` bytes of
        others; `UserError` if the field does not end, or is as long as only one can be that does not."""
        size, opened, parts = len(text), _open_quote(text, self._form.delimiter), []
        while opened is not None:
            line = file.readline()
            if not line or size - opened > _MAX_FIELD:
                raise self._unclosed(done + opened)
            parts.append(line)
            again = _open_quote(b'"' + line, self._form.delimiter)
            opened = None if again is None else opened if again == 0 else size + again - 1
            size += len(line)
        return b"".join(parts)

    def _look_for_codes(self, text: bytes, *, first: bool) -> None:
        """Look for digits after a 0; without quotes in the ``first`` block only, as a column of codes soon has some."""
        delimiter = re.escape(self._form.delimiter.encode())

        def has(form: bytes) -> bool:
            return re.search(rb"(?<![^%b\r\n])%b(?![^%b\r\n])" % (delimiter, form, delimiter), text) is not None

        self._quoted_codes = self._quoted_codes or (b'"0' in text and has(rb'"0\d+"'))
        if first:
            self._bare_codes = has(rb"0\d+")

    def _unclosed(self, left: int) -> UserError:
        """The error of a quoted field that does not end, which begins after so many bytes of the samples' lines."""
        line = self._form.skipped + 1
        with self._open() as file:
            while text := file.read(min(left, _BLOCK_BYTES)):
                line += text.count(b"\n")
                left -= len(text)
        return UserError(f"{self.name}, line {line}: a quoted field does not end: close its quote")

    @contextlib.contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        with open_data(self._utf8, self._watch) as file:
            for _ in range(self._form.skipped):
                file.readline()
            yield file


def _open_quote(text: bytes, delimiter: str) -> int | None:
    """Offset of the quote that opens a field which a text, some lines, does not end; ``None`` if all of them end.

    As in RFC 4180, and for both readers, a quote opens a field only as its first character, and two quotes in such a
    field are one character. After the field ends, and in other fields, quotes are characters like others.
    """
    if b'"' not in text:
        return None
    # Fields seldom have quotes elsewhere. If every other quote is where one opens a field, or is the second of two,
    # their number alone says whether all fields end.
    characters, opening = np.frombuffer(text, np.uint8), np.frombuffer(f'{delimiter}\r\n"'.encode(), np.uint8)
    quotes = np.flatnonzero(characters == ord('"'))
    before = characters[quotes[::2] - 1]
    if quotes.size % 2 == 0 and np.logical_or.reduce([before == each for each in opening]).all():
        return None
    fields = re.finditer(rb'"(?<![^%b\r\n]")[^"]*(?:""[^"]*)*("?)' % re.escape(delimiter.encode()), text)
    return next((field.start() for field in fields if not field[1]), None)


def _detect(path: Path, options: ReadOptions, name: str) -> _Form:
    """Find the structure of a file in UTF-8 from its first two lines that are not blank.

    Raises `UserError`, with the ``name`` of the file, if there is none, if it is no text, or if it may be a header or a
    sample.
    """
    with open_data(path) as file:
        lines = enumerate(file)
        skipped, raw = next(filter(_not_blank, lines), (0, b""))
        told = re.fullmatch(rb'"?sep=([ -~\t])"?\s*', raw)  # a line for Excel
        if told:
            skipped, raw = next(filter(_not_blank, lines), (0, b""))
        _, following = next(filter(_not_blank, lines), (0, b""))
    if not raw:
        raise UserError(f"{name}: the file is empty")
    place = f"{name}, line {skipped + 1}"
    if b"\0" in raw:
        likely = "utf-16-be" if raw.startswith(b"\0") else "utf-16-le"  # with a byte order mark it would have been read
        raise UserError(f"{place}: holds a zero byte: this is no CSV file, or one that needs --encoding {likely}")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise UserError(f"{place}: is not utf-8 text: --encoding NAME takes another") from None
    if "\r" in text.rstrip("\r\n"):
        raise UserError(f"{place}: lines end with carriage returns alone, as on old Macs: write line feeds instead")
    csv.field_size_limit(_MAX_FIELD)
    below = following.decode(errors="replace")
    delimiter = options.delimiter or (told[1].decode() if told else _delimiter(text, below))
    reader = csv.reader([text, ""], delimiter=delimiter)
    try:
        fields = [field.strip() for field in next(reader)]
    except csv.Error as error:
        raise UserError(f"{place}: {error}") from None
    if reader.line_num > 1:
        raise UserError(f"{place}: a quoted field does not end in this line: leave line breaks out of names")
    header = options.header
    if header is None:
        header = _has_names(fields, _fields(below, delimiter), options)
    if header is None:
        others = max(len(_fields(below, each)) for each in _DELIMITERS)
        if len(fields) == 1 < others:
            raise UserError(f"{place}: has 1 field, the next line {others}: leave out what stands above the table")
        raise UserError(f"{place}: may hold names or a sample: say --header or --no-header")
    if len(fields) == 1 and options.labels_needed:
        raise UserError(f"{name}: there is only a label column, no features; is the delimiter right?")
    columns = choose_columns(len(fields), fields if header else None, options, name)
    return _Form(delimiter, columns, skipped + int(header))


def _not_blank(line: tuple[int, bytes]) -> bool:
    return bool(line[1].strip(b" \t\r\n"))


def _fields(line: str, delimiter: str) -> list[str]:
    """The fields of a line, none if it cannot be divided."""
    with contextlib.suppress(csv.Error):
        return next(csv.reader([line, ""], delimiter=delimiter))
    return []


def _delimiter(line: str, below: str) -> str:
    """The character between the fields of two lines: the one that makes most of them, and as many of both, unless all
    commas may be decimal ones."""
    scores = {}
    for delimiter in _DELIMITERS:
        fields, others = _fields(line, delimiter), _fields(below, delimiter)
        with_commas = [field for field in (*fields, *others) if "," in field]
        if len(fields) > 1 and with_commas and all(other_notations(field.strip()) for field in with_commas):
            return delimiter
        scores[delimiter] = len(fields) > 1, len(fields) == len(others), len(fields)
    return max(_DELIMITERS, key=lambda delimiter: scores[delimiter])


def _like_number(field: str) -> bool:
    """Whether a field is a date, or a number as it is written somewhere."""
    return bool(dates_of(field) or other_notations(field) or has_unit(field))


def _has_names(fields: list[str], below: list[str], options: ReadOptions) -> bool | None:
    """Whether a first line is a header, with another one below it: if it names a label or known columns, or if no
    feature in it is a number and one below it is. ``None`` if it may also be a sample."""
    like, notation, below = options.like, options.notation, [field.strip() for field in below]
    number, missing = notation.number, notation.missing
    known = () if like is None else like.column_names
    if known and set(known) <= set(fields):
        return True
    if any(each.header in fields for each in options.known.apart if each.header):
        return True
    beside = [each for each in (options.weight_column, options.offset_column, options.exposure_column) if each]
    choices = (options.label_column or -1, *options.target_columns, *beside, *options.ignore_columns)
    if any(not is_number(choice) and choice in fields for choice in choices):
        return True
    numbers_of_others = [int(choice) for choice in choices if is_number(choice)]  # which hold no features
    others = {place + (len(fields) if place < 0 else -1) for place in numbers_of_others}
    features = [field for place, field in enumerate(fields) if place not in others] or fields
    numbers = [field for field in features if number(field) is not None]
    words = [field for field in features if number(field) is None and field not in missing]
    labels = {field.lower() for field in fields} & set(LABEL_NAMES)
    indexed = int(fields[0] == "")  # a column of row numbers, as pandas writes it
    counted = [str(place) for place in range(len(fields))]  # pandas' headers for columns without names
    if not numbers and (words or labels):
        # Where all is text, a line of names is like any other.
        told = labels - {"y"} or not below or any(number(field) is not None for field in below)
        told = told or any(map(_like_number, below)) > any(map(_like_number, fields))
        return True if told else None
    if not numbers:
        return False
    if labels - {"y"} or (labels and features[indexed:] == counted[: len(features) - indexed]):  # y may mean yes
        return True
    enumerated = len(numbers) >= _COUNTED and all(
        field == place or (number(field) is None and field not in missing)
        for field, place in zip(fields[indexed:], counted, strict=False)
    )
    return None if words or labels or fields == counted or enumerated else False
