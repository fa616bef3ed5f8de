"""LIBSVM's and Vowpal Wabbit's text formats, right or wrong, read by the compiled parser or by Python."""

import gzip
import math
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32
from support.data_files import read_in_blocks

from p4sgd.host.data import FeatureSpace, read_dataset
from p4sgd.host.data.formats import sparse_text
from p4sgd.host.data.formats.libsvm import LibsvmSource
from p4sgd.host.data.formats.vw import VwSource, hash_name
from p4sgd.host.errors import UserError

LIBSVM = b"# made by hand\n+1 1:0.5 3: -2 # a comment\n\n-1 2:1e-3\n-1 qid:4 1:\t7\n"
DENSE = [[0.5, 0, -2], [0, 1e-3, 0], [7, 0, 0]]

VW = b"""1 1.0 'first |Metric:3.28 height:1.5 length:2 |Says black with white stripes

-1 | 5:2 x:3 007 x:-1
-3.5 tag|7 3 x:0.5|f a:1e-3 color:red
"""
COLUMNS = {
    18: [
        {90345: 4.92, 129139: 6.56, 100768: 1, 106708: 1, 112832: 1, 163314: 1},
        {5: 2, 7: 1, 170779: 2},
        {10: 1, 13408: 0.5, 14355: 1e-3, 161235: 1},
    ],
    4: [{9: 4.92, 3: 6.56, 0: 2, 4: 1, 2: 1}, {5: 2, 7: 1, 11: 2}, {10: 1, 0: 0.5, 3: 1.001}],
}
"""Values of `VW` by column, for each number of bits: those of vowpalwabbit 9.11.9 (--chain_hash)."""

PARSERS = ("compiled", "python")


@contextmanager
def use_parser(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_text, "_COMPILED_BYTES", 0 if name == "compiled" else math.inf)
        yield


@pytest.fixture(params=PARSERS)
def parser(request):
    with use_parser(request.param):
        yield


def write(folder, content, name="data.libsvm"):
    path = folder / name
    path.write_bytes(content)
    return path


def by_column(matrix):
    return [
        dict(zip(matrix[[row]].indices.tolist(), matrix[[row]].data.tolist(), strict=True))
        for row in range(matrix.shape[0])
    ]


def check_mistake(path, message, **options):
    with pytest.raises(UserError) as raised:
        read_dataset(path, **options)
    assert str(raised.value).startswith(f"{path}{message}")


def test_lines_without_a_label_are_left_out(tmp_path, parser):
    lines = b"1 |a b\n|a c\n-1 |a d\n 'tag |a e\ntag|a f\n"
    path = write(tmp_path, lines, "data.vw")
    labelled = read_dataset(write(tmp_path, b"1 |a b\n-1 |a d\n", "labelled.vw"))
    data = read_dataset(path)
    assert (data.labels.tolist(), data.remarks) == ([1, -1], ("3 lines have no label: left out",))
    assert (data.features != labelled.features).nnz == 0
    assert read_in_blocks(path)[0].remarks == data.remarks
    assert read_dataset(path, labels_needed=False).samples == 5
    check_mistake(write(tmp_path, b"|a b\n| c\n", "none.vw"), ": no line has a label")


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
        (b"1 1:1 3:2\n", b"1 0:1\n", None, "line 1: feature 0 is below 1: say --zero-based if that is the first one"),
    ],
)
def test_where_indices_begin(tmp_path, parser, trained, text, zero_based, expected):
    like = None if trained is None else read_dataset(write(tmp_path, trained, "train")).space
    path = write(tmp_path, text)
    if isinstance(expected, str):
        check_mistake(path, f", {expected}", like=like, zero_based=zero_based)
    else:
        assert read_dataset(path, like=like, zero_based=zero_based).features.toarray().tolist() == expected


