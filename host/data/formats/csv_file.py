"""CSV files: one sample per line, with or without a header.

pyarrow parses some megabytes of text at a time. It reads numbers at once. If it rejects a block, because there are
texts or gaps, all fields are read as texts, twice: to find out what the columns hold, and to make numbers of them. If
it cannot even divide the lines into fields, Python's reader does, which says in what line the mistake is.
"""

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.cells import CellError, has_decimal_comma, has_gaps, weights_of
from p4sgd.host.data.columns import LABEL_NAMES, Columns, ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.formats.source import BLOCK_VALUES, GrowingArray, TableSource, TextSource
from p4sgd.host.data.formats.text_file import line_blocks, lines_before, open_data, open_share
from p4sgd.host.data.raw_labels import MISSING, RawLabels, check_exact, number
from p4sgd.host.data.survey import RowNumbers, Survey
from p4sgd.host.data.table import Table, UnknownTexts
from p4sgd.host.errors import UserError

__all__ = ["CsvSource"]


_DELIMITERS = ";\t,"
"""The last one is taken only if it is more frequent."""

_BLOCK_BYTES = 1 << 22
"""Size of the blocks that pyarrow parses, without the rest of the last line."""

_MAX_FIELD = 1 << 30
"""Maximum length of a field, for Python's reader, whose default is lower."""

_COUNTED = 3
"""A first line with so many fields 0, 1, 2 … beside texts may be pandas' header; fewer are soon those of a sample."""

_NO_LABEL = "the label is missing: leave the line out"

_Part: TypeAlias = tuple[npt.NDArray[np.float64], RawLabels | None, npt.NDArray[np.float64] | None]
"""Features of some samples, (samples, columns of features), and their labels and weights, if these are needed."""

_Texts: TypeAlias = tuple[list[Any], Any, Any]
"""Fields of some lines as texts: a pyarrow array for each column of features, and for labels and weights, if needed."""


@dataclass(frozen=True)
class _Form:
    """Structure of a file, found in its first line.

    Parameters
    ----------
    delimiter
        The character between fields.
    columns
        The columns.
    skipped
        Number of lines before the first sample.
    """

    delimiter: str
    columns: Columns
    skipped: int


class _RefusedError(Exception):
    """pyarrow found something that is no number, or a label that is missing."""


