"""Mistakes in data files of all formats: each is told with its place, whichever way the file is read."""

import bz2
import gzip
import io
import lzma
import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data_files import SPARSE, X, Y, make_samples, read_in_blocks, use_small_blocks, write_data

from p4sgd.host.data import FeatureSpace, read_dataset
from p4sgd.host.data.formats import sparse_text
from p4sgd.host.errors import UserError

LIBSVM = "# made by hand\n+1 1:0.5 3: -2 # a comment\n\n-1 2:1e-3\n-1 qid:4 1:\t7\n\n"
VW = "1 1.0 'first |Metric:3.28 height:1.5 |Says black with white stripes\n\n-1 | 5:2 x:3 007 x:-1\n\n\n1 | 5\n"
CSV = "age,height,label\n1,2.5,0\n3,-4e2,1\n5,6,1\n"
NO_LABEL = "1,2,a\n" * 40


def zip_with(place, value):
    """An archive of `X` and `Y` with another byte in the central entries of its files."""
    content = io.BytesIO()
    np.savez(content, X=X, y=Y)
    whole = bytearray(content.getvalue())
    for found in re.finditer(rb"PK\x01\x02", whole):
        whole[found.start() + place] = value
    return bytes(whole)


LINES = {  # mistakes in line 7, and the messages after its number
    "data.libsvm": [
        ("cat 1:2", "the label is 'cat': not a number"),
        ("1,2 1:2", "the label is '1,2': several labels, one is needed"),
        ("nan 1:2", "the label is nan: it must be finite"),
        ("1:2 2:3", "begins with '1:2': the label is missing"),
        ("1 2 3", "'2' is not of the form index:value"),
        ("1 a:3", "'a:3' does not begin with a whole number"),
        ("1 -2:3", "feature -2 is below 0"),
        ("1 3:3 2:4", "feature 2 comes after feature 3: indices must ascend"),
        ("1 99999999999:1", "feature 99999999999 is beyond 2147483647: --hash-bits takes larger"),
        ("1 2:x", "the value of feature 2 is 'x': not a number"),
        ("1 2:1e999", "the value of feature 2 is 1e999: it must be finite"),
        ("1 1:1_0", "the value of feature 1 is '1_0': not a number"),
        ("1 1_0:1", "'1_0:1' does not begin with a whole number"),
        ("1_0 1:1", "the label is '1_0': not a number"),
        ("9007199254740992 1:1", "the label is 9007199254740992, too large to be told from others"),
        ("1 \x00", "holds a zero byte"),
        ("1 \udcff:1", "is not UTF-8 text"),
    ],
    "data.vw": [
        ("1 a b", "there is no | before the features"),
        ("nan |a b", "the label is nan: it must be finite"),
        ("1|a b", "the label is missing: '1' touches the | and is a tag"),
        ("1 -2 |a b", "the importance is -2: it must be at least 0"),
        ("1 nan |a b", "the importance is nan: it must be finite"),
        ("1 x |a b", "the importance is 'x': not a number"),
        ("1 1 inf |a b", "the base is inf: it must be finite"),
        ("1 1 0 0 |a b", "'1 1 0 0' before the | is more than label, importance and base"),
        ("1 | :3", "the feature ':3' has no name"),
        ("1 |:3 a", "the namespace ':3' has no name"),
        ("1 |n:x a", "the scale of namespace 'n' is 'x': not a number"),
        ("1 |n a:", "the value of feature 'a' is '': not a number"),
        ("1 |n a:inf", "the value of feature 'a' is inf: it must be finite"),
        ("1 |n:1e300 a:1e300", "the value of feature 'a' times its namespace's scale is too large"),
        ("1_0 | a", "the label is '1_0': not a number"),
        ("9007199254740993 | a", "the label is 9007199254740993, too large to be told from others"),
        ("1 |n a\0", "holds a zero byte"),
    ],
    "data.csv": [
        ("1,2", "has 2 fields, line 1 has 3"),
        ("x,2,1", "column 1 (age): 'x' is not a number"),
        ("1,0x10,1", "column 2 (height): '0x10' is not a number"),
        ('1,"2,5",1', "column 2 (height): '2,5' is not a number: say --decimal , if it is 2.5, or --categorical"),
        ("1,,1", "column 2 (height): the value is missing: fill it in or leave the line out"),
        ("NA,2,1", "column 1 (age): the value is missing (NA)"),
        ("inf,2,1", "column 1 (age): the value is inf: it must be finite"),
        ("1,1e999,1", "column 2 (height): the value is 1e999: it must be finite"),
        ("true,2,1", "column 1 (age): 'true' is not a number"),
    ],
}
BEFORE_AND_AFTER = {"data.libsvm": (LIBSVM, LIBSVM), "data.vw": (VW, VW), "data.csv": (CSV + CSV[17:34], CSV[17:])}

