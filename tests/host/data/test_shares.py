"""Ranks that read a file together have between them what one process reads, each its share and nothing else."""

import bz2
import gzip
import io
import lzma

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import run_ranks

from p4sgd.host.data import read_dataset
from p4sgd.host.data.formats.text_file import lines_before, open_share
from p4sgd.host.errors import UserError

SIZES = [2, 3, 8]


def dense(features):
    return features if isinstance(features, np.ndarray) else features.toarray()


def check(source, size, **options):
    """Read a source whole and in shares, and compare; returns how many samples each rank has."""
    whole = read_dataset(source, **options)
    parts = run_ranks(size, lambda ranks: read_dataset(source, communicator=ranks, **options))
    for part in parts:
        assert part.space == whole.space
        assert np.array_equal(part.labels, whole.labels)
        assert (part.label_names, part.labelled, part.sparse) == (whole.label_names, whole.labelled, whole.sparse)
        assert part.features.dtype == whole.features.dtype
    assert np.array_equal(np.concatenate([dense(part.features) for part in parts]), dense(whole.features))
    return [part.features.shape[0] for part in parts]


@settings(max_examples=100)
@given(
    lines=st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    ended=st.booleans(),
    size=st.integers(1, 9),
    skipped=st.integers(0, 3),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_every_line_is_one_ranks(lines, ended, size, skipped, mark, tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "file.txt"
    text = b"\n".join(lines) + b"\n" * ended
    if text.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")):
        text = b"." + text
    path.write_bytes(mark + text)
    skipped = min(skipped, text.count(b"\n"))

    def read(ranks):
        with open_share(path, ranks, skipped) as file:
            return lines_before(path, ranks, skipped), list(file)

    expected = list(io.BytesIO(text))[skipped:]
    shares = run_ranks(size, read)
    assert [line for _, share in shares for line in share] == expected
    first = skipped
    for before, share in shares:
        assert before == first or not share
        first += len(share)


def libsvm(samples, *, first=1, seed=0):
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(samples):
        chosen = np.flatnonzero(rng.random(30) < 0.2)
        items = " ".join(f"{first + column}:{rng.normal():.4f}" for column in chosen)
        lines.append(f"{rng.integers(0, 2)} {items}\n")
    return "".join(lines).encode()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_libsvm(tmp_path, size, first, suffix, compress):
    path = tmp_path / f"made.libsvm{suffix}"
    path.write_bytes(compress(libsvm(101, first=first)))
    counts = check(path, size)
    assert max(counts) < 2 * 101 / size


@pytest.mark.parametrize("size", SIZES)
def test_libsvm_of_which_only_one_share_has_the_first_or_the_last_feature(tmp_path, size):
    lines = ["1 3:1 5:2\n"] * 20
    for place in (0, 19):
        path = tmp_path / f"{place}.libsvm"
        path.write_text("".join([*lines[:place], "0 0:1 99:1\n", *lines[place:]]))
        check(path, size)
        check(path, size, like=read_dataset(path).space)
    few = tmp_path / "few.libsvm"
    few.write_text("".join(lines))
    check(few, size, like=read_dataset(path).space)
    check(path, size, like=read_dataset(few, zero_based=True).space)


def test_more_ranks_than_samples(tmp_path):
    path = tmp_path / "few.libsvm"
    path.write_text("1 1:1\n0 2:1\n")
    assert sorted(check(path, 7)) == [0] * 5 + [1] * 2
    table = tmp_path / "few.csv"
    table.write_text("a,b,label\n1,2,yes\n3,4,no\n")
    assert sorted(check(table, 7)) == [0] * 5 + [1] * 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("names", [("yes", "no", "perhaps"), ("0", "1.5", "+2")])
def test_csv(tmp_path, size, names):
    rng = np.random.default_rng(1)
    path = tmp_path / "made.csv"
    rows = [",".join([*(f"{x:.3f}" for x in rng.normal(size=5)), names[rng.integers(3)]]) for _ in range(57)]
    path.write_text("\n".join(["a,b,c,d,e,label", *rows]))
    check(path, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("texts", [False, True])
def test_parquet(tmp_path, size, texts):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(2)
    columns = {f"x{place}": rng.normal(size=50) for place in range(4)}
    labels = rng.integers(0, 3, 50)
    columns["label"] = np.array(["no", "yes", "perhaps"])[labels] if texts else labels
    path = tmp_path / "made.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=7)
    counts = check(path, size)
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["float64", "float32", "int8", "csr", "texts"])
def test_npz(tmp_path, size, compressed, kind):
    rng = np.random.default_rng(3)
    matrix = (100 * rng.normal(size=(41, 13)) * (rng.random((41, 13)) < 0.3)).round()
    labels = rng.integers(0, 2, 41)
    path = tmp_path / "made.npz"
    if kind == "csr":
        sparse = scipy.sparse.csr_array(matrix)
        arrays = {"format": np.array(b"csr"), "shape": np.array(sparse.shape), "data": sparse.data}
        arrays |= {"indices": sparse.indices, "indptr": sparse.indptr}
    else:
        arrays = {"X": matrix if kind == "texts" else matrix.astype(kind)}
    if kind == "texts":
        labels = np.array(["no", "yes"])[labels]
    (np.savez_compressed if compressed else np.savez)(path, y=labels, **arrays)
    counts = check(path, size)
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("size", SIZES)
def test_npy_and_built_in_sets(tmp_path, size):
    path = tmp_path / "made.npy"
    np.save(path, np.random.default_rng(4).normal(size=(30, 6)).round(2))
    assert max(check(path, size)) <= -(-30 // size)
    assert max(check("iris", size)) <= -(-150 // size)


@pytest.mark.parametrize(
    ("name", "good", "bad", "message"),
    [
        ("made.libsvm", "1 1:1 2:0.5\n", "1 2:x\n", "line 33: the value of feature 2 is 'x'"),
        ("made.libsvm", "1 1:1 2:0.5\n", "1 2:nan\n", "line 33: the value of feature 2 is nan"),
        ("made.csv", "1,2,0\n", "1,,0\n", "line 33, column 2: the value is missing"),
        ("made.csv", "1,2,0\n", "1,2,\n", "line 33, column 3: the label is missing"),
    ],
)
def test_a_mistake_is_told_with_its_line_by_the_rank_that_has_it(tmp_path, name, good, bad, message):
    path = tmp_path / name
    path.write_text(good * 32 + bad + good * 20)

    told = {}

    def read(ranks):
        try:
            read_dataset(path, communicator=ranks)
        except UserError as error:
            told[ranks.rank] = str(error)
            raise

    with pytest.raises(UserError):
        run_ranks(4, read)
    assert told.keys() == {2}
    assert told[2].startswith(f"{path}, {message}")


def test_a_matrix_that_cannot_be_read_in_parts_is_refused(tmp_path):
    matrix = np.ones((8, 4))
    columns = tmp_path / "columns.npz"
    np.savez(columns, X=np.asfortranarray(matrix), y=np.arange(8) % 2)
    with pytest.raises(UserError, match="column by column"):
        run_ranks(2, lambda ranks: read_dataset(columns, communicator=ranks))
    csc = tmp_path / "csc.npz"
    scipy.sparse.save_npz(csc, scipy.sparse.csc_array(matrix))
    with pytest.raises(UserError, match="csc, which cannot be read by rows"):
        run_ranks(2, lambda ranks: read_dataset(csc, communicator=ranks))