class CsvSource(TableSource, TextSource):
    """A CSV file, compressed or not, as dense samples."""

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        form = _detect(self.path, self.options)
        named: bool | None = None
        samples, numbers = 0, RowNumbers(form.columns.numbered)
        for features, labels, weights in self._parts(form):
            with self._label_mistakes(form):
                block = self._block(features, labels, samples, weights, feature_names=form.columns.feature_names)
            if named is not None and named != bool(block.label_names):
                self._find_label_mistake(form)
            named = bool(block.label_names)
            numbers.add(features, samples)
            samples += block.samples
            yield block
        if samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        self.remarks = (*form.columns.remarks, *numbers.remarks())
        self._space = FeatureSpace(len(form.columns.features), form.columns.feature_names)

    def _read(self) -> Dataset:
        form = _detect(self.path, self.options)
        ranks, table, unknown = self.options.communicator, self._known_table(form.columns), UnknownTexts()
        found = None if table is not None and not table.plain else self._collect(form, self._fast(form))
        if any(ranks.all_gather(found is None)):
            table = table or self._survey(form)
            found = self._collect(form, self._rows(form, table, unknown))
        assert found is not None, "only the fast reader gives up"
        with self._label_mistakes(form):
            return self._join_rows(*found, form.columns, table or self._numbers(form.columns), unknown)

    def _collect(self, form: _Form, parts: Iterator[_Part]) -> _Part | None:
        """All samples of this rank; ``None`` if the fast reader gives up."""
        import pyarrow as pa

        values, labels, weights = GrowingArray(np.float64), [], GrowingArray(np.float64)
        try:
            for block, some, own in parts:
                values.append(block)
                if some is not None:
                    labels.append(some)
                if own is not None:
                    weights.append(own)
        except (pa.ArrowInvalid, _RefusedError):
            return None
        features = values.finish().reshape(-1, len(form.columns.features))
        joined = None if form.columns.label is None else RawLabels.join(labels)
        return features, joined, None if form.columns.weight is None else weights.finish()

    def _parts(self, form: _Form) -> Iterator[_Part]:
        """The samples, from the fast reader, and after a rejected block from the one that reads texts."""
        import pyarrow as pa

        done, table = 0, self._known_table(form.columns)
        if table is None or table.plain:
            with contextlib.suppress(pa.ArrowInvalid, _RefusedError):
                for part in self._fast(form):
                    yield part
                    done += part[0].shape[0]
                self.table = self._numbers(form.columns)
                return
        self.table = table or self._survey(form)
        for features, labels, weights in self._rows(form, self.table):
            known = min(done, features.shape[0])
            done -= known
            if known < features.shape[0]:
                left = None if labels is None else RawLabels(labels.values[known:], labels.texts)
                yield features[known:], left, None if weights is None else weights[known:]

    def _fast(self, form: _Form) -> Iterator[_Part]:
        """The samples of this rank, read with pyarrow.

        Raises
        ------
        pyarrow.ArrowInvalid, _RefusedError
            If they are not all numbers, or `_texts` must look for a mistake.
        """
        import pyarrow as pa

        columns = form.columns
        features, label = [str(place) for place in columns.features], columns.label
        for batch in self._parsed(form, pa.float64(), list(MISSING)):
            if any(column.null_count for column in batch.columns):
                raise _RefusedError
            block = batch.select(features).to_tensor().to_numpy()
            if not np.isfinite(block).all():
                raise _RefusedError
            weights = None if columns.weight is None else batch.column(str(columns.weight)).to_numpy()
            if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
                raise _RefusedError
            yield block, None if label is None else RawLabels.from_column(batch.column(str(label))), weights

    def _parsed(self, form: _Form, kind: Any, gaps: list[str]) -> Iterator[Any]:
        """The samples of this rank as batches of pyarrow: features and weights of a type, labels as texts.

        Columns are called by their places from 0, because headers may repeat.

        Raises
        ------
        pyarrow.ArrowInvalid
            If the text is not like that.
        """
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        columns = form.columns
        names = [str(place) for place in range(columns.count)]
        types: dict[str, Any] = {names[place]: kind for place in columns.features}
        if columns.label is not None:
            types[names[columns.label]] = pa.string()
        if columns.weight is not None:
            types[names[columns.weight]] = kind
        parsing = pa_csv.ParseOptions(delimiter=form.delimiter)
        conversion = pa_csv.ConvertOptions(
            column_types=types, include_columns=list(types), null_values=gaps, strings_can_be_null=bool(gaps)
        )
        # pyarrow gets blocks of bytes rather than the file, which it would read ahead in a thread of its own: a thread
        # that waits for the interpreter lock while the program ends after an error aborts the process.
        for text in self._text(form):
            if not text.strip(b"\r\n"):
                continue  # pyarrow rejects blocks without lines
            reading = pa_csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False)
            yield from pa_csv.read_csv(pa.BufferReader(text), reading, parsing, conversion).to_batches()

    def _survey(self, form: _Form) -> Table:
        """What the columns hold.

        Raises
        ------
        UserError
            As `p4sgd.host.data.survey.Survey.finish`.
        """
        survey = Survey(form.columns.feature_names, len(form.columns.features), MISSING)
        for arrays, _, _ in self._texts(form):
            survey.add(arrays)
        options = self.options
        table = survey.finish(
            self.name, gaps=options.takes_gaps, tell=lambda cell: self._told(form, cell), ranks=options.communicator
        )
        if self._guessed is not None and not table.plain:  # any text with commas in it would do
            raise UserError(f"{self.name}: has texts: --format {self._guessed} takes them for those of a table")
        return table

    def _rows(self, form: _Form, table: Table, unknown: UnknownTexts | None = None) -> Iterator[_Part]:
        """The samples of this rank, from texts.

        Raises
        ------
        UserError
            For the first error; the message names line and column.
        """
        first = 0
        for arrays, label, weight in self._texts(form):
            try:
                rows = table.rows(arrays, gaps=self.options.takes_gaps, gap_texts=MISSING, unknown=unknown)
            except CellError as error:
                raise self._told(form, error.after(first)) from None
            if label is not None and has_gaps(label):
                self._find_label_mistake(form)
            try:
                weights = None if weight is None else weights_of(weight)
            except CellError as error:
                raise self._told(form, error.after(first), form.columns.weight) from None
            yield rows, None if label is None else RawLabels.from_column(label), weights
            first += rows.shape[0]

    def _texts(self, form: _Form) -> Iterator[_Texts]:
        """The fields of this rank's lines, from pyarrow, or from where it fails, from Python's reader.

        Raises
        ------
        UserError
            If a line has too many or too few fields, or is no text.
        """
        import pyarrow as pa

        columns, done = form.columns, 0
        others = (columns.label, columns.weight)
        with contextlib.suppress(pa.ArrowInvalid):
            for batch in self._parsed(form, pa.string(), []):
                arrays = [batch.column(str(place)) for place in columns.features]
                label, weight = (None if place is None else batch.column(str(place)) for place in others)
                yield arrays, label, weight
                done += batch.num_rows
            return

        def part(rows: list[list[str]]) -> _Texts:
            def column(place: int) -> Any:
                return pa.array([fields[place] for fields in rows], pa.string())

            label, weight = (None if place is None else column(place) for place in others)
            return list(map(column, columns.features)), label, weight

        rows: list[list[str]] = []
        for line, fields in itertools.islice(self._records(form), done, None):
            if len(fields) != columns.count:
                raise UserError(
                    f"{self.path}, line {line}: has {len(fields)} fields, line {form.skipped or 1} has {columns.count}"
                )
            rows.append(fields)
            if len(rows) * columns.count >= BLOCK_VALUES:
                yield part(rows)
                rows = []
        if rows:
            yield part(rows)

    def _told(self, form: _Form, cell: CellError, weight: int | None = None) -> UserError:
        """The error of a cell of the features, or of the column with the weights, with its line."""
        line, _ = next(itertools.islice(self._records(form), cell.row, None))
        place = form.columns.features[cell.column] if weight is None else weight
        return cell.told(f"{self.path}, line {line}, {form.columns[place]}", "line", weight=weight is not None)

    def _records(self, form: _Form) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of each sample of this rank."""
        before = lines_before(self.path, self.options.communicator, form.skipped)
        blocks = (io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", newline="") for text in self._text(form))
        reader = csv.reader(itertools.chain.from_iterable(blocks), delimiter=form.delimiter)
        line = before
        try:
            for fields in reader:
                first, line = line + 1, before + reader.line_num
                if fields and not (len(fields) == 1 and not fields[0].strip()):
                    yield first, fields
        except UnicodeDecodeError:
            raise UserError(f"{self.path}, after line {line}: is not UTF-8 text") from None
        except csv.Error as error:
            raise UserError(f"{self.path}, line {line + 1}: {error}") from None

    def _text(self, form: _Form) -> Iterator[bytes]:
        """The lines of this rank in blocks, none of which ends in a quoted field, which pyarrow would close there.

        Raises
        ------
        UserError
            If the last field does not end, or is as long as only one can be that does not; names its line.
        """
        with self._open(form) as file:
            done = 0
            for text in line_blocks(file, _BLOCK_BYTES):
                end, opened, parts = len(text), _open_quote(text, form.delimiter), [text]
                while opened is not None:
                    line = file.readline()
                    if not line or end - opened > _MAX_FIELD:
                        raise self._unclosed(form, done + opened)
                    parts.append(line)
                    again = _open_quote(b'"' + line, form.delimiter)
                    opened = None if again is None else opened if again == 0 else end + again - 1
                    end += len(line)
                done += end
                yield b"".join(parts)

    def _unclosed(self, form: _Form, left: int) -> UserError:
        """The error of a quoted field that does not end, which begins after so many bytes of this rank's lines."""
        ranks = self.options.communicator
        line = lines_before(self.path, ranks, form.skipped) + 1
        with self._open(form) as file:
            while left:
                text = file.read(min(left, _BLOCK_BYTES))
                line += text.count(b"\n")
                left -= len(text)
        place = f"{self.path}, line {line}"
        if ranks.rank + 1 < ranks.size:
            return UserError(
                f"{place}: a quoted field does not end in the lines that this process reads: leave line breaks out of "
                f"fields, or read the file with one process"
            )
        return UserError(f"{place}: a quoted field does not end: close its quote")

    def _open(self, form: _Form) -> contextlib.AbstractContextManager[BinaryIO]:
        return open_share(self.path, self.options.communicator, form.skipped, self._watch)

    @contextlib.contextmanager
    def _label_mistakes(self, form: _Form) -> Iterator[None]:
        """Add the line number to errors in labels, which are checked without it."""
        try:
            yield
        except UserError:
            if form.columns.label is not None:
                self._find_label_mistake(form)
            raise

    def _find_label_mistake(self, form: _Form) -> None:
        """Search the labels for an error.

        Raises
        ------
        UserError
            For the first label that is invalid, or not a number or text like the labels before; names its line.
        """
        label = form.columns.label
        assert label is not None
        first: str | None = None
        for line, fields in self._records(form):
            text = fields[label].strip()
            value = number(text)
            place = f"{self.path}, line {line}, {form.columns[label]}"
            if text in MISSING:
                raise UserError(f"{place}: {_NO_LABEL}")
            if value is not None and not np.isfinite(value):
                raise UserError(f"{place}: the label is {text}: it must be finite")
            check_exact(text, place)
            if first is None:
                first = text
            elif (value is None) != (number(first) is None):
                raise UserError(
                    f"{place}: the label is {text!r}, but {first!r} before: labels must all be numbers or all be names"
                )


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


