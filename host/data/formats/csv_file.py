"""CSV files: one sample per line, with or without a header.

Features are numbers; labels are numbers or texts. pyarrow parses some megabytes of text at a time. If it rejects a
block, a slower reader in Python continues from there. That reports line, column and kind of an error, or reads what
pyarrow is too strict for, such as ``+1``.
"""

import contextlib
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.columns import LABEL_NAMES, Columns, ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.formats.source import BLOCK_VALUES, GrowingArray, TextSource
from p4sgd.host.data.formats.text_file import line_blocks, lines_before, open_data, open_share
from p4sgd.host.data.labels import MISSING, RawLabels, check_exact, number
from p4sgd.host.errors import UserError, shortened

__all__ = ["CsvSource"]


_DELIMITERS = ",;\t"
_BLOCK_BYTES = 1 << 22
"""Size of the blocks that pyarrow parses, without the rest of the last line."""

_MAX_FIELD = 1 << 30
"""Maximum length of a field, for Python's reader, whose default is lower."""

_NO_LABEL = "the label is missing: leave the line out"

_Part: TypeAlias = tuple[npt.NDArray[np.float64], RawLabels | None, npt.NDArray[np.float64] | None]
"""Features of some samples, (samples, features), and their labels and weights, if these are needed."""


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
    """pyarrow found something that the slow reader must check."""


class CsvSource(TextSource):
    """A CSV file, compressed or not, as dense samples."""

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        form = _detect(self.path, self.options)
        named: bool | None = None
        samples = 0
        for features, labels, weights in self._parts(form):
            with self._label_mistakes(form):
                block = self._block(features, labels, samples, weights, feature_names=form.columns.feature_names)
            if named is not None and named != bool(block.label_names):
                self._find_label_mistake(form)
            named = bool(block.label_names)
            samples += block.samples
            yield block
        if samples == 0:
            raise UserError(f"{self.name}: there are no samples")
        self._space = FeatureSpace(len(form.columns.features), form.columns.feature_names)

    def _read(self) -> Dataset:
        form = _detect(self.path, self.options)
        values, parts, weights = GrowingArray(np.float64), [], GrowingArray(np.float64)
        for block, labels, own in self._parts(form):
            values.append(block)
            parts.append(labels)
            if own is not None:
                weights.append(own)
        features = values.finish().reshape(-1, len(form.columns.features))
        joined = None if form.columns.label is None else RawLabels.join(part for part in parts if part is not None)
        with self._label_mistakes(form):
            weighing = None if form.columns.weight is None else weights.finish()
            return self._join(features, joined, weighing, feature_names=form.columns.feature_names)

    def _parts(self, form: _Form) -> Iterator[_Part]:
        """The samples of this rank, from the fast reader, and after a rejected block from the slow one."""
        import pyarrow as pa

        done = 0
        with contextlib.suppress(pa.ArrowInvalid, _RefusedError):
            for part in self._fast(form):
                yield part
                done += part[0].shape[0]
            return
        for features, labels, weights in self._slow(form):
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
            If `_slow` must read the file.
        """
        import pyarrow as pa
        import pyarrow.csv as pa_csv

        columns = form.columns
        names = [str(place) for place in range(columns.count)]  # headers may repeat
        types: dict[str, Any] = {names[place]: pa.float64() for place in columns.features}
        if columns.label is not None:
            types[names[columns.label]] = pa.string()
        if columns.weight is not None:
            types[names[columns.weight]] = pa.float64()
        parsing = pa_csv.ParseOptions(delimiter=form.delimiter)
        conversion = pa_csv.ConvertOptions(
            column_types=types, include_columns=list(types), null_values=list(MISSING), strings_can_be_null=True
        )
        with self._open(form) as file:
            # pyarrow gets blocks of bytes rather than the file, which it would read ahead in a thread of its own: a
            # thread that waits for the interpreter lock while the program ends after an error aborts the process.
            for text in line_blocks(file, _BLOCK_BYTES):
                if not text.strip(b"\r\n"):
                    continue  # pyarrow rejects blocks without lines
                reading = pa_csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False)
                table = pa_csv.read_csv(pa.BufferReader(text), reading, parsing, conversion)
                for batch in table.to_batches():
                    if any(column.null_count for column in batch.columns):
                        raise _RefusedError
                    block = batch.select([names[place] for place in columns.features]).to_tensor().to_numpy()
                    if not np.isfinite(block).all():
                        raise _RefusedError
                    label, weight = columns.label, columns.weight
                    weights = None if weight is None else batch.column(names[weight]).to_numpy()
                    if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
                        raise _RefusedError
                    yield block, None if label is None else RawLabels.from_column(batch.column(names[label])), weights

    def _slow(self, form: _Form) -> Iterator[_Part]:
        """The samples of this rank, read in Python.

        Raises
        ------
        UserError
            For the first error; the message names line and column.
        """
        columns = form.columns
        places, label = columns.features, columns.label
        rows: list[list[float]] = []
        texts: list[str] = []
        weights: list[float] = []

        def part() -> _Part:
            labels = None if label is None else RawLabels.from_texts(texts)
            return np.array(rows), labels, None if columns.weight is None else np.array(weights)

        for line, fields in self._records(form):
            if len(fields) != columns.count:
                raise UserError(
                    f"{self.path}, line {line}: has {len(fields)} fields, line {form.skipped or 1} has {columns.count}"
                )
            rows.append([_value(fields[place], f"{self.path}, line {line}, {columns[place]}") for place in places])
            if label is not None:
                text = fields[label].strip()
                if text in MISSING:
                    raise UserError(f"{self.path}, line {line}, {columns[label]}: {_NO_LABEL}")
                texts.append(text)
            if columns.weight is not None:
                place = f"{self.path}, line {line}, {columns[columns.weight]}"
                weights.append(_value(fields[columns.weight], place))
                if weights[-1] < 0:
                    raise UserError(f"{place}: the weight is {weights[-1]:g}: it must be at least 0")
            if len(rows) * len(places) >= BLOCK_VALUES:
                yield part()
                rows, texts, weights = [], [], []
        if rows:
            yield part()

    def _records(self, form: _Form) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of each sample of this rank."""
        before = lines_before(self.path, self.options.communicator, form.skipped)
        with self._open(form) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            reader = csv.reader(text, delimiter=form.delimiter)
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