TEXTS = [  # names, contents, options, and messages after the name of the file
    ("a.libsvm", "# none\n\n", {}, ": there are no samples"),
    ("a.libsvm", "1\n-1\n", {}, ": no sample has a feature"),
    ("a.vw", "\n \n", {}, ": there are no samples"),
    ("a.vw", "1 |\n", {}, ": no sample has a feature"),
    ("a.csv", CSV, {"label_column": "weight"}, ": there is no column 'weight' for --label-column"),
    ("a.csv", "1,2,0\n", {"label_column": "w"}, ": there is no column 'w' for --label-column; the columns have"),
    ("a.csv", "class,a,target\n1,2,3\n", {}, ": column 1 (class) and column 3 (target) may have the labels: …target"),
    ("a.csv", "y,a,y\n1,2,3\n", {}, ": …may have the labels: choose with --label-column 3, … with --ignore-column 1 "),
    ("a.csv", "a,a,b\n1,2,3\n", {"label_column": "a"}, ": several columns are called 'a': choose with"),
    ("a.csv", "1,2,0\n3,4,1\n5,6,one\n", {}, ", line 3, column 3: the label is 'one', but '0' before"),
    ("a.csv", "1,2,0\n3,4,9007199254740993\n", {}, ", line 2, column 3: the label is '9007…', too large"),
    ("a.csv", "1,2,{0}\n3,4,5\n", {"header": False}, ", line 2, column 3: the label is '5', but '{0}' before"),
    ("a.csv", "1,2,0\n3,4,inf\n", {}, ", line 2, column 3: the label is 'inf': it must be finite"),
    ("a.csv", "1,2,x\n3,4, NA\n5,6,y\n", {"header": False}, ", line 2, column 3: the label is missing: leave"),
    ("a.csv", NO_LABEL + "1,,b\n" + NO_LABEL, {}, ", line 41, column 2: the value is missing"),
    ("a.csv", NO_LABEL + "1,2,\n" + NO_LABEL, {}, ", line 41, column 3: the label is missing"),
    ("a.csv", NO_LABEL + "1,2,3\n", {}, ", line 41, column 3: the label is '3', but 'a' before"),
    ("a.csv", NO_LABEL + "x,2,a\n", {}, ", line 41, column 1: 'x' is not a number"),
    ("a.csv", NO_LABEL + "1,2\n" + NO_LABEL, {}, ", line 41: has 2 fields, line 1 has 3"),
    ("a.csv", "", {}, ": the file is empty"),
    ("a.csv", "\n \n", {}, ": the file is empty"),
    ("a.csv", CSV[:17], {}, ": there are no samples"),
    ("a.csv", "label\n1\n", {}, ": there is only a label column, no features; is the delimiter right"),
    ("a.csv", " ".join(["1"] * 100_000) + "\n", {"header": False}, ": there is only a label column"),
    ("a.csv", "1,2,0\r3,4,1\r", {}, ", line 1: lines end with carriage returns alone, as on old Macs"),
    ("a.csv", '\n"a\nb",c,label\n1,2,0\n', {}, ", line 2: a quoted field does not end in this line"),
    ("a.csv", "P\0A\0", {}, ", line 1: holds a zero byte: … needs --encoding utf-16-le"),
    ("a.csv", "\0P\0A", {}, ", line 1: holds a zero byte: … needs --encoding utf-16-be"),
    ("a.csv", "a,label\n1,x\n2,\udcff\n", {"encoding": "utf-8"}, ", line 3: is not utf-8 text: --encoding"),
    ("a.csv", "a,label\n1,x\n2,é\n", {"encoding": "ascii"}, ", line 3: is not ascii text: --encoding NAME"),
    ("a.csv", "a,label\n1,x\n2,\udc81\n", {}, ", line 3: is not cp1252 text: --encoding NAME takes another"),
    ("a.csv", "a;label\n1,5;0\n1.5;1\n", {"decimal": ","}, ", line 3, column 1 (a): '1.5' is not a number: say"),
    (
        "a.csv",
        "a,label\n1,5%\n2,7%\n",
        {},
        ", line 2, column 2 (label): the label is '5%', which is not a number: write",
    ),
    ("a.csv", "a;label\n1,5;0\n", {"categorical": ["b"]}, ": there is no column 'b' for --categorical; there"),
    ("a.csv", "a;label\n15;0\n", {"categorical": ["label"]}, ", column 2 (label): is no feature: leave"),
]