def _detect(path: Path, options: ReadOptions) -> _Form:
    """Find the structure of a file from its first two lines that are not blank.

    Raises
    ------
    UserError
        If there is none, if it is no text, or if it may be a header or a sample.
    """
    with open_data(path) as file:
        skipped, raw = 0, b""
        for raw in file:
            if raw.strip(b" \t\r\n"):
                break
            skipped += 1
        else:
            raise UserError(f"{path}: the file is empty")
        following = next((line for line in file if line.strip(b" \t\r\n")), b"")
    if b"\0" in raw:
        raise UserError(f"{path}, line {skipped + 1}: holds a zero byte: this is no CSV file in UTF-8")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise UserError(f"{path}, line {skipped + 1}: is not UTF-8 text: is this a CSV file?") from None
    place = f"{path}, line {skipped + 1}"
    csv.field_size_limit(_MAX_FIELD)
    if "\r" in text.rstrip("\r\n"):
        raise UserError(f"{place}: lines end with carriage returns alone, as on old Macs: write line feeds instead")
    delimiter = options.delimiter or _delimiter(text)
    reader = csv.reader([text, ""], delimiter=delimiter)
    try:
        fields = [field.strip() for field in next(reader)]
    except csv.Error as error:
        raise UserError(f"{place}: {error}") from None
    if reader.line_num > 1:
        raise UserError(f"{place}: a quoted field does not end in this line: leave line breaks out of names")
    header = options.header
    if header is None:
        below: list[str] = []
        with contextlib.suppress(csv.Error):
            below = next(csv.reader([following.decode(errors="replace"), ""], delimiter=delimiter))
        header = _has_names(fields, below, options)
    if header is None:
        raise UserError(f"{place}: may hold names or a sample: say --header or --no-header")
    names = fields if header else None
    if len(fields) == 1 and options.labels_needed:
        raise UserError(f"{path}: there is only a label column, no features; is the delimiter right?")
    columns = choose_columns(len(fields), names, options, str(path))
    return _Form(delimiter, columns, skipped + int(header))