def _detect(path: Path, options: ReadOptions) -> _Form:
    """Find the structure of a file from its first line that is not blank.

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
    delimiter = options.delimiter or max(_DELIMITERS, key=text.count)
    reader = csv.reader([text, ""], delimiter=delimiter)
    try:
        fields = [field.strip() for field in next(reader)]
    except csv.Error as error:
        raise UserError(f"{place}: {error}") from None
    if reader.line_num > 1:
        raise UserError(f"{place}: a quoted field does not end in this line: leave line breaks out of names")
    header = _has_names(fields, options) if options.header is None else options.header
    if header is None:
        raise UserError(f"{place}: may hold names or a sample: say --header or --no-header")
    names = fields if header else None
    if len(fields) == 1 and options.labels_needed:
        raise UserError(f"{path}: there is only a label column, no features; is the delimiter right?")
    columns = choose_columns(len(fields), names, options, str(path))
    return _Form(delimiter, columns, skipped + int(header))


def _has_names(fields: list[str], options: ReadOptions) -> bool | None:
    """Whether a first line is a header; ``None`` if it may also be a sample."""
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
    counted = [str(place) for place in range(len(fields))]  # pandas' headers for columns without names
    if not numbers:
        return bool(words or labels)
    if labels - {"y"} or (labels and features == counted[: len(features)]):  # y may mean yes
        return True
    return None if words or labels or fields == counted else False


def _value(field: str, place: str) -> float:
    text = field.strip()
    if text in MISSING:
        shown = f" ({text})" if text else ""
        raise UserError(f"{place}: the value is missing{shown}: fill it in or leave the line out")
    value = number(text)
    if value is None:
        comma = "," in text and number(text.replace(",", ".")) is not None
        remedy = (
            "write a decimal point"
            if comma
            else "correct it, give --label-column if this column is the label, or leave it out with --ignore-column"
        )
        raise UserError(f"{place}: {shortened(text)} is not a number: {remedy}")
    if not np.isfinite(value):
        raise UserError(f"{place}: the value is {text}: it must be finite")
    return value
