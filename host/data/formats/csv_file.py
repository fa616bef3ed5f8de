"""CSV files: a sample a line, with or without a line of names."""

import contextlib
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.columns import LABEL_NAMES, Columns, ReadOptions, choose_columns
from p4sgd.host.data.dataset import Dataset, join_shares
from p4sgd.host.data.formats.opening import BLOCK_VALUES, lines_before, open_data, open_share
from p4sgd.host.data.labels import MISSING, check_exact, encode_labels, index_column, index_texts, join_texts, number
from p4sgd.host.distributed.communicator import Communicator
from p4sgd.host.errors import UserError, shortened

__all__ = ["Form", "RefusedError", "detect", "fast_blocks", "find_label_mistake", "read_csv", "slow_blocks"]


_DELIMITERS = ",;\t"
_LABEL = "label"
_BLOCK_BYTES = 1 << 22
_NO_LABEL = "the label is missing: leave the line out"

_Table: TypeAlias = tuple[npt.NDArray[np.float64], Sequence[str], npt.NDArray[np.intp]]
"""Features, distinct label texts, and the index of each sample's text."""


@dataclass(frozen=True)
class Form:
    """What the first line shows, and who reads the file.

    Parameters
    ----------
    delimiter
        The character between fields.
    columns
        The columns.
    skipped
        Lines before the first sample.
    line_bytes
        Bytes of the line.
    ranks
        The ranks that read the file together.
    """

    delimiter: str
    columns: Columns
    skipped: int
    line_bytes: int
    ranks: Communicator


def read_csv(path: Path, options: ReadOptions) -> Dataset:
    """Read a CSV file, compressed or not, as a dense data set.

    Features are numbers; labels are numbers or texts (see `p4sgd.host.data.labels.encode_labels`). The work is
    pyarrow's, block by block. If it refuses anything, a slower second pass finds the line and column and says what is
    wrong, or reads what pyarrow is too strict for (``+1``).

    Raises
    ------
    UserError
        If the file cannot be read; the message names file, line and column.
    """
    import pyarrow as pa

    csv.field_size_limit(1 << 30)
    form = detect(path, options)
    read: _Table | None = None
    with contextlib.suppress(pa.ArrowInvalid, RefusedError):
        read = _read_fast(path, form)
    features, texts, which = read or _read_slowly(path, form)
    ranks, feature_names = form.ranks, form.columns.feature_names
    if form.columns.label is None:
        labels = np.zeros(sum(ranks.all_gather(features.shape[0])))
        return join_shares(features, labels, str(path), ranks, labelled=False, feature_names=feature_names)
    texts, which = join_texts(ranks.all_gather((texts, which)))
    try:
        labels, names = encode_labels(texts, which, str(path))
        dataset = join_shares(features, labels, str(path), ranks, label_names=names, feature_names=feature_names)
    except UserError:
        find_label_mistake(path, form)
        raise
    return dataset


class RefusedError(Exception):
    """The fast reader met something that the slow one is to look at."""


def detect(path: Path, options: ReadOptions) -> Form:
    """Look at the first line that is not blank.

    Raises
    ------
    UserError
        If there is none, if it is no text, or if it leaves doubt what it is.
    """
    with open_data(path) as file:
        skipped, raw = 0, b""
        for raw in file:
            if raw.strip(b"\xef\xbb\xbf \t\r\n"):
                break
            skipped += 1
        else:
            raise UserError(f"{path}: the file is empty")
    if b"\0" in raw:
        raise UserError(f"{path}, line {skipped + 1}: holds a zero byte: this is no CSV file in UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}, line {skipped + 1}: is not UTF-8 text: is this a CSV file?") from None
    place = f"{path}, line {skipped + 1}"
    if "\r" in text.rstrip("\r\n"):
        raise UserError(f"{place}: lines end with carriage returns alone, as on old Macs: write line feeds instead")
    delimiter = options.delimiter or max(_DELIMITERS, key=text.count)
    reader = csv.reader([text, ""], delimiter=delimiter)
    fields = [field.strip() for field in next(reader)]
    if reader.line_num > 1:
        raise UserError(f"{place}: a quoted field does not end in this line: leave line breaks out of names")
    header = _has_names(fields, options) if options.header is None else options.header
    if header is None:
        raise UserError(f"{place}: may hold names or a sample: say --header or --no-header")
    names = fields if header else None
    if len(fields) == 1 and options.labels_needed:
        raise UserError(f"{path}: there is only a label column, no features; is the delimiter right?")
    columns = choose_columns(len(fields), names, options, str(path))
    return Form(delimiter, columns, skipped + int(header), len(raw), options.communicator)


def _has_names(fields: list[str], options: ReadOptions) -> bool | None:
    """Whether a first line has names and is no sample, ``None`` if it may be either."""
    others = set()  # places that hold no features, as far as they were chosen by number
    for choice in (options.label_column or -1, *options.ignore_columns):
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
    counted = [str(place) for place in range(len(fields))]  # what pandas calls columns without names
    if not numbers:
        return bool(words or labels)
    if labels - {"y"} or (labels and features == counted[: len(features)]):  # y may mean yes
        return True
    return None if words or labels or fields == counted else False


