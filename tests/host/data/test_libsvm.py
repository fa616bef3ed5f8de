"""LIBSVM files, compressed or not, right or wrong."""

import bz2
import gzip
import lzma
import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.ranks import run_ranks
from support.sparse_text import PARSERS, check_mistake, only_plain_lines, told, use_parser

from p4sgd.host.data import FeatureSpace, read_dataset
from p4sgd.host.data.formats.libsvm import LibsvmSource
from p4sgd.host.errors import UserError

TEXT = b"# made by hand\n+1 1:0.5 3:-2 # a comment\n\n-1 2:1e-3\n-1 qid:4 1:7\n"
DENSE = [[0.5, 0, -2], [0, 1e-3, 0], [7, 0, 0]]


@pytest.fixture(autouse=True, params=PARSERS)
def parser(request):
    with use_parser(request.param):
        yield


def write(tmp_path, content, name="data.libsvm"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_read(tmp_path):
    path = write(tmp_path, TEXT)
    data = read_dataset(path)
    assert isinstance(data.features, scipy.sparse.csr_array)
    assert data.features.indices.dtype == np.int32
    assert data.features.toarray().tolist() == DENSE
    assert data.labels.tolist() == [1, -1, -1]
    assert data.name == str(path)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed(tmp_path, suffix, compress):
    for name in (f"data.svm{suffix}", f"a9a.t{suffix}", "a9a"):
        data = read_dataset(write(tmp_path, compress(TEXT), name))
        assert data.features.toarray().tolist() == DENSE
    content = compress(TEXT * 1000)
    path = write(tmp_path, content[: len(content) // 2], f"cut.svm{suffix}")
    with pytest.raises(UserError, match=f"^{path}: the compressed data are damaged or cut off: get the file again"):
        read_dataset(path)
    middle = len(content) // 2
    path.write_bytes(
        content[:middle] + bytes(byte ^ 0x5A for byte in content[middle : middle + 20]) + content[middle + 20 :]
    )
    with pytest.raises(UserError, match=f"^{path}: the compressed data are damaged or cut off: get the file again"):
        read_dataset(path)


@pytest.mark.parametrize(
    ("trained", "text", "zero_based", "expected"),
    [
        (None, b"1 0:1 2:2\n", None, [[1, 0, 2]]),
        (None, b"1 0:1 2:2\n", True, [[1, 0, 2]]),
        (None, b"1 0:1 2:2\n", False, "line 1: feature 0 is below 1"),
        (None, b"1 2:2\n", None, [[0, 2]]),
        (None, b"1 2:2\n", True, [[0, 0, 2]]),
        (b"1 0:1 2:2\n", b"1 2:2\n", None, [[0, 0, 2]]),  # a file from 0 without a feature 0 looks like one from 1
        (b"1 1:1 3:2\n", b"1 2:2\n", None, [[0, 2, 0]]),
        (b"1 0:1 2:2\n", b"1 2:2\n", False, [[0, 2, 0]]),
        (b"1 1:1 3:2\n", b"1 0:1\n", None, "feature 0 is below 1: say --zero-based if that is the first one"),
    ],
)
def test_where_indices_begin(tmp_path, trained, text, zero_based, expected):
    like = None if trained is None else read_dataset(write(tmp_path, trained, "train")).space
    path = write(tmp_path, text)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            read_dataset(path, like=like, zero_based=zero_based)
    else:
        assert read_dataset(path, like=like, zero_based=zero_based).features.toarray().tolist() == expected


def test_labels_that_are_not_needed_may_be_anything(tmp_path):
    path = write(tmp_path, b"nan 1:1\n0 2:1\ncat 1:2\n1,2 2:3\n7\n+#\n")
    with pytest.raises(UserError, match=r"line 6: the label is '\+': not a number \(is this a LIBSVM file\?\)"):
        read_dataset(path, labels_needed=False)
    path.write_bytes(path.read_bytes()[:-3])
    data = read_dataset(path, labels_needed=False)
    assert (data.labelled, data.labels.tolist()) == (False, [0] * 5)
    assert data.features.toarray().tolist() == [[1, 0], [0, 1], [2, 0], [0, 3], [0, 0]]
    path = write(tmp_path, b"nan 1:1\n0 2:nan\n")
    with pytest.raises(UserError, match="line 2: the value of feature 2 is nan"):
        read_dataset(path, labels_needed=False)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_labels_that_are_not_needed_may_be_missing(tmp_path, compress):
    text = b"1:0.5 3:-2 # at 12:30\n  2:1e-3\n\nqid:4 1:7\n2\t1:1\n1:3\t2:4\n"
    data = read_dataset(write(tmp_path, compress(text)), labels_needed=False)
    assert data.features.toarray().tolist() == [*DENSE, [1, 0, 0], [3, 4, 0]]
    with pytest.raises(UserError, match=r"line 1: begins with '1:0\.5': the label is missing"):
        read_dataset(tmp_path / "data.libsvm")
    path = write(tmp_path, compress(b"1:1\n2:1 1:1\n"))
    with pytest.raises(UserError, match="line 2: feature 1 comes after feature 2"):
        read_dataset(path, labels_needed=False)


def test_width_of_the_training_data(tmp_path):
    """Features that the model lacks are told, of all ranks, however many have samples with such features."""
    path = write(tmp_path, TEXT + b"1 2:1 4:1\n" * 1000)
    wide = [[*row, 0] for row in DENSE] + [[0, 1, 0, 1]] * 1000
    for known, remarks in {
        1: ("2,002 values of 3 features beyond the 1 that the model knows: left out",),
        3: ("1,000 values of 1 feature beyond the 3 that the model knows: left out",),
        4: (),
        5: (),
    }.items():
        like = FeatureSpace(known)
        for ranks in (1, 3):
            parts = run_ranks(ranks, lambda each, like=like: read_dataset(path, like=like, communicator=each))
            assert [part.remarks for part in parts] == [remarks] * ranks
            features = scipy.sparse.vstack([part.features for part in parts]).toarray()
            assert features.tolist() == [[*row, 0][:known] for row in wide]
    empty = write(tmp_path, b"1\n-1\n", "labels-only")
    assert read_dataset(empty, like=FeatureSpace(4)).features.toarray().tolist() == [[0] * 4] * 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"cat 1:2", "the label is 'cat': not a number"),
        (b"1,2 1:2", "the label is '1,2': several labels, one is needed"),
        (b"nan 1:2", "the label is nan: it must be finite"),
        (b"1:2 2:3", "begins with '1:2': the label is missing"),
        (b"1 2 3", "'2' is not of the form index:value"),
        (b"1 a:3", "'a:3' does not begin with a whole number"),
        (b"1 -2:3", "feature -2 is below 0"),
        (b"1 3:3 2:4", "feature 2 comes after feature 3: indices must ascend"),
        (b"1 99999999999:1", "feature 99999999999 is beyond"),
        (b"1 2:x", "the value of feature 2 is 'x': not a number"),
        (b"1 2:inf", "the value of feature 2 is inf: it must be finite"),
        (b"1 2:1e999", "the value of feature 2 is 1e999: it must be finite"),
        (b"1 1:1_0", "the value of feature 1 is '1_0': not a number"),
        (b"1 1_0:1", "'1_0:1' does not begin with a whole number"),
        (b"1_0 1:1", "the label is '1_0': not a number"),
        (b"9007199254740992 1:1", "the label 9007199254740992 is too large to be told from others"),
        (b"1 \x00", "holds a zero byte"),
        (b"1 \xff:1", "is not UTF-8 text"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_mistakes_name_file_and_line(tmp_path, bad, message, packed):
    text = TEXT + bad + b"\n1 1:1\n"
    check_mistake(write(tmp_path, gzip.compress(text) if packed else text), f", line 6: {message}")
    check_mistake(write(tmp_path, b"# nothing\n\n"), ": there are no samples")
    check_mistake(write(tmp_path, b"1\n-1\n"), ": no sample has a feature")


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).flatmap(
        lambda x: st.sampled_from([repr(x), f"{x:.16g}", f"{x:.18e}", f"{x:+g}", f"{x:.20f}"])
    ),
    # Numbers half way between two of float64, with as many digits as the kernel takes and with more.
    st.builds(lambda m, k: f"{(2 * m + 1) * 5**k}e-{k}", st.integers(1 << 52, (1 << 53) - 1), st.integers(0, 5)),
    st.from_regex(r"[+-]?[0-9]{0,22}\.?[0-9]{0,22}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["1_000", "nan", "-inf", "0x1p3", "1e", ".", "1e400", "-0", "1e-400", "4e-320", "１", "", "2:3"]),
)
INDICES = st.one_of(
    st.integers(0, 9).map(str),
    st.sampled_from(["-1", "+7", "08", "1_1", "x", "", "2147483646", "2147483648", "9" * 25]),
)
LINES = st.one_of(
    st.builds(
        lambda label, qid, items, blank, ending: f"{label}{qid}{blank}{blank.join(items)}{ending}",
        st.sampled_from(["1", "-1", "+1", "0.5", "3e2", "1_0", "nan", "cat", "1,2", "4:1", "qid:2", ""]),
        st.sampled_from(["", "", "", " qid:3", " qid", "\tqid:", " qid:é"]),
        st.lists(st.builds("{}:{}".format, INDICES, NUMBERS), max_size=4),
        st.sampled_from([" ", "\t", "  ", "\v", "\xa0"]),
        st.sampled_from(["", "\r", " ", "#", " # 1:2", "# \0", "\0"]),
    ),
    st.builds(
        lambda items: f"1 {' '.join(f'{index}:{value}' for index, value in sorted(items.items()))}",
        st.dictionaries(st.integers(0, 99), st.floats(-9, 9).map(repr), max_size=4),
    ),
).map(str.encode)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    lines=st.lists(st.one_of(LINES, st.just(b""), st.just(b"1 1:\xff")), max_size=8),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    zero_based=st.sampled_from([None, True, False]),
    labels_needed=st.booleans(),
)
@example([b"1 3:0.1", b"1 4:9007199254740993", b"2"], b"\n", None, True)
def test_the_kernel_reads_what_python_reads(tmp_path_factory, lines, ending, zero_based, labels_needed):
    path = write(tmp_path_factory.getbasetemp(), ending.join(lines), "any.libsvm")
    compiled, python = (told(path, name, zero_based=zero_based, labels_needed=labels_needed) for name in PARSERS)
    assert compiled == python


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=NUMBERS)
def test_values_are_those_of_float(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "number.libsvm"
    path.write_text(f"1 1:{text}\n", encoding="utf-8")
    try:
        expected = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        expected = math.nan
    if math.isfinite(expected):
        assert read_dataset(path).features.data.tobytes() == np.float64(expected).tobytes()
    else:
        with pytest.raises(UserError, match="line 1: the value of feature 1 is"):
            read_dataset(path)


def test_what_python_accepts_is_accepted(tmp_path):
    """Spellings that the kernel leaves to Python, and labels that float64 tells apart."""
    large = write(tmp_path, b"9007199254740991 1:1\n1e16 1:1\n")
    assert read_dataset(large).labels.tolist() == [2**53 - 1, 1e16]
    text = b"10 +1:1e3 02:0.30000000000000000000000001\n2 qid:\xff 10:5\n3\v4:7 # \0 \xff\n"
    data = read_dataset(write(tmp_path, text))
    assert data.labels.tolist() == [10, 2, 3]
    assert data.features[:, [0, 1, 3, 9]].toarray().tolist() == [[1000, 0.3, 0, 0], [0, 0, 0, 5], [0, 0, 7, 0]]


def test_the_kernel_parses_plain_lines(tmp_path):
    """Comments, blanks and signs are plain, so that no file of these is slow."""
    text = TEXT + b"\t \r\n -1.5E+0\t1:-.5e-3   3:17. \r\n+1 2:123456789012345678#\n1"
    with only_plain_lines(LibsvmSource):
        data = read_dataset(write(tmp_path, text))
        unlabelled = read_dataset(write(tmp_path, b"1:2 3:4\n7 1:1\ncat qid:3 2:1", "unlabelled"), labels_needed=False)
    assert data.labels.tolist() == [1, -1, -1, -1.5, 1, 1]
    assert data.features.toarray().tolist() == [*DENSE, [-0.5e-3, 0, 17], [0, 1.2345678901234568e17, 0], [0, 0, 0]]
    assert unlabelled.features.toarray().tolist() == [[2, 0, 4], [1, 0, 0], [0, 1, 0]]
