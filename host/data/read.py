"""Data sets by name: files of all formats, and scikit-learn's built-in data sets."""

import contextlib
import dataclasses
import difflib
import importlib
import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from p4sgd.host.data.builtin import BUILTIN, BuiltinSource, is_builtin
from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.dataset import Dataset
from p4sgd.host.data.formats.source import Source, read
from p4sgd.host.data.formats.text_file import SUFFIXES, one_word_each, open_data, plain_name, temporary_file
from p4sgd.host.data.reading import SAID
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator
from p4sgd.host.errors import UserError, option

_COLUMNS = ("label_column", "weight_column", "offset_column", "exposure_column", "ignore_columns")
_SPELLING = ("header", "delimiter", "decimal", "thousands", "missing_values", "encoding")


class Format(NamedTuple):
    """A file format: module and class of its reader, the fields of `ReadOptions` that it uses, while others are
    refused, its file name extensions, and the first bytes of its files. If there are none, it is a text, which may be
    compressed."""

    module: str
    reader: str
    arguments: tuple[str, ...]
    extensions: tuple[str, ...]
    magic: bytes = b""


FORMATS = {
    "libsvm": Format("libsvm", "LibsvmSource", ("zero_based", "hash_bits"), (".libsvm", ".svm", ".svmlight")),
    "csv": Format("csv_file", "CsvSource", (*_COLUMNS, "categorical", "id_column", *_SPELLING), (".csv", ".tsv")),
    "npz": Format("npz", "NpzSource", (), (".npz",), b"PK\x03\x04"),
    "npy": Format("npy", "NpySource", _COLUMNS, (".npy",), b"\x93NUMPY"),
    "parquet": Format(
        "parquet", "ParquetSource", (*_COLUMNS, "categorical", "id_column"), (".parquet", ".pq"), b"PAR1"
    ),
    "vw": Format("vw", "VwSource", ("hash_bits",), (".vw",)),
}
"""Formats by name. Reading a file imports only what its format needs."""

_DELIMITERS = "\t" + "".join(map(chr, range(0x20, 0x7F))).replace('"', "")

_ITEM = re.compile(rb"\d+:\S")

_BAR = re.compile(rb"([-+.\d][^|,;:#\t]*)?\|([^\s|]+ |\s)")
"""The beginning of a line for Vowpal Wabbit. Between the bars of a table there are seldom blanks."""

STANDARD_INPUT = "-"
"""Name of the data that are read from standard input."""

_LIBSVM_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"

_copies: dict[Any, Any] = {}
"""Files with copies of what can be read once: of standard input by its stream, and of pipes by their inodes."""

_MAX_HASH_BITS = 28
"""With 2^28 features a model file has 7 GB."""


def read_dataset(source: str | Path, *, communicator: Communicator = SINGLE_PROCESS, **reading: Any) -> Dataset:
    """Read a data set; each rank of a communicator reads all of it.

    A CSV or Parquet file with texts or gaps is returned as the columns of a table (``table`` of the data set), of which
    `p4sgd.host.training.preparation.encode_table` makes features, unless ``like`` knows how. For ``reading`` and errors
    see `open_source`.
    """
    return read(open_source(source, **reading), communicator=communicator)


def open_source(
    source: str | Path,
    *,
    file_format: str | None = None,
    label_column: str | int | Sequence[str | int] | None = None,
    **reading: Any,
) -> Source:
    """Open a data set, of which only the first bytes are read.

    Parameters
    ----------
    source
        Path of a file, or name of a built-in data set (:data:`p4sgd.host.data.read.BUILTIN`; ``./digits`` is always a
        file), or ``-`` for standard input. The extension gives the format (.libsvm .svm .svmlight .vw .csv .tsv .npz
        .npy .parquet .pq, text formats also with .gz .bz2 .xz after it), or ``file_format``, one of `FORMATS`; without
        either the first bytes do.
    label_column, reading
        See `p4sgd.host.data.columns.ReadOptions`. Several values of ``label_column`` are several targets.

    Raises
    ------
    UserError
        If there is no such source, or it has an error; the message names file and line, or row and column.
    """
    labels: Sequence[Any] = [label_column] if isinstance(label_column, str | int | None) else label_column
    options = ReadOptions(label_column=labels[0], target_columns=labels[1:], file_format=file_format, **reading)
    said = {name: getattr(options.known, name) for name in SAID if getattr(options, name) is None}
    options = dataclasses.replace(options, **said)
    options.notation  # noqa: B018 (refuses characters that cannot be)
    delimiter, bits = options.delimiter, options.hash_bits
    if delimiter is not None and (len(delimiter) != 1 or delimiter not in _DELIMITERS):
        raise UserError(f"--delimiter must be one ASCII character and no quote, not {delimiter!r}")
    if bits is not None and not 1 <= bits <= _MAX_HASH_BITS:
        raise UserError(f"--hash-bits must be 1 to {_MAX_HASH_BITS}, not {bits}")
    if isinstance(source, str) and file_format is None and is_builtin(source):
        made: Source = BuiltinSource(Path(source), options)
    else:
        found, guessed = find_format(source, file_format, options.file_format)
        module, class_name, *_ = FORMATS[found]
        reader: type[Source] = getattr(importlib.import_module(f"p4sgd.host.data.formats.{module}"), class_name)
        name = "standard input" if source == STANDARD_INPUT else str(source)
        made = reader(local_file(source), options, found if guessed else None, name)
    if options.dates != "text" and not made.fills_gaps:
        raise UserError(f"{source}: {option('dates', options.dates)} is for CSV and Parquet files: leave it out")
    return made


