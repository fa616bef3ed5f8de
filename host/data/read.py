"""Data sets by name: files of all formats, read as a whole or in blocks, and scikit-learn's built-in data sets."""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.columns import ReadOptions
from p4sgd.host.data.dataset import Dataset, FeatureSpace, join_shares
from p4sgd.host.data.formats.source import Source
from p4sgd.host.data.formats.text_file import SUFFIXES, open_data, plain_name
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, Communicator, share_of
from p4sgd.host.errors import UserError

__all__ = [
    "BUILTIN",
    "FORMATS",
    "FORMAT_ARGUMENTS",
    "Source",
    "find_format",
    "is_builtin",
    "open_source",
    "read_dataset",
]


BUILTIN = {
    "breast_cancer": "569 tumours, 30 features: malignant (0) or benign (1)",
    "diabetes": "442 patients, 10 features: progression of the disease after a year, a regression",
    "digits": "1797 images of handwritten digits, 64 features, labels 0 to 9; digits:3 is digit 3 against the rest",
    "iris": "150 flowers, 4 features, labels setosa, versicolor, virginica; iris:setosa is that one against the rest",
    "wine": "178 wines, 13 features, labels class_0 to class_2; wine:class_0 is that one against the rest",
}
"""Built-in data sets by name, with descriptions."""

_TABLES = {
    "breast_cancer": ("breast_cancer.csv", 1),
    "digits": ("digits.csv.gz", 0),
    "iris": ("iris.csv", 1),
    "wine": ("wine_data.csv", 1),
}
"""Those that scikit-learn returns as its files have them: name of the file, and lines before the first sample."""

_CLASSES = {"iris": ("setosa", "versicolor", "virginica"), "wine": ("class_0", "class_1", "class_2")}
"""Names of classes that are texts, in the order of their numbers: ``target_names`` in scikit-learn."""


def is_builtin(source: str) -> bool:
    """Whether a source is the name of a built-in data set, such as ``digits`` or ``digits:3``."""
    return source.partition(":")[0] in BUILTIN


def _read_builtin(source: str, communicator: Communicator = SINGLE_PROCESS) -> Dataset:
    """Load a built-in data set.

    With a colon and a label, that label becomes 1 and all others become 0; a class that has a name may be given by its
    number, too. With several ranks, each keeps its share.

    Raises
    ------
    UserError
        If there is no such data set or label.
    """
    name, colon, wanted = source.partition(":")
    if name not in BUILTIN:
        raise UserError(f"there is no built-in data set {name!r}: choose one of {', '.join(BUILTIN)}")
    features, labels = _load_builtin(name)
    names = _CLASSES.get(name, ())
    if colon:
        if name == "diabetes":
            raise UserError(f"{source}: the labels of {name} are measurements, not classes")
        numbers = [str(label) for label in range(int(labels.max()) + 1)]
        known = names or numbers
        if wanted not in (*known, *numbers):
            raise UserError(f"{source}: {name} has no label {wanted!r}; there are {', '.join(known)}")
        labels = (labels == (known if wanted in known else numbers).index(wanted)).astype(float)
        names = ()
    own = share_of(communicator, labels.size)
    return join_shares(features[own.start : own.stop], labels, source, communicator, label_names=names)