def _delimiter(line: str) -> str:
    """The character between the fields of a line: the most frequent one, unless all commas may be decimal ones."""
    for delimiter in _DELIMITERS[:-1]:
        with_commas = [field for field in line.split(delimiter) if "," in field]
        if delimiter in line and with_commas and all(map(has_decimal_comma, with_commas)):
            return delimiter
    return max(_DELIMITERS, key=line.count)


def _has_names(fields: list[str], below: list[str], options: ReadOptions) -> bool | None:
    """Whether a first line is a header, with another one below it; ``None`` if it may also be a sample."""
    known = () if options.like is None else options.like.column_names
    if known and set(known) <= set(fields):
        return True
    others = set()  # columns that were chosen by number and hold no features
    weight = () if options.weight_column is None else (options.weight_column,)
    for choice in (options.label_column or -1, *options.target_columns, *weight, *options.ignore_columns):
        try:
            number_of_column = int(choice)
        except ValueError:
            if choice in fields:
                return True
        else:
            others.add(number_of_column + (len(fields) if number_of_column < 0 else -1))
    features = [field for place, field in enumerate(fields) if place not in others] or fields
    numbers = [field for field in features if number(field) is not None]
    words = [field for field in features if number(field) is None and field not in MISSING]
    labels = {field.lower() for field in fields} & set(LABEL_NAMES)
    indexed = int(fields[0] == "")  # a column of row numbers, as pandas writes it
    counted = [str(place) for place in range(len(fields))]  # pandas' headers for columns without names
    if not numbers and (words or labels):
        # Where all is text, a line of names is like any other.
        told = labels - {"y"} or not below or any(number(field.strip()) is not None for field in below)
        return True if told else None
    if not numbers:
        return False
    if labels - {"y"} or (labels and features[indexed:] == counted[: len(features) - indexed]):  # y may mean yes
        return True
    enumerated = len(numbers) >= _COUNTED and all(
        field == place or (number(field) is None and field not in MISSING)
        for field, place in zip(fields[indexed:], counted, strict=False)
    )
    return None if words or labels or fields == counted or enumerated else False
