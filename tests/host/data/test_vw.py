"""Vowpal Wabbit's text format, right or wrong, and features that are hashed, also those of LIBSVM files."""

import gzip
import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32
from support.data_files import read_in_blocks
from support.ranks import run_ranks
from support.sparse_text import PARSERS, check_mistake, only_plain_lines, told, use_parser

from p4sgd.host.data import FeatureSpace, read_dataset
from p4sgd.host.data.formats import sparse_text
from p4sgd.host.data.formats.vw import VwSource, hash_name
from p4sgd.host.errors import UserError

TEXT = b"""1 1.0 'first |Metric:3.28 height:1.5 length:2 |Says black with white stripes

-1 | 5:2 x:3 007 x:-1
-3.5 tag|7 3 x:0.5|f a:1e-3 color:red
"""
COLUMNS = {
    18: [
        {90345: 4.92, 106708: 6.56, 100768: 1, 112832: 1, 129139: 1, 163314: 1},
        {5: 2, 7: 1, 170779: 2},
        {10: 1, 13408: 0.5, 194882: 1e-3, 161235: 1},
    ],
    4: [{9: 5.92, 4: 6.56, 0: 2, 3: 1, 2: 1}, {5: 2, 7: 1, 11: 2}, {10: 1, 0: 0.5, 2: 1e-3, 3: 1}],
}
"""Values of `TEXT` by column, for each number of bits: those of vowpalwabbit 9.11.9."""


@pytest.fixture(params=PARSERS)
def parser(request):
    with use_parser(request.param):
        yield


def write(tmp_path, content, name="data.vw"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def by_column(matrix):
    return [
        dict(zip(matrix[[row]].indices.tolist(), matrix[[row]].data.tolist(), strict=True))
        for row in range(matrix.shape[0])
    ]


@pytest.mark.parametrize("bits", COLUMNS)
def test_columns_are_those_of_vowpal_wabbit(tmp_path, parser, bits):
    path = write(tmp_path, gzip.compress(TEXT), "data.vw.gz")
    data = read_dataset(path, hash_bits=bits)
    assert isinstance(data.features, scipy.sparse.csr_array)
    assert data.features.has_canonical_format
    assert data.features.shape == (3, 1 << bits)
    assert [
        row == pytest.approx(expected) for row, expected in zip(by_column(data.features), COLUMNS[bits], strict=True)
    ]
    assert data.labels.tolist() == [1, -1, -3.5]
    assert data.space == FeatureSpace(1 << bits, zero_based=True, hash_bits=bits)


def test_names_of_digits_are_numbers():
    assert (hash_name(b"007", 0), hash_name(b"7", 3), hash_name(b"7a", 0) == 7) == (7, 10, False)
    assert hash_name(b"1" * 5000, 5) % (1 << 64) == (10**5000 // 9 + 5) % (1 << 64)


NAMES = st.text(
    st.characters(min_codepoint=33, exclude_characters=":|", exclude_categories=["Cs"]), min_size=1, max_size=9
)
SCALES = st.sampled_from([None, 1.0, -2.5, 0.125])
FEATURES = st.lists(st.tuples(NAMES, st.none() | st.floats(-1e9, 1e9)), max_size=6)
SAMPLES = st.tuples(
    st.floats(-1e9, 1e9),
    st.sampled_from(["", " 1", " 1.0 0", " 2.5", " 0", " 1e-3 0"]),
    st.sampled_from([" ", " tag", " 'tag ", "\t"]),
    st.lists(st.tuples(st.just("") | NAMES, SCALES, FEATURES), min_size=1, max_size=3),
)


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


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=st.lists(SAMPLES, min_size=1, max_size=6), bits=st.sampled_from([3, 10, 28]))
@example([(1.0, "", " ", [("n", -2.5, [("a", 1e9), ("a", None), ("a", 1.5)])])], 10)
def test_what_was_written_is_read(tmp_path_factory, samples, bits):
    path = write(tmp_path_factory.getbasetemp(), "\n".join(map(line_of, samples)).encode())
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
        with pytest.raises(UserError, match="no sample has a feature"):
            read_dataset(path, hash_bits=bits)
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


WORDS = st.one_of(
    st.sampled_from(
        ["1", "-1", "0.5", "+2", "nan", "1e999", "cat", "1:2", "'t", "'", "|", "||", "|:2", ":3", "a:", "a:b:c"]
    ),
    st.sampled_from(["|n", "|n:2", "|n:x", "|n:1e300", "a:1e300", "a:2x", "a:nan", "a:infinity", "a:Inf", "a:nyc"]),
    st.sampled_from(["a:n", "7:india", "a|b", "12", "1x", "a:1|", "é"]),
    st.sampled_from(["18446744073709551615:1", "9" * 30, "\0", "\x01b", "a:1:2", "|7", "abcd", "abcde:.5"]),
    st.from_regex(r"[0-9a-c]{1,5}(:-?[0-9]{0,2}\.?[0-9]{0,2})?", fullmatch=True),
)
LINES = st.one_of(
    st.builds(
        lambda head, words, blank: head + blank.join(words),
        st.sampled_from(["", "1 |", "1 1|", "1 1 |", "1 'a |x ", "-1 1 0 tag| ", "1 2 | ", "|", "2\t|"]),
        st.lists(WORDS, max_size=6),
        st.sampled_from([" ", "\t", "  ", "\v", "\xa0"]),
    ),
    st.builds(
        lambda words: f"1 |f {' '.join(words)}", st.lists(st.from_regex(r"[a-z]{1,8}(:[0-9]\.5)?", fullmatch=True))
    ),
).map(str.encode)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    lines=st.lists(st.one_of(LINES, st.just(b""), st.just(b"1 |\xff a:\xff")), max_size=6),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    bits=st.sampled_from([None, 2, 28]),
    labels_needed=st.booleans(),
)
def test_the_kernel_reads_what_python_reads(tmp_path_factory, lines, ending, bits, labels_needed):
    path = write(tmp_path_factory.getbasetemp(), ending.join(lines), "any.vw")
    compiled, python = (told(path, name, hash_bits=bits, labels_needed=labels_needed) for name in PARSERS)
    assert compiled == python


