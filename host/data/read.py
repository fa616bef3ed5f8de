"""Reading a data set from wherever it is."""

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from p4sgd.host.data.arrays import read_npy, read_npz
from p4sgd.host.data.builtin import BUILTIN, is_builtin, read_builtin
from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.csv_file import read_csv
from p4sgd.host.data.dataset import Dataset, FeatureSpace
from p4sgd.host.data.libsvm import read_libsvm
from p4sgd.host.data.opening import SUFFIXES, check_compression, open_data, plain_name
from p4sgd.host.data.parquet import read_parquet
from p4sgd.host.errors import UserError
from p4sgd.host.launch.communicator import ALONE, Communicator

__all__ = ["FORMATS", "HEEDED", "check_options", "explained", "find_format", "read_dataset"]

FORMATS: dict[str, Callable[[Path, ReadOptions], Dataset]] = {
    "libsvm": read_libsvm,
    "csv": read_csv,
    "npz": read_npz,
    "npy": read_npy,
    "parquet": read_parquet,
}
"""Readers by the name of their format."""

HEEDED = {
    "libsvm": ("zero_based",),
    "csv": ("label_column", "ignore_columns", "header", "delimiter"),
    "npz": (),
    "npy": ("label_column", "ignore_columns"),
    "parquet": ("label_column", "ignore_columns"),
}
"""By the name of a format: those arguments of `read_dataset` that say how it is to be read."""

_COMPRESSED = {"libsvm", "csv"}
"""Formats that may be compressed as a whole."""

_EXTENSIONS = {
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".svmlight": "libsvm",
    ".csv": "csv",
    ".tsv": "csv",
    ".npz": "npz",
    ".npy": "npy",
    ".parquet": "parquet",
    ".pq": "parquet",
}

_DELIMITERS = "\t" + "".join(map(chr, range(0x20, 0x7F))).replace('"', "")

_ITEM = re.compile(rb"\d+:\S")


def read_dataset(
    source: str | Path,
    *,
    file_format: str | None = None,
    label_column: str | int | None = None,
    ignore_columns: Sequence[str | int] = (),
    labels_needed: bool = True,
    like: FeatureSpace | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    zero_based: bool | None = None,
    communicator: Communicator = ALONE,
) -> Dataset:
    """Read a data set.

    Parameters
    ----------
    source
        Path of a file, or name of a built-in data set (:data:`p4sgd.host.data.builtin.BUILTIN`; ``./digits`` is a file
        in any case). The format is that of the extension (.libsvm .svm .svmlight .csv .tsv .npz .npy .parquet .pq,
        text formats also with .gz .bz2 .xz after it), else seen from the first bytes.
    file_format
        One of `FORMATS`, to override that.
    label_column, ignore_columns, labels_needed, like, header, delimiter, zero_based, communicator
        See `p4sgd.host.data.columns.ReadOptions`.

    Raises
    ------
    UserError
        If there is no such source or something is wrong with it; the message names file and line, or row and column.
    """
    options = ReadOptions(
        label_column, tuple(ignore_columns), labels_needed, like, header, delimiter, zero_based, communicator
    )
    check_options(options)
    if isinstance(source, str) and file_format is None and is_builtin(source):
        dataset = read_builtin(source, communicator)
        if like is not None and dataset.feature_count != like.count:
            raise UserError(f"{source}: there are {dataset.feature_count} features, {like.count} are needed")
        return dataset
    path = Path(source)
    file_format, guessed = find_format(source, file_format)
    with explained(path, file_format if guessed else None):
        return FORMATS[file_format](path, options)


def check_options(options: ReadOptions) -> None:
    """Refuse options that no file can be read with.

    Raises
    ------
    UserError
        If the delimiter is none.
    """
    delimiter = options.delimiter
    if delimiter is not None and (len(delimiter) != 1 or delimiter not in _DELIMITERS):
        raise UserError(f"the delimiter must be one ASCII character and no quote, not {delimiter!r}")


def find_format(source: str | Path, file_format: str | None = None) -> tuple[str, bool]:
    """The format of a file, and whether it was guessed from the first bytes.

    Parameters
    ----------
    source, file_format
        See `read_dataset`.

    Raises
    ------
    UserError
        If there is no such file or format, or none is to be seen.
    """
    path = Path(source)
    if not path.exists():
        raise UserError(f"{source}: there is no such file{_hint(str(source))}")
    if path.is_dir():
        raise UserError(f"{source}: is a folder, a file is needed")
    guessed = False
    if file_format is None:
        file_format = _EXTENSIONS.get(Path(plain_name(path)).suffix)
    if file_format is None:
        file_format, guessed = _look(path), True
    if file_format not in FORMATS:
        raise UserError(f"there is no format {file_format!r}; there are {', '.join(FORMATS)}")
    if file_format not in _COMPRESSED and path.name.lower().endswith(SUFFIXES):
        raise UserError(f"{source}: {file_format} files are read uncompressed: decompress it first")
    return file_format, guessed


def _hint(name: str) -> str:
    """What may be meant by a name that is no file's."""
    from p4sgd.host.data.fetch import ORIGINALS
    from p4sgd.host.data.synth import SHAPES

    if is_builtin(name):
        return f"; without --format {name} is a data set that comes with scikit-learn"
    ways = [f"p4sgd data fetch {name} fetches the data set"] if name in ORIGINALS else []
    if name in SHAPES:
        ways.append(f"p4sgd data synth {name} --out {name}.npz makes one of its shape")
    if ways:
        return f"; {', '.join(ways)}"
    close = difflib.get_close_matches(name, BUILTIN, n=1)
    return f"; did you mean {close[0]}?" if close else f"; built-in data sets are {', '.join(BUILTIN)}"


@contextmanager
def explained(path: Path, guessed: str | None) -> Iterator[None]:
    """Read a file; what a mistake looks like may not be what it is.

    Parameters
    ----------
    path
        The file.
    guessed
        Its format, if that was only guessed.

    Raises
    ------
    UserError
        Those from within the ``with`` block, with a hint if the format was guessed; or another one if compressed data
        are damaged, which as text may look like the user's mistake before it is found out.
    """
    try:
        yield
    except UserError as error:
        check_compression(path)
        if guessed is not None:
            raise UserError(f"{error} (it looks like {guessed}; if it is not, say so with --format)") from error
        raise


def _look(path: Path) -> str:
    """The format that the first bytes show.

    Raises
    ------
    UserError
        If they show none.
    """
    with open_data(path) as file:
        start = file.read(1 << 16)
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(b"\x93NUMPY"):
        return "npy"
    if start.startswith(b"PK\x03\x04"):
        return "npz"
    lines = [line for line in start.splitlines() if line.strip() and not line.lstrip().startswith(b"#")]
    if not lines:
        raise UserError(f"{path}: the file is empty")
    if b"\0" in start:
        raise UserError(f"{path}: unknown format: --format takes {', '.join(FORMATS)}")
    words = lines[0].split()
    if (len(words) == 1 and not re.search(rb"[,;]", words[0])) or any(_ITEM.match(word) for word in words[1:3]):
        return "libsvm"
    if any(delimiter in lines[0] for delimiter in (b",", b";", b"\t")):
        return "csv"
    raise UserError(f"{path}: unknown format: say which it is with --format")