TABLES = [  # columns of CSV and Parquet files, and names of the features that a model knows, if any
    ("a b label", None, {"ignore_columns": ["x"]}, ": there is no column 'x' for --ignore-column"),
    ("a b label", None, {"ignore_columns": ["4"]}, ": --ignore-column must be 1 to 3, or -3 to -1, not 4"),
    ("a b label", None, {"ignore_columns": ["a", "b", "label"]}, ": all 3 columns are to be ignored"),
    ("a b label", None, {"ignore_columns": ["a", "2"]}, ": there is only a label column, no features"),
    ("a b label", None, {"label_column": "b", "ignore_columns": ["2"]}, ", column 2 (b): is the label, so"),
    ("a b label", None, {"weight_column": "nix"}, ": there is no column 'nix' for --weight-column"),
    ("a b label", None, {"weight_column": "-20"}, ": --weight-column must be 1 to 3, or -3 to -1, not -20"),
    ("a b y", None, {"weight_column": "y", "label_column": "y"}, ", column 3 (y): is the label, so it cannot have"),
    ("a b y", None, {"weight_column": "a", "ignore_columns": ["a"]}, ", column 1 (a): has the weights, so"),
    ("a b label", None, {"label_column": ["a", "a"]}, ", column 1 (a): is a label already: name it once"),
    ("a b label", "a b c", {}, ": features are missing beside the label (column 3 (label)): c"),
    ("a b c", "a b label", {}, ": features are missing beside the label (column 3 (c)): label"),
    ("a d c price", "a b", {}, ": no column is known for the label: --label-column names it, of d, c, price"),
    ("a d c price", "a b", {"labels_needed": False}, ": features are missing: b"),
    ("a c", "a b", {}, ": features are missing beside the label (column 2 (c)): b"),
    ("a b label", "", {}, ": there are 2 features beside the label (column 3 (label)), 3 are"),
]

ARRAYS = [  # the same of archives, Parquet files and matrices
    ("a.npz", {"X": X}, {}, ": has no labels: an array 'labels' or 'y' is needed"),
    ("a.npz", {"a": X, "y": Y}, {}, ": has no features: an array 'features' or 'X' is needed; there are a, y"),
    ("a.npz", {"X": X, "y": Y[:2]}, {}, ": there are 3 samples, but labels of shape (2,)"),
    ("a.npz", {"X": X, "y": np.array([0, np.inf, 1])}, {}, ": the label of sample 2 is inf"),
    ("a.npz", {"X": X, "y": np.array([0, np.nan, 1])}, {}, ": the label of sample 2 is missing"),
    ("a.npz", {"X": np.where(X == 4, np.nan, X), "y": Y}, {}, ", row 2, feature 2: the value is nan"),
    ("a.npz", {"X": X.astype(str), "y": Y}, {}, ": features must be numbers"),
    ("a.npz", {"X": X.astype(object), "y": Y}, {}, ": is damaged or holds something else than numbers"),
    ("a.npz", {"X": X[0], "y": Y}, {}, ": features must be a matrix"),
    ("a.npz", {"X": X, "y": np.array(["a", "", "b"])}, {}, ": the label of sample 2 is missing: leave"),
    ("a.npz", {"X": X, "y": np.array([b"a", b"b", b"\xff"])}, {}, ", labels: hold bytes that are not UTF-8 text"),
    ("a.npz", {"X": X, "y": np.array([1, 2, 2**64 - 1], np.uint64)}, {}, ": the label of sample 3 is 1844…, too large"),
    ("a.npz", {"X": X, "y": np.array("a")}, {}, ": there are 3 samples, but labels of shape"),
    ("a.npz", {"X": X, "y": Y, "weights": np.ones(4)}, {}, ": there are 3 samples, but weights of shape (4,)"),
    ("a.npz", {"X": X, "y": Y, "weights": np.array(["a"] * 3)}, {}, ", weights: must hold"),
    ("a.npz", {"X": X, "y": Y, "offset": Y, "exposure": Y}, {}, ": has offsets and exposures: add the logarithms"),
    ("a.npz", {"X": X, "y": Y}, {"like": FeatureSpace(2, offset="exposure")}, ": has no array exposure"),
    ("a.npz", zip_with(6, 255), {}, ": cannot be read as NumPy arrays: damaged"),  # the version of its format
    ("a.npz", zip_with(8, 1), {}, ": is damaged or …File 'X.npy' is encrypted"),
    ("a.npz", zip_with(10, 9), {}, ": is damaged or …compression method is not supported"),
    ("a.npz", zip_with(10, 14), {}, ": is damaged or …"),  # LZMA, which it is not
    ("a.npz", {"X": X[:0], "y": Y[:0]}, {}, ": there are no samples"),
    ("a.npz", {**SPARSE, "format": np.array(b"lil")}, {}, ": holds no sparse matrix"),
    ("a.npz", {**SPARSE, "shape": np.array(3)}, {}, ": holds no sparse matrix"),
    ("a.npz", {**SPARSE, "shape": np.array([3.0, 2.0])}, {}, ": holds no sparse matrix"),
    ("a.npz", {**SPARSE, "indptr": np.array([0, 2, 1, 3], np.uint8)}, {}, ": the sparse matrix is damaged: indptr"),
    ("a.npz", {**SPARSE, "indices": np.array([0, 1])}, {}, ": is damaged or holds"),
    ("a.parquet", {"a": [[1], [2]], "y": [0, 1]}, {}, ", column 1 (a): holds list<…>, neither numbers, …--ignore-c"),
    ("a.parquet", {"a": [1, 2], "y": [0, None]}, {}, ", row 2, column 2 (y): the label is missing"),
    ("a.parquet", {"a": [1, 2], "y": [0, -(2**53)]}, {}, ", row 2, column 2 (y): the label is -9007…, too large"),
    ("a.parquet", {"a": pa.array([], pa.float64()), "y": pa.array([], pa.float64())}, {}, ": there are no samples"),
    ("a.npy", np.array([[2**60, 0], [3, 1]]), {"label_column": 1}, f": the label of sample 1 is {2**60}, too large"),
]