def local_file(source: str | Path) -> Path:
    """The path of a file; of ``-`` and of pipes, which can be read once, that of a temporary copy."""
    piped = source == STANDARD_INPUT
    if not piped and not Path(source).is_fifo():
        return Path(source)
    origin = sys.stdin if piped else os.stat(source)[stat.ST_INO : stat.ST_DEV + 1]
    if origin not in _copies:
        with contextlib.nullcontext(sys.stdin.buffer) if piped else open(source, "rb") as file:
            _copies[origin] = temporary_file(iter(lambda: file.read(1 << 20), b""))
    return Path(_copies[origin].name)


def find_format(source: str | Path, file_format: str | None = None, usual: str | None = None) -> tuple[str, bool]:
    """The format of a file, and whether it is guessed from the first bytes; see `open_source`. A ``usual`` one is taken
    rather than guessed."""
    path = local_file(source)
    if not path.exists():
        raise UserError(f"{source}: there is no such file{_hint(str(source))}")
    if path.is_dir():
        raise UserError(f"{source}: is a folder, a file is needed")
    if not path.is_file():
        raise UserError(
            f"{source}: is no ordinary file and cannot be read twice: write the data to one, or pipe them to -"
        )
    guessed = False
    if file_format is None:
        suffix = Path(plain_name(Path(source))).suffix
        file_format = next((name for name, each in FORMATS.items() if suffix in each.extensions), usual)
    if file_format is None:
        file_format, guessed = _guess_format(path, str(source)), True
    if file_format not in FORMATS:
        raise UserError(f"there is no format {file_format!r}: choose one of {', '.join(FORMATS)}")
    if FORMATS[file_format].magic and path.name.lower().endswith(SUFFIXES):
        raise UserError(f"{source}: {file_format} files are read uncompressed: decompress it first")
    return file_format, guessed


def _hint(name: str) -> str:
    from p4sgd.host.data.synth import SHAPES, TABLES

    if is_builtin(name):
        return f"; without --format {name} is a data set that comes with scikit-learn"
    ways = [f"the data set is at {_LIBSVM_PAGE}"] if name in (*SHAPES, "a9a") and name != "zipf" else []
    if name in SHAPES:
        fewer = " --samples 1000000" if SHAPES[name].samples > 1_000_000 else ""
        ways.append(f"p4sgd data synth {name}{fewer} --out {name}.npz makes one of its shape")
    if name in TABLES:
        ways.append(f"p4sgd data synth {name} --out {name}.csv makes a table like it")
    close = difflib.get_close_matches(name, BUILTIN, n=1)
    ways = ways or [f"did you mean {close[0]}?" if close else f"built-in data sets are {', '.join(BUILTIN)}"]
    return f"; {', '.join(ways)}"


def _guess_format(path: Path, name: str) -> str:
    """Guess the format from the first bytes; `UserError` if they belong to no known one."""
    with open_data(path) as file:
        start = file.read(1 << 16)
    for known, each in FORMATS.items():
        if each.magic and start.startswith(each.magic):
            return known
    lines = [line for line in start.splitlines() if line.strip() and not line.lstrip().startswith(b"#")]
    if not lines:
        raise UserError(f"{name}: the file is empty")
    if b"\0" in start:
        raise UserError(f"{name}: unknown format: --format takes {', '.join(FORMATS)}")
    if _BAR.match(lines[0]):
        return "vw"
    words = one_word_each(lines[0]).split()
    if (len(words) == 1 and not re.search(rb"[,;|]", words[0])) or any(_ITEM.match(word) for word in words[1:3]):
        return "libsvm"
    if any(delimiter in lines[0] for delimiter in (b",", b";", b"\t", b"|")):
        return "csv"
    raise UserError(f"{name}: unknown format: say which it is with --format")
