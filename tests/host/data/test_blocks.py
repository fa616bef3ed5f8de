"""Blocks of a data file: one after another they are what reading the whole file gives, mistakes included."""

import gzip
import os

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data_files import FORMATS, WITHOUT_TEXTS, make_samples, use_small_blocks, write_data

from p4sgd.host.data import read_dataset
from p4sgd.host.data.formats import sparse_text
from p4sgd.host.data.read import open_source
from p4sgd.host.errors import UserError


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few samples."""
    use_small_blocks(monkeypatch)


def read_whole(path):
    """The blocks of a file as one data set: features, texts or numbers of labels, space, how many blocks."""
    source = open_source(path)
    list(source.blocks())
    parts = list(source.blocks(source.space))
    sparse = not isinstance(parts[0].features, np.ndarray)
    features = (scipy.sparse.vstack if sparse else np.concatenate)([part.features for part in parts])
    return features, np.concatenate([names_of(part) for part in parts]), source.space, len(parts)


def names_of(data):
    return np.array(data.label_names)[data.labels.astype(int)] if data.label_names else data.labels


@pytest.mark.parametrize(
    ("name", "texts"),
    [(name, texts) for name in FORMATS for texts in (False, True) if not (texts and name in WITHOUT_TEXTS)],
)
def test_are_the_whole(tmp_path, small_blocks, name, texts):
    path = write_data(tmp_path, name, *make_samples(5, texts=texts))
    whole = read_dataset(path)
    features, labels, space, count = read_whole(path)
    assert count > 3
    assert features.dtype == whole.features.dtype
    assert scipy.sparse.issparse(features) == whole.sparse
    as_array = (lambda x: x.toarray()) if whole.sparse else np.asarray
    assert as_array(features).tobytes() == as_array(whole.features).tobytes()
    assert labels.tolist() == names_of(whole).tolist()
    assert space == whole.space


@settings(max_examples=30)
@given(data=st.data(), first=st.integers(0, 3), samples=st.integers(1, 40))
def test_libsvm_numbers_features_as_the_whole_file_does(tmp_path_factory, data, first, samples):
    """Whether there is a feature 0 may be known at the last line only."""
    rows = [sorted(data.draw(st.sets(st.integers(first, 9), max_size=4))) for _ in range(samples)]
    rows[-1] = sorted({first, *rows[-1]})
    path = tmp_path_factory.mktemp("libsvm") / "data.libsvm"
    path.write_text("".join(f"{i % 2} " + " ".join(f"{j}:{j + 1}.5" for j in row) + "\n" for i, row in enumerate(rows)))
    whole = read_dataset(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_text, "_BLOCK_BYTES", 20)
        features, labels, space, _ = read_whole(path)
    assert (features.toarray() == whole.features.toarray()).all()
    assert labels.tolist() == whole.labels.tolist()
    assert space == whole.space


BAD = {
    "data.libsvm": [b"1 1:2\n" * 50 + b"1 2:x\n", b"1 1:2\n" * 50 + b"1 0:1\n1 4:nan\n", b"# no\n", b"1\n0\n"],
    "data.csv": [
        b"1,2,a\n" * 50 + b"1,,b\n",
        b"1,2,a\n" * 50 + b"1,2,3\n",
        b"1,2,0\n" * 50 + b"1,2,x\n",
        b"1,2,0\n" * 50 + b"1,2\n",
        b"1,2,0\n" * 50 + b"1,2,inf\n",
        b"1,2,0\n" * 50 + b"1,inf,0\n",
        b"a,b,label\n",
    ],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD.items() for text in texts])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mistakes_are_told_as_of_the_whole(tmp_path, small_blocks, name, text, ending):
    path = tmp_path / f"{name}{ending}"
    path.write_bytes(gzip.compress(text) if ending else text)
    with pytest.raises(UserError) as expected:
        read_dataset(path)
    with pytest.raises(UserError) as told:
        list(open_source(path).blocks())
    assert str(told.value) == str(expected.value)


@pytest.mark.parametrize("name", ["data.npy", "data.npz", "sparse.npz", "data.parquet"])
def test_rows_are_counted_over_all_blocks(tmp_path, small_blocks, name):
    features, labels = make_samples(6)
    features[47, 3] = np.inf
    path = write_data(tmp_path, name, features, labels)
    with pytest.raises(UserError, match="row 48") as expected:
        read_dataset(path)
    with pytest.raises(UserError) as told:
        list(open_source(path).blocks())
    assert str(told.value) == str(expected.value)


@pytest.mark.parametrize("name", ["data.npy", "data.npz", "data.parquet"])
def test_labels_are_counted_over_all_blocks(tmp_path, small_blocks, name):
    features, labels = make_samples(6)
    labels = labels.astype(float)
    labels[47] = np.nan
    path = write_data(tmp_path, name, features, labels)
    with pytest.raises(UserError, match="label of sample 48 is nan: leave that sample out") as expected:
        read_dataset(path)
    with pytest.raises(UserError) as told:
        list(open_source(path).blocks())
    assert str(told.value) == str(expected.value)


def test_csv_read_fast_goes_on_slowly(tmp_path, small_blocks):
    """From where pyarrow refuses something, in the middle of the file."""
    path = tmp_path / "data.csv"
    path.write_text("".join(f"{i}.25,{i + 1},{i % 2}\n" for i in range(100)) + "+7,8,1\n" + "9,10,0\n")
    features, labels, _, _ = read_whole(path)
    whole = read_dataset(path)
    assert features.tolist() == whole.features.tolist()
    assert labels.tolist() == whole.labels.tolist()


def test_damaged_compression_is_told(tmp_path, small_blocks):
    path = tmp_path / "data.libsvm.gz"
    path.write_bytes(gzip.compress(b"1 1:2\n" * 1000)[:-12])
    with pytest.raises(UserError, match="damaged or cut off"):
        list(open_source(path).blocks())


@pytest.mark.parametrize(
    ("save", "words"),
    [
        (lambda path: np.savez(path, X=np.ones((4, 3), order="F"), y=np.ones(4)), "column by column"),
        (lambda path: np.savez(path, X=np.ones((4, 3)), y=np.ones(3)), r"4 samples, but labels of shape \(3,\)"),
        (lambda path: np.savez(path, X=np.ones((4, 3)), y=np.ones(5)), r"4 samples, but labels of shape \(5,\)"),
        (lambda path: np.savez(path, y=np.ones(5)), "has no features"),
        (lambda path: scipy.sparse.save_npz(path, scipy.sparse.csr_array(np.eye(3))), "has no labels"),
    ],
)
def test_archives_that_cannot_be_read(tmp_path, save, words):
    save(tmp_path / "data.npz")
    with pytest.raises(UserError, match=words):
        list(open_source(tmp_path / "data.npz").blocks())


def test_sparse_matrix_by_columns_is_refused(tmp_path):
    matrix = scipy.sparse.csc_array(np.eye(3))
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": matrix.shape}
    np.savez(tmp_path / "data.npz", format=np.array(b"csc"), **parts, y=np.ones(3))
    with pytest.raises(UserError, match="csr"):
        list(open_source(tmp_path / "data.npz").blocks())


def test_built_in_data_are_one_block():
    source = open_source("iris:1")
    (block,) = source.blocks()
    assert (block.features == read_dataset("iris:1").features).all()
    assert source.space.count == 4


@pytest.mark.parametrize("name", ["pipe.csv", "pipe"])
@pytest.mark.parametrize("read", [open_source, read_dataset])
def test_pipes_cannot_be_read_twice(tmp_path, name, read):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}: is no ordinary file and cannot be read twice: write the data to one"):
        read(tmp_path / name)