def _load_builtin(name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Features (samples, features) and labels (samples,) of a data set, float64.

    Importing scikit-learn takes longer than training on its data sets, so a plain table is read from its folder. It
    loads diabetes itself, whose features it scales, and what a later version has elsewhere.
    """
    file, header = _TABLES.get(name, ("", 0))
    package = importlib.util.find_spec("sklearn")
    assert package is not None, "scikit-learn is a dependency"
    assert package.origin is not None, "it is no namespace"
    path = Path(package.origin).parent / "datasets" / "data" / file
    if path.is_file():
        table = np.loadtxt(path, delimiter=",", skiprows=header)
        return np.ascontiguousarray(table[:, :-1]), table[:, -1]
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")()
    return bunch.data, bunch.target.astype(float)


FORMATS = {
    "libsvm": ("p4sgd.host.data.formats.libsvm", "LibsvmSource"),
    "csv": ("p4sgd.host.data.formats.csv_file", "CsvSource"),
    "npz": ("p4sgd.host.data.formats.npz", "NpzSource"),
    "npy": ("p4sgd.host.data.formats.npy", "NpySource"),
    "parquet": ("p4sgd.host.data.formats.parquet", "ParquetSource"),
    "vw": ("p4sgd.host.data.formats.vw", "VwSource"),
}
"""Module and class of the reader by name of the format. Reading a file imports only what its format needs."""

FORMAT_ARGUMENTS = {
    "libsvm": ("zero_based", "hash_bits"),
    "csv": ("label_column", "weight_column", "ignore_columns", "header", "delimiter"),
    "npz": (),
    "npy": ("label_column", "weight_column", "ignore_columns"),
    "parquet": ("label_column", "weight_column", "ignore_columns"),
    "vw": ("hash_bits",),
}
"""Arguments of `read_dataset` that each format uses; others are refused."""

_COMPRESSED = {"libsvm", "vw", "csv"}
"""Formats whose files may be compressed."""

_EXTENSIONS = {
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".svmlight": "libsvm",
    ".vw": "vw",
    ".csv": "csv",
    ".tsv": "csv",
    ".npz": "npz",
    ".npy": "npy",
    ".parquet": "parquet",
    ".pq": "parquet",
}

_DELIMITERS = "\t" + "".join(map(chr, range(0x20, 0x7F))).replace('"', "")

_ITEM = re.compile(rb"\d+:\S")

_BAR = re.compile(rb"([-+.\d][^|,;:#\t]*)?\|([^\s|]+ |\s)")
"""The beginning of a line for Vowpal Wabbit. Between the bars of a table there are seldom blanks."""

_MAX_HASH_BITS = 28
"""With 2^28 features a model file has 7 GB."""


def read_dataset(
    source: str | Path,
    *,
    file_format: str | None = None,
    label_column: str | int | Sequence[str | int] | None = None,
    ignore_columns: Sequence[str | int] = (),
    labels_needed: bool = True,
    like: FeatureSpace | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    zero_based: bool | None = None,
    hash_bits: int | None = None,
    missing: str = "error",
    communicator: Communicator = SINGLE_PROCESS,
    weight_column: str | int | None = None,
) -> Dataset:
    """Read a data set.

    A CSV or Parquet file with texts or gaps is returned as the columns of a table (``table`` of the data set), of which
    `p4sgd.host.training.preparation.encode_table` makes features, unless ``like`` knows how.

    Parameters
    ----------
    source
        Path of a file, or name of a built-in data set (:data:`p4sgd.host.data.read.BUILTIN`; ``./digits`` is always a
        file). The extension gives the format (.libsvm .svm .svmlight .vw .csv .tsv .npz .npy .parquet .pq, text formats
        also with .gz .bz2 .xz after it); without a known extension the first bytes do.
    file_format
        One of `FORMATS`, to override that.
    label_column, ignore_columns, labels_needed, like, header, delimiter, zero_based, hash_bits, missing, \
    communicator, weight_column
        See `p4sgd.host.data.columns.ReadOptions`. Several label columns are several targets.

    Raises
    ------
    UserError
        If there is no such source, or it has an error; the message names file and line, or row and column.
    """
    first, further = label_column, list[str | int]()
    if not isinstance(first, str | int | None):
        first, *further = first
    options = ReadOptions(
        first,
        tuple(ignore_columns),
        labels_needed,
        like,
        header,
        delimiter,
        zero_based,
        hash_bits,
        missing,
        communicator,
        weight_column,
        tuple(further),
    )
    return _open(source, file_format, options).read()


def _check_options(options: ReadOptions) -> None:
    """Check options that do not depend on the file.

    Raises
    ------
    UserError
        If the delimiter or the number of bits is invalid.
    """
    delimiter = options.delimiter
    if delimiter is not None and (len(delimiter) != 1 or delimiter not in _DELIMITERS):
        raise UserError(f"--delimiter must be one ASCII character and no quote, not {delimiter!r}")
    if options.hash_bits is not None and not 1 <= options.hash_bits <= _MAX_HASH_BITS:
        raise UserError(f"--hash-bits must be 1 to {_MAX_HASH_BITS}, not {options.hash_bits}")


def find_format(source: str | Path, file_format: str | None = None) -> tuple[str, bool]:
    """The format of a file, and whether it is guessed from the first bytes.

    Parameters
    ----------
    source, file_format
        See `read_dataset`.

    Raises
    ------
    UserError
        If there is no such file or format, or the format is not recognised.
    """
    path = Path(source)
    if not path.exists():
        raise UserError(f"{source}: there is no such file{_hint(str(source))}")
    if path.is_dir():
        raise UserError(f"{source}: is a folder, a file is needed")
    if not path.is_file():
        raise UserError(f"{source}: is no ordinary file and cannot be read twice: write the data to one")
    guessed = False
    if file_format is None:
        file_format = _EXTENSIONS.get(Path(plain_name(path)).suffix)
    if file_format is None:
        file_format, guessed = _guess_format(path), True
    if file_format not in FORMATS:
        raise UserError(f"there is no format {file_format!r}: choose one of {', '.join(FORMATS)}")
    if file_format not in _COMPRESSED and path.name.lower().endswith(SUFFIXES):
        raise UserError(f"{source}: {file_format} files are read uncompressed: decompress it first")
    return file_format, guessed


def _hint(name: str) -> str:
    """Hint for a name that is not that of a file."""
    from p4sgd.host.data.fetch import ORIGINALS
    from p4sgd.host.data.synth import SHAPES
    from p4sgd.host.data.synth_table import TABLES

    if is_builtin(name):
        return f"; without --format {name} is a data set that comes with scikit-learn"
    ways = [f"p4sgd data fetch {name} fetches the data set"] if name in ORIGINALS else []
    if name in SHAPES:
        fewer = " --samples 1000000" if SHAPES[name].samples > 1_000_000 else ""
        ways.append(f"p4sgd data synth {name}{fewer} --out {name}.npz makes one of its shape")
    if name in TABLES:
        ways.append(f"p4sgd data synth {name} --out {name}.csv makes a table like it")
    if ways:
        return f"; {', '.join(ways)}"
    close = difflib.get_close_matches(name, BUILTIN, n=1)
    return f"; did you mean {close[0]}?" if close else f"; built-in data sets are {', '.join(BUILTIN)}"


def _guess_format(path: Path) -> str:
    """Guess the format from the first bytes.

    Raises
    ------
    UserError
        If they belong to no known format.
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
    if _BAR.match(lines[0]):
        return "vw"
    words = lines[0].split()
    if (len(words) == 1 and not re.search(rb"[,;]", words[0])) or any(_ITEM.match(word) for word in words[1:3]):
        return "libsvm"
    if any(delimiter in lines[0] for delimiter in (b",", b";", b"\t")):
        return "csv"
    raise UserError(f"{path}: unknown format: say which it is with --format")


def open_source(
    source: str | Path,
    *,
    file_format: str | None = None,
    label_column: str | int | Sequence[str | int] | None = None,
    ignore_columns: Sequence[str | int] = (),
    header: bool | None = None,
    delimiter: str | None = None,
    zero_based: bool | None = None,
    hash_bits: int | None = None,
    missing: str = "error",
    weight_column: str | int | None = None,
) -> Source:
    """Open a data set with labels, of which only the first bytes are read.

    Parameters
    ----------
    source, file_format, label_column, ignore_columns, header, delimiter, zero_based, hash_bits, missing, weight_column
        See `p4sgd.host.data.read_dataset`.

    Raises
    ------
    UserError
        If there is no such source or format, or if there are several label columns.
    """
    if not isinstance(label_column, str | int | None):
        raise UserError(
            f"{source}: several label columns cannot be prepared: train from the file, or prepare it for each"
        )
    options = ReadOptions(
        label_column,
        tuple(ignore_columns),
        header=header,
        delimiter=delimiter,
        zero_based=zero_based,
        hash_bits=hash_bits,
        missing=missing,
        weight_column=weight_column,
    )
    return _open(source, file_format, options)


def _open(source: str | Path, file_format: str | None, options: ReadOptions) -> Source:
    """The source of a name; its contents are not read yet."""
    _check_options(options)
    if _names_builtin(source, file_format):
        return _Builtin(Path(source), options)
    found, guessed = find_format(source, file_format)
    module, class_name = FORMATS[found]
    reader: type[Source] = getattr(importlib.import_module(module), class_name)
    return reader(Path(source), options, found if guessed else None)


def _names_builtin(source: str | Path, file_format: str | None) -> bool:
    return isinstance(source, str) and file_format is None and is_builtin(source)


class _Builtin(Source):
    """A data set that comes with scikit-learn, in one block."""

    @property
    def size(self) -> int:
        return 0

    @property
    def position(self) -> int:
        return 0

    def _blocks(self, space: FeatureSpace | None) -> Iterator[Dataset]:
        dataset = self._read()
        self._space = dataset.space
        yield dataset

    def _read(self) -> Dataset:
        dataset, like = _read_builtin(self.name, self.options.communicator), self.options.like
        if like is not None and dataset.feature_count != like.count:
            raise UserError(f"{self.name}: there are {dataset.feature_count} features, {like.count} are needed")
        return dataset