def test_the_kernel_parses_plain_lines(tmp_path):
    """Namespaces, scales, tags, texts, blank lines and importances are plain, so that no file of these is slow."""
    text = b"1 2.5 'id |n:2 a:1 b \xc3\xa9:.5 |m 7 abcdefghi|o x\r\n\n\t-1  t|a:-1 12:1\n \r\n"
    text += b"+1\t1 | a a 5:1e0 b:red:1 c:nyc 7:X|"
    path = write(tmp_path, text)
    with only_plain_lines(VwSource):
        data = read_dataset(path)
        unlabelled = read_dataset(path, labels_needed=False)
    assert data.labels.tolist() == [1, -1, 1]
    assert data.sample_weights.tolist() == [2.5, 1, 1]
    assert np.diff(data.features.indptr).tolist() == [6, 1, 5]
    assert unlabelled.features.nnz == 12


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"1 a b", "there is no | before the features"),
        (b"cat |a b", "the label is 'cat': not a number"),
        (b"nan |a b", "the label is nan: it must be finite"),
        (b"|a b", "the label is missing"),
        (b"1|a b", "the label is missing: '1' touches the | and is a tag"),
        (b"1 -2 |a b", "the importance is -2: it must be at least 0"),
        (b"1 x |a b", "the importance is 'x': not a number"),
        (b"1 1 0.5 |a b", "the base is 0.5: bases other than 0 are not supported"),
        (b"1 1 0 0 |a b", "'1 1 0 0' before the | is more than label, importance and base"),
        (b"1 | :3", "the feature ':3' has no name"),
        (b"1 |:3 a", "the namespace ':3' has no name"),
        (b"1 |n:x a", "the scale of namespace 'n' is 'x': not a number"),
        (b"1 |n a:", "the value of feature 'a' is '': not a number"),
        (b"1 |n a:inf", "the value of feature 'a' is inf: it must be finite"),
        (b"1 |n:1e300 a:1e300", "the value of feature 'a' times its namespace's scale is too large"),
        (b"1 | a:1_0", "the value of feature 'a' is '1_0': not a number"),
        (b"1_0 | a", "the label is '1_0': not a number"),
        (b"9007199254740993 | a", "the label 9007199254740993 is too large to be told from others"),
        (b"1 |n a\0", "holds a zero byte"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path, parser, bad, message):
    check_mistake(write(tmp_path, TEXT + bad + b"\n1 | x\n"), f", line 5: {message}")
    check_mistake(write(tmp_path, b"\n \n"), ": there are no samples")
    check_mistake(write(tmp_path, b"1 |\n"), ": no sample has a feature")


