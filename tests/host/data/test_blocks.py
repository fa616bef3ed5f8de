"""A data file read in blocks, or by several ranks, is what one process reads as a whole, mistakes included."""

import bz2
import gzip
import io
import lzma

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data_files import FORMATS, WITHOUT_TEXTS, make_samples, read_in_blocks, use_small_blocks, write_data
from support.ranks import run_ranks

from p4sgd.host.data import read_dataset
from p4sgd.host.data.formats import sparse_text
from p4sgd.host.data.formats.text_file import lines_before, open_share
from p4sgd.host.errors import UserError

SIZES = [2, 3, 8]


@pytest.fixture
def small_blocks(monkeypatch):
    use_small_blocks(monkeypatch)


def dense(features):
    return features if isinstance(features, np.ndarray) else features.toarray()


def check_shares(source, size, **options):
    """Read a source whole and in shares, and compare; returns how many samples each rank has."""
    whole = read_dataset(source, **options)
    parts = run_ranks(size, lambda ranks: read_dataset(source, communicator=ranks, **options))
    for part in parts:
        assert part.space == whole.space
        assert np.array_equal(part.labels, whole.labels)
        assert (part.label_names, part.labelled, part.sparse) == (whole.label_names, whole.labelled, whole.sparse)
        assert part.features.dtype == whole.features.dtype
    assert dense(whole.features).tobytes() == np.concatenate([dense(part.features) for part in parts]).tobytes()
    return [part.features.shape[0] for part in parts]


def check_blocks(path):
    """The same of blocks; returns their number."""
    whole, (blocks, count) = read_dataset(path), read_in_blocks(path)
    assert dense(blocks.features).tobytes() == dense(whole.features).tobytes()
    assert blocks.features.dtype == whole.features.dtype
    assert (blocks.sparse, blocks.space, blocks.remarks) == (whole.sparse, whole.space, whole.remarks)
    assert (blocks.labels.tolist(), blocks.label_names) == (whole.labels.tolist(), whole.label_names)
    return count


@pytest.mark.parametrize(
    ("name", "texts"),
    [(name, texts) for name in FORMATS for texts in (False, True) if not (texts and name in WITHOUT_TEXTS)],
)
def test_every_format(tmp_path, small_blocks, name, texts):
    path = write_data(tmp_path, name, *make_samples(5, texts=texts))
    assert check_blocks(path) > 3
    for size in SIZES:
        counts = check_shares(path, size)
        assert max(counts) < 2 * 60 / size


@pytest.mark.parametrize("kind", ["float32", "int8", "compressed", "row groups", "iris", "signs"])
def test_other_types_and_sets(tmp_path, small_blocks, kind):
    x, labels = make_samples(3, 41, 13)
    path = tmp_path / "made.npz"
    if kind == "row groups":
        path = tmp_path / "made.parquet"
        columns = {f"x{place}": column for place, column in enumerate(x.T)}
        pq.write_table(pa.table({**columns, "label": labels}), path, row_group_size=7)
    elif kind == "signs":  # which pyarrow refuses, in the middle
        path = tmp_path / "made.csv"
        path.write_text("".join(f"{i}.25,{'+' * (i == 30)}{i + 1},{i % 2}\n" for i in range(41)))
    elif kind == "compressed":
        np.savez_compressed(path, X=(100 * x).round(), y=labels)
    else:
        np.savez(path, X=x if kind == "iris" else (10 * x).astype(kind), y=labels)
    source = kind if kind == "iris" else path
    check_blocks(source)
    for size in SIZES:
        counts = check_shares(source, size)
        assert max(counts) - min(counts) <= (3 if kind == "signs" else 1)


def test_more_ranks_than_samples(tmp_path):
    for name, text in (("few.libsvm", "1 1:1\n0 2:1\n"), ("few.csv", "a,b,label\n1,2,yes\n3,4,no\n")):
        (tmp_path / name).write_text(text)
        assert sorted(check_shares(tmp_path / name, 7)) == [0] * 5 + [1] * 2
    np.save(tmp_path / "few.npy", np.ones((2, 3), np.float32))
    assert sorted(check_shares(tmp_path / "few.npy", 7)) == [0] * 5 + [1] * 2