CHANGED = [  # a value of `make_samples`
    *((name, (47, 3, np.inf), ", row 48, feature 4: the value is inf") for name in ("data.npy", "sparse.npz")),
    ("data.parquet", (47, 3, np.inf), ", row 48, column 4 (c3): the value is inf"),
    *((name, (47, -1, np.nan), ": the label of sample 48 is missing") for name in ("data.npy", "data.npz")),
    ("data.parquet", (47, -1, np.nan), ", row 48, column 8 (label): the label is missing"),
]


def table_of(names, known, options):
    """A row for each column, in both formats."""
    columns, rows = names.split(), np.arange(3 * len(names.split())).reshape(3, -1)
    like = {} if known is None else {"like": FeatureSpace(len(known.split()) or 3, tuple(known.split()))}
    text = "".join(",".join(map(str, row)) + "\n" for row in (columns, *rows.tolist()))
    return [("a.csv", text, options | like), ("a.parquet", dict(zip(columns, rows.T, strict=True)), options | like)]


CASES = [
    *TEXTS,
    *ARRAYS,
    *((*case, message) for names, known, options, message in TABLES for case in table_of(names, known, options)),
    *((name, place, {}, message) for name, place, message in CHANGED),
    *(
        (name, f"{before}{bad}\n{after}", {}, f", line 7{', ' if message.startswith('column') else ': '}{message}")
        for name, (before, after) in BEFORE_AND_AFTER.items()
        for bad, message in LINES[name]
    ),
]


def put(folder, name, content):
    path = folder / name
    if isinstance(content, str):
        path.write_bytes(content.encode(errors="surrogateescape"))
    elif isinstance(content, tuple):
        row, column, value = content
        features, labels = make_samples(6)
        (labels if column < 0 else features[:, column])[row] = value
        write_data(folder, name, features, labels)
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    elif name.endswith("npz") and isinstance(content, dict):
        np.savez(path, **content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(pa.table(content), path)
    return path


@pytest.mark.parametrize(("name", "content", "options", "message"), CASES)
def test_mistakes(tmp_path, monkeypatch, name, content, options, message):
    path, words = put(tmp_path, name, content), ".*".join(map(re.escape, message.split("…")))
    with pytest.raises(UserError, match=f"^{path}{words}"):
        read_dataset(path, **options)
    use_small_blocks(monkeypatch)
    for least in (math.inf, 0) if name.endswith(("libsvm", "vw")) else (math.inf,):
        monkeypatch.setattr(sparse_text, "_COMPILED_BYTES", least)
        with pytest.raises(UserError, match=f"^{path}{words}"):
            read_in_blocks(path, **options)


def test_damage_in_compressed_files_comes_first(tmp_path):
    """It may show as an error in the text, before the checksum is reached."""
    for name, line in {"a.libsvm": "1 1:2\n", "a.csv": "1,2,a\n"}.items():
        content = gzip.compress((line * 40 + "1 2:x\n" + line * 40).encode())
        for path, text in ((tmp_path / f"{name}.gz", content), (tmp_path / f"cut.{name}.gz", content[:-5])):
            path.write_bytes(text)
            for read in (read_dataset, read_in_blocks):
                with pytest.raises(UserError, match="damaged or cut off" if "cut" in path.name else ", line 41: "):
                    read(path)


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_a_changed_byte_of_compressed_files_is_seen(tmp_path, suffix, compress):
    path, content = tmp_path / f"a.libsvm.{suffix}", bytearray(compress(b"1 1:2\n0 2:7\n"))
    content[10] = 0xFF  # in gzip a block of a kind that does not exist, in xz the header
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path}: the compressed data are damaged or cut off: get the file again"):
        read_dataset(path)