def test_labels_that_are_not_needed_may_be_anything_or_missing(tmp_path, parser):
    def features(content, name="data.libsvm"):
        data = read_dataset(write(tmp_path, content, name), labels_needed=False)
        assert (data.labelled, data.labels.any()) == (False, False)
        return data.features.toarray().tolist()

    anything = b"nan 1:1\n0 2:1\ncat 1:2\n1,2 2:3\n7\n"
    assert features(anything) == [[1, 0], [0, 1], [2, 0], [0, 3], [0, 0]]
    missing = b"1:0.5 3:-2 # at 12:30\n  2:1e-3\n\nqid:4 1:7\n2\t1:1\n1:3\t2:4\n"
    assert features(missing) == features(gzip.compress(missing)) == [*DENSE, [1, 0, 0], [3, 4, 0]]
    check_mistake(tmp_path / "data.libsvm", ", line 1: begins with '1:0.5': the label is missing")
    for bad, message in [
        (anything + b"+#\n", ", line 6: the label is '+': not a number (is this a LIBSVM file?)"),
        (b"nan 1:1\n0 2:nan\n", ", line 2: the value of feature 2 is nan"),
        (b"1:1\n2:1 1:1\n", ", line 2: feature 1 comes after feature 2"),
    ]:
        check_mistake(write(tmp_path, bad), message, labels_needed=False)
    column = hash_name(b"a", hash_name(b"n", 0)) % (1 << 18)
    path = write(tmp_path, b"|n a\n1 0.5 |n a\ncat 'x |n a\n1:2:3|n a\n", "data.vw")
    assert by_column(read_dataset(path, labels_needed=False).features) == [{column: 1.0}] * 4


def test_width_of_the_training_data(tmp_path):
    """Features that the model lacks are told."""
    path = write(tmp_path, LIBSVM + b"1 2:1 4:1\n" * 1000)
    wide = [[*row, 0] for row in DENSE] + [[0, 1, 0, 1]] * 1000
    for known, remarks in {
        1: ("2,002 values of 3 features beyond the 1 that the model knows: left out",),
        3: ("1,000 values of 1 feature beyond the 3 that the model knows: left out",),
        4: (),
        5: (),
    }.items():
        data = read_dataset(path, like=FeatureSpace(known))
        assert data.remarks == remarks
        assert data.features.toarray().tolist() == [[*row, 0][:known] for row in wide]
    empty = write(tmp_path, b"1\n-1\n", "labels-only")
    assert read_dataset(empty, like=FeatureSpace(4)).features.toarray().tolist() == [[0] * 4] * 2