def test_what_is_before_the_bar_may_be_anything_if_labels_are_not_needed(tmp_path, parser):
    path = write(tmp_path, b"|n a\n1 0.5 |n a\ncat 'x |n a\n1:2:3|n a\n")
    data = read_dataset(path, labels_needed=False)
    assert (data.labelled, by_column(data.features)) == (
        False,
        [{hash_name(b"a", hash_name(b"n", 0)) % (1 << 18): 1.0}] * 4,
    )


def test_blocks_and_ranks(tmp_path, monkeypatch):
    """They have the same bits, also of sums of several values."""
    rng = np.random.default_rng(3)
    words = [f"w{i}" for i in range(30)]
    lines = [
        f"{i % 2} |n " + " ".join(f"{w}:{v!r}" for w, v in zip(rng.choice(words, 40), rng.normal(size=40), strict=True))
        for i in range(50)
    ]
    path = write(tmp_path, "\n".join(lines).encode())
    whole = read_dataset(path, hash_bits=6)
    monkeypatch.setattr(sparse_text, "_BLOCK_BYTES", 3000)
    blocks, count = read_in_blocks(path, hash_bits=6)
    assert count > 9
    for parts in ([blocks], run_ranks(5, lambda ranks: read_dataset(path, hash_bits=6, communicator=ranks))):
        joined = scipy.sparse.vstack([part.features for part in parts])
        assert joined.toarray().tobytes() == whole.features.toarray().tobytes()
        assert {part.space for part in parts} == {whole.space}


def test_the_training_data_say_how_to_hash(tmp_path):
    path = write(tmp_path, TEXT)
    like = read_dataset(path, hash_bits=4).space
    assert by_column(read_dataset(path, like=like, hash_bits=4).features) == by_column(
        read_dataset(path, like=like).features
    )
    for bits, space, message in [
        (5, like, "--hash-bits is 5, but was 4 for the training data"),
        (None, FeatureSpace(16), "features are hashed, but those of the training data were not"),
        (0, None, "--hash-bits must be 1 to 28, not 0"),
        (29, None, "--hash-bits must be 1 to 28, not 29"),
    ]:
        with pytest.raises(UserError, match=message):
            read_dataset(path, like=space, hash_bits=bits)


def test_numbers_of_a_libsvm_file(tmp_path, parser):
    """Modulo the number of columns, as numbers of Vowpal Wabbit."""
    items = f"0:1 1:2 8:4 9:8.5 2147483648:3 99999999999999:1 {2**63 + 5}:7 {2**64 - 2}:5 {2**64 - 1}:1"
    path = write(tmp_path, f"1 {items}\n-1 3:1\n".encode(), "data.libsvm")
    data = read_dataset(path, hash_bits=3)
    assert by_column(data.features) == [{0: 8, 1: 10.5, 5: 7, 6: 5, 7: 2}, {3: 1}]
    assert data.space == FeatureSpace(8, zero_based=True, hash_bits=3)
    again = read_dataset(write(tmp_path, f"1 | {items}\n-1 | 3:1\n".encode()), like=data.space)
    assert by_column(again.features) == by_column(data.features)
    assert by_column(read_dataset(path, like=data.space).features) == by_column(data.features)
    with pytest.raises(UserError, match=r"line 1: feature 2147483648 is beyond 2147483647: --hash-bits takes larger"):
        read_dataset(path)
    with pytest.raises(UserError, match="with --hash-bits numbers begin at 0: leave --zero-based/--one-based out"):
        read_dataset(path, hash_bits=3, zero_based=False)
    for again, message in [
        (5, "feature 5 comes after feature 5: indices must ascend"),
        (0, "feature 0 comes after feature 5: indices must ascend"),
        (2**64, "feature 18446744073709551616 is beyond 18446744073709551615"),
    ]:
        write(tmp_path, f"1 5:1 {again}:1\n".encode(), "data.libsvm")
        check_mistake(path, f", line 1: {message}", hash_bits=3)
    write(tmp_path, f"1 {2**64 - 1}:1 0:1\n".encode(), "data.libsvm")
    check_mistake(path, f", line 1: feature 0 comes after feature {2**64 - 1}", hash_bits=3)