def _read_fast(path: Path, form: Form) -> _Table:
    """The samples through pyarrow."""
    import pyarrow as pa

    blocks: list[npt.NDArray[np.float64]] = []
    labels: list[Any] = []
    for block, column in fast_blocks(path, form):
        blocks.append(block)
        labels.append(column)
    features = _joined(blocks, len(form.columns.features))
    if form.columns.label is None:
        return features, [], np.zeros(0, np.intp)
    return features, *index_column(pa.chunked_array(labels, pa.string()))


def fast_blocks(
    path: Path, form: Form, on_open: Callable[[BinaryIO], None] | None = None
) -> Iterator[tuple[npt.NDArray[np.float64], Any]]:
    """The samples of this rank through pyarrow, block by block: features, and, if wanted, label texts as its array.

    Raises
    ------
    pyarrow.ArrowInvalid, RefusedError
        If `slow_blocks` has to look at the file.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    columns = form.columns
    names = [str(place) for place in range(columns.count)]  # headers may repeat
    types: dict[str, Any] = {names[place]: pa.float64() for place in columns.features}
    if columns.label is not None:
        types[names[columns.label]] = pa.string()
    with open_share(path, form.ranks, form.skipped, on_open) as file:
        try:
            reader = pa_csv.open_csv(
                file,
                # A line must fit into a block.
                read_options=pa_csv.ReadOptions(
                    column_names=names, block_size=max(_BLOCK_BYTES, 4 * form.line_bytes), use_threads=False
                ),
                parse_options=pa_csv.ParseOptions(delimiter=form.delimiter),
                convert_options=pa_csv.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=list(MISSING), strings_can_be_null=True
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return
            raise
        for batch in reader:
            if any(column.null_count for column in batch.columns):
                raise RefusedError
            block = batch.select([names[place] for place in columns.features]).to_tensor().to_numpy()
            if not np.isfinite(block).all():
                raise RefusedError
            yield block, None if columns.label is None else batch.column(names[columns.label])


def _joined(blocks: list[npt.NDArray[np.float64]], columns: int) -> npt.NDArray[np.float64]:
    """All rows in one array; a block is given up as soon as it is copied."""
    result = np.empty((sum(block.shape[0] for block in blocks), columns))
    blocks.reverse()
    first = 0
    while blocks:
        block = blocks.pop()
        result[first : first + block.shape[0]] = block
        first += block.shape[0]
    return result


def _read_slowly(path: Path, form: Form) -> _Table:
    """As `_read_fast`, in Python, with the place of the first mistake in the message of a `UserError`."""
    blocks: list[npt.NDArray[np.float64]] = []
    labels = []
    for block, texts in slow_blocks(path, form):
        blocks.append(block)
        labels.append(index_texts(texts))
    return _joined(blocks, len(form.columns.features)), *join_texts(labels)


def slow_blocks(
    path: Path, form: Form, on_open: Callable[[BinaryIO], None] | None = None
) -> Iterator[tuple[npt.NDArray[np.float64], list[str]]]:
    """The same in Python; label texts come as a list.

    Raises
    ------
    UserError
        With the place of the first mistake.
    """
    columns = form.columns
    places, label = columns.features, columns.label
    rows: list[list[float]] = []
    texts: list[str] = []
    for line, fields in _records(path, form, on_open):
        if len(fields) != columns.count:
            raise UserError(
                f"{path}, line {line}: has {len(fields)} fields, line {form.skipped or 1} has {columns.count}"
            )
        rows.append([_value(fields[place], f"{path}, line {line}, {columns[place]}") for place in places])
        if label is not None:
            text = fields[label].strip()
            if text in MISSING:
                raise UserError(f"{path}, line {line}, {columns[label]}: {_NO_LABEL}")
            texts.append(text)
        if len(rows) * len(places) >= BLOCK_VALUES:
            yield np.array(rows), texts
            rows, texts = [], []
    if rows:
        yield np.array(rows), texts


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
            else "put it right, say --label-column if this column is the label, or leave it out with --ignore-column"
        )
        raise UserError(f"{place}: {shortened(text)} is not a number: {remedy}")
    if not np.isfinite(value):
        raise UserError(f"{place}: the value is {text}: it must be finite")
    return value


def find_label_mistake(path: Path, form: Form) -> None:
    """Look for a mistake in the labels.

    Raises
    ------
    UserError
        For the first label that may not be, or is not like the first one; it names the line.
    """
    label = form.columns.label
    assert label is not None
    first: str | None = None
    for line, fields in _records(path, form):
        text = fields[label].strip()
        value = number(text)
        place = f"{path}, line {line}, {form.columns[label]}"
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


def _records(
    path: Path, form: Form, on_open: Callable[[BinaryIO], None] | None = None
) -> Iterator[tuple[int, list[str]]]:
    """The samples' fields and their line numbers."""
    before = lines_before(path, form.ranks, form.skipped)
    with open_share(path, form.ranks, form.skipped, on_open) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=form.delimiter)
        line = before
        try:
            for fields in reader:
                first, line = line + 1, before + reader.line_num
                if fields and not (len(fields) == 1 and not fields[0].strip()):
                    yield first, fields
        except UnicodeDecodeError:
            raise UserError(f"{path}, after line {line}: is not UTF-8 text") from None
        except csv.Error as error:
            raise UserError(f"{path}, line {line + 1}: {error}") from None