@pytest.mark.parametrize("bits", COLUMNS)
def test_columns_are_those_of_vowpal_wabbit(tmp_path, parser, bits):
    path = write(tmp_path, gzip.compress(VW), "data.vw.gz")
    data = read_dataset(path, hash_bits=bits)
    assert data.features.has_canonical_format
    assert data.features.shape == (3, 1 << bits)
    for row, expected in zip(by_column(data.features), COLUMNS[bits], strict=True):
        assert row == pytest.approx(expected)
    assert data.labels.tolist() == [1, -1, -3.5]
    assert data.space == FeatureSpace(1 << bits, zero_based=True, hash_bits=bits)
    again = read_dataset(path, like=data.space)
    assert by_column(again.features) == by_column(data.features)
    assert (hash_name(b"007", 0), hash_name(b"7", 3), hash_name(b"7a", 0) == 7) == (7, 10, False)
    assert hash_name(b"1" * 5000, 5) % (1 << 64) == (10**5000 // 9 + 5) % (1 << 64)


NAMES = st.text(
    st.characters(min_codepoint=33, exclude_characters=":|", exclude_categories=["Cs"]), min_size=1, max_size=9
)
SCALES = st.sampled_from([None, 1.0, -2.5, 0.125])
FEATURES = st.lists(st.tuples(NAMES, st.none() | st.floats(-1e9, 1e9)), max_size=6)
SAMPLES = st.tuples(
    st.floats(-1e9, 1e9),
    st.sampled_from(["", " 1", " 1.0 0", " 2.5", " 0 -1.5", " 1e-3 0", " 1 2e3"]),
    st.sampled_from([" ", " tag", " 'tag ", "\t"]),
    st.lists(st.tuples(st.just("") | NAMES, SCALES, FEATURES), min_size=1, max_size=3),
)
ANY_FOLDER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def line_of(sample):
    label, weights, tag, spaces = sample
    parts = []
    for name, scale, features in spaces:
        head = name + (f":{scale!r}" if name and scale is not None else "")
        parts.append("|" + " ".join([head, *(n if v is None else f"{n}:{v!r}" for n, v in features)]))
    return f"{label!r}{weights}{tag}{' '.join(parts)}"


def column_of(name, seed):
    """As the description says, with scikit-learn's hash."""
    code = name.encode()
    return int(name) + seed if code.isdigit() else murmurhash3_32(code, seed & 0xFFFFFFFF, positive=True)


@settings(max_examples=60, suppress_health_check=ANY_FOLDER)
@given(samples=st.lists(SAMPLES, min_size=1, max_size=6), bits=st.sampled_from([3, 10, 28]))
@example([(1.0, "", " ", [("n", -2.5, [("a", 1e9), ("a", None), ("a", 1.5)])])], 10)
def test_names_are_hashed_and_their_values_added(tmp_path_factory, samples, bits):
    path = write(tmp_path_factory.getbasetemp(), "\n".join(map(line_of, samples)).encode(), "data.vw")
    expected = []
    for _, _, _, spaces in samples:
        row = {}
        for name, scale, features in spaces:
            seed = column_of(name, 0) if name else 0
            for feature, value in features:
                column = column_of(feature, seed) % (1 << bits)
                row.setdefault(column, []).append((1.0 if value is None else value) * ((name and scale) or 1.0))
        expected.append({column: math.fsum(values) for column, values in row.items()})
    if not any(expected):
        check_mistake(path, ": no sample has a feature", hash_bits=bits)
        return
    for name in PARSERS:
        with use_parser(name):
            data = read_dataset(path, hash_bits=bits)
        for row, values in zip(by_column(data.features), expected, strict=True):
            assert row == pytest.approx(values, rel=1e-12, abs=1e-5)
        assert data.labels.tolist() == [label for label, *_ in samples]
        weights = [float((weights.split() or ["1"])[0]) for _, weights, _, _ in samples]
        assert (data.sample_weights is None) == (set(weights) == {1})
        assert data.sample_weights is None or data.sample_weights.tolist() == weights
        bases = [float((numbers.split()[1:] or ["0"])[0]) for _, numbers, _, _ in samples]
        assert (data.offsets is None) == (not any(bases))
        assert data.offsets is None or data.offsets.tolist() == bases


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
LIBSVM_LINES = st.one_of(
    st.builds(
        lambda label, qid, items, blank, ending: f"{label}{qid}{blank}{blank.join(items)}{ending}",
        st.sampled_from(["1", "-1", "+1", "0.5", "3e2", "1_0", "nan", "cat", "1,2", "4:1", "qid:2", ""]),
        st.sampled_from(["", "", "", " qid:3", " qid", "\tqid:", " qid: ", " qid:2:\v", " qid:é"]),
        st.lists(st.builds("{}:{}{}".format, INDICES, st.sampled_from(["", "", "", " ", "\v"]), NUMBERS), max_size=4),
        st.sampled_from([" ", "\t", "  ", "\v", "\xa0"]),
        st.sampled_from(["", "\r", " ", "#", " # 1:2", "# \0", "\0"]),
    ),
    st.builds(
        lambda items: f"1 {' '.join(f'{index}:{value}' for index, value in sorted(items.items()))}",
        st.dictionaries(st.integers(0, 99), st.floats(-9, 9).map(repr), max_size=4),
    ),
).map(str.encode)
WORDS = st.one_of(
    st.sampled_from(
        ["1", "-1", "0.5", "+2", "nan", "1e999", "cat", "1:2", "'t", "'", "|", "||", "|:2", ":3", "a:", "a:b:c"]
    ),
    st.sampled_from(["|n", "|n:2", "|n:x", "|n:1e300", "a:1e300", "a:2x", "a:nan", "a:infinity", "a:Inf", "a:nyc"]),
    st.sampled_from(["a:n", "7:india", "a|b", "12", "1x", "a:1|", "é"]),
    st.sampled_from(["18446744073709551615:1", "9" * 30, "\0", "\x01b", "a:1:2", "|7", "abcd", "abcde:.5"]),
    st.from_regex(r"[0-9a-c]{1,5}(:-?[0-9]{0,2}\.?[0-9]{0,2})?", fullmatch=True),
)
VW_HEADS = ",1 |,1 1|,1 1 |,1 'a |x ,-1 1 0 tag| ,1 1 .5 |,1 1 2e-3 't |,1 1 x|,1 1 1e999 |,1 1 3|,1 2 | ,|,2\t|"
VW_LINES = st.one_of(
    st.builds(
        lambda head, words, blank: head + blank.join(words),
        st.sampled_from(VW_HEADS.split(",")),
        st.lists(WORDS, max_size=6),
        st.sampled_from([" ", "\t", "  ", "\v", "\xa0"]),
    ),
    st.builds(
        lambda words: f"1 |f {' '.join(words)}", st.lists(st.from_regex(r"[a-z]{1,8}(:[0-9]\.5)?", fullmatch=True))
    ),
).map(str.encode)


def told(path, parser, **options):
    """What reading gives: all bits of the samples, or the message."""
    with use_parser(parser):
        try:
            data = read_dataset(path, **options)
        except UserError as error:
            return str(error)
    matrix = data.features
    beside = (each for each in (data.sample_weights, data.offsets) if each is not None)
    arrays = (matrix.data, matrix.indices, matrix.indptr, data.labels, *beside)
    return [(array.dtype, array.tobytes()) for array in arrays], matrix.shape, data.space.zero_based


@settings(max_examples=200, suppress_health_check=ANY_FOLDER)
@given(
    case=st.one_of(
        st.tuples(
            st.just("any.libsvm"),
            st.lists(st.one_of(LIBSVM_LINES, st.just(b""), st.just(b"1 1:\xff")), max_size=8),
            st.fixed_dictionaries({"zero_based": st.sampled_from([None, True, False])}),
        ),
        st.tuples(
            st.just("any.vw"),
            st.lists(st.one_of(VW_LINES, st.just(b""), st.just(b"1 |\xff a:\xff")), max_size=6),
            st.fixed_dictionaries({"hash_bits": st.sampled_from([None, 2, 28])}),
        ),
    ),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    needed=st.booleans(),
)
@example(("any.libsvm", [b"1 3:0.1", b"1 4:9007199254740993", b"2"], {}), b"\n", True)
@example(("any.libsvm", [b"1\tqid: 0:0.0", b"1 qid:\t", b"1 qid:2: 3:1", b"1 qid:#"], {}), b"\n", True)
def test_the_kernel_reads_what_python_reads(tmp_path_factory, case, ending, needed):
    name, lines, options = case
    path = write(tmp_path_factory.getbasetemp(), ending.join(lines), name)
    compiled, python = (told(path, parser, labels_needed=needed, **options) for parser in PARSERS)
    assert compiled == python


@settings(suppress_health_check=ANY_FOLDER)
@given(text=NUMBERS, name=st.sampled_from(PARSERS))
def test_values_are_those_of_float(tmp_path_factory, text, name):
    path = write(tmp_path_factory.getbasetemp(), f"1 1:{text}\n".encode(), "number.libsvm")
    try:
        expected = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        expected = math.nan
    with use_parser(name):
        if math.isfinite(expected):
            assert read_dataset(path).features.data.tobytes() == np.float64(expected).tobytes()
        else:
            check_mistake(path, ", line 1: the value of feature 1 is")


def test_what_python_accepts_is_accepted(tmp_path, parser):
    """Spellings that the kernel leaves to Python, and labels that float64 tells apart."""
    large = write(tmp_path, b"9007199254740991 1:1\n1e16 1:1\n")
    assert read_dataset(large).labels.tolist() == [2**53 - 1, 1e16]
    text = b"10 +1:1e3 02:0.30000000000000000000000001\n2 qid:\xff 10:5\n3\v4:7 # \0 \xff\n"
    data = read_dataset(write(tmp_path, text))
    assert data.labels.tolist() == [10, 2, 3]
    assert data.features[:, [0, 1, 3, 9]].toarray().tolist() == [[1000, 0.3, 0, 0], [0, 0, 0, 5], [0, 0, 7, 0]]


def test_the_kernel_alone_parses_plain_lines(tmp_path, monkeypatch):
    """So that no file with comments, signs, namespaces, scales, tags, texts, blank lines or importances is slow."""
    for source in (LibsvmSource, VwSource):
        monkeypatch.setattr(source, "_parse_line", None)
    text = LIBSVM + b"\t \r\n -1.5E+0\t1:-.5e-3   3:17. \r\n+1 2:123456789012345678#\n1"
    words = b"1 2.5 'id |n:2 a:1 b \xc3\xa9:.5 |m 7 abcdefghi|o x\r\n\n\t-1  t|a:-1 12:1\n \r\n"
    words += b"+1\t1 | a a 5:1e0 b:red:1 c:nyc 7:X|"
    with use_parser("compiled"):
        data = read_dataset(write(tmp_path, text))
        bare = read_dataset(write(tmp_path, b"1:2 3:4\n7 1:1\ncat qid:3 2:1", "bare"), labels_needed=False)
        hashed = read_dataset(write(tmp_path, words, "data.vw"))
        unlabelled = read_dataset(tmp_path / "data.vw", labels_needed=False)
    assert data.labels.tolist() == [1, -1, -1, -1.5, 1, 1]
    assert data.features.toarray().tolist() == [*DENSE, [-0.5e-3, 0, 17], [0, 1.2345678901234568e17, 0], [0, 0, 0]]
    assert bare.features.toarray().tolist() == [[2, 0, 4], [1, 0, 0], [0, 1, 0]]
    assert (hashed.labels.tolist(), hashed.sample_weights.tolist()) == ([1, -1, 1], [2.5, 1, 1])
    assert np.diff(hashed.features.indptr).tolist() == [6, 1, 5]
    assert unlabelled.features.nnz == 12


def test_numbers_of_a_libsvm_file_are_hashed(tmp_path, parser):
    """Modulo the number of columns, as numbers of Vowpal Wabbit."""
    items = f"0:1 1:2 8:4 9:8.5 2147483648:3 99999999999999:1 {2**63 + 5}:7 {2**64 - 2}:5 {2**64 - 1}:1"
    path = write(tmp_path, f"1 {items}\n-1 3:1\n".encode())
    data = read_dataset(path, hash_bits=3)
    assert by_column(data.features) == [{0: 8, 1: 10.5, 5: 7, 6: 5, 7: 2}, {3: 1}]
    assert data.space == FeatureSpace(8, zero_based=True, hash_bits=3)
    named = write(tmp_path, f"1 | {items}\n-1 | 3:1\n".encode(), "data.vw")
    for again in (path, named):
        assert by_column(read_dataset(again, like=data.space).features) == by_column(data.features)
    for file, options, message in [
        (path, {"hash_bits": 3, "zero_based": False}, "with --hash-bits numbers begin at 0: leave --zero-based"),
        (named, {"hash_bits": 5, "like": data.space}, "--hash-bits is 5, but was 3 for the training data: leave it"),
        (named, {"like": FeatureSpace(8)}, "features are hashed, but those of the training data were not"),
    ]:
        check_mistake(file, f": {message}", **options)
    for bits in (0, 29):
        with pytest.raises(UserError, match=f"--hash-bits must be 1 to 28, not {bits}"):
            read_dataset(named, hash_bits=bits)
    for line, message in [
        ("1 5:1 5:1", "feature 5 comes after feature 5: indices must ascend"),
        (f"1 {2**64}:1", "feature 18446744073709551616 is beyond 18446744073709551615"),
        (f"1 {2**64 - 1}:1 0:1", f"feature 0 comes after feature {2**64 - 1}"),
    ]:
        check_mistake(write(tmp_path, line.encode()), f", line 1: {message}", hash_bits=3)