@settings(max_examples=100)
@given(
    lines=st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    ended=st.booleans(),
    size=st.integers(1, 9),
    skipped=st.integers(0, 3),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_every_line_is_in_one_share(lines, ended, size, skipped, mark, tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "file.txt"
    text = b"\n".join(lines) + b"\n" * ended
    if text.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\xef\xbb\xbf")):
        text = b"." + text
    path.write_bytes(mark + text)
    skipped = min(skipped, text.count(b"\n"))
    first, found = skipped, []
    for rank in range(size):
        with open_share(path, (rank, size), skipped) as file:
            share = list(file)
        assert not share or lines_before(path, (rank, size), skipped) == first
        first += len(share)
        found += share
    assert found == list(io.BytesIO(text))[skipped:]


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
@settings(max_examples=15)
@given(data=st.data(), first=st.integers(0, 3), samples=st.integers(1, 40))
def test_libsvm_numbers_features_as_the_whole_file_does(tmp_path_factory, suffix, compress, data, first, samples):
    """Whether there is a feature 0 may be known at the last line only."""
    rows = [sorted(data.draw(st.sets(st.integers(first, 9), max_size=4))) for _ in range(samples)]
    rows[-1] = sorted({first, *rows[-1]})
    path = tmp_path_factory.mktemp("libsvm") / f"data.libsvm{suffix}"
    text = "".join(f"{i % 2} " + " ".join(f"{j}:{j + 1}.5" for j in row) + "\n" for i, row in enumerate(rows))
    path.write_bytes(compress(text.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_text, "_BLOCK_BYTES", 20)
        check_blocks(path)
    check_shares(path, 3)


def refusals(path):
    """What reading as a whole, and in blocks, says of a mistake."""
    for read in (read_dataset, read_in_blocks):
        with pytest.raises(UserError) as told:
            read(path)
        yield str(told.value)


BAD = {
    "data.libsvm": [b"1 1:2\n" * 50 + b"1 2:x\n", b"1 1:2\n" * 50 + b"1 0:1\n1 4:nan\n", b"# no\n"],
    "data.csv": [b"1,2,a\n" * 50 + line for line in (b"1,,b\n", b"1,2,3\n", b"x,2,a\n", b"1,2\n", b"1,inf,a\n")],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD.items() for text in texts])
def test_mistakes_in_text(tmp_path, small_blocks, name, text):
    for path, packed in ((tmp_path / name, text), (tmp_path / f"{name}.gz", gzip.compress(text))):
        path.write_bytes(packed)
        expected, told = refusals(path)
        assert told == expected
    path.write_bytes(packed[:-5])
    assert all("damaged or cut off" in told for told in refusals(path))


@pytest.mark.parametrize("name", ["data.npy", "data.npz", "sparse.npz", "data.parquet"])
def test_mistakes_in_rows(tmp_path, small_blocks, name):
    features, labels = make_samples(6)
    features[47, 3] = np.inf
    expected, told = refusals(write_data(tmp_path, name, features, labels))
    assert told == expected
    assert "row 48" in told
    features[47, 3], labels = 0, labels.astype(float)
    labels[47] = np.nan
    expected, told = refusals(write_data(tmp_path, name, features, labels))
    assert told == expected
    assert "label of sample 48 is nan" in told


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
    path, told = tmp_path / name, {}
    path.write_text(good * 32 + bad + good * 20)

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


CSC = scipy.sparse.csc_array(np.eye(4))
BY_COLUMNS = {"format": b"csc", "shape": CSC.shape, "data": CSC.data, "indices": CSC.indices, "indptr": CSC.indptr}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": np.ones((4, 3), order="F"), "y": np.ones(4)}, "column by column"),
        (BY_COLUMNS | {"y": np.ones(4)}, "csc, which cannot be read by"),
        ({"X": np.ones((4, 3)), "y": np.ones(3)}, r"4 samples, but labels of shape \(3,\)"),
        ({"X": np.ones((4, 3))}, "has no labels"),
    ],
)
def test_archives_that_cannot_be_read_in_parts(tmp_path, arrays, words):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    for read in (read_in_blocks, lambda path: run_ranks(2, lambda ranks: read_dataset(path, communicator=ranks))):
        with pytest.raises(UserError, match=words):
            read(path)
