"""NumPy and Parquet files."""

import json
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from support.data_files import SPARSE, X, Y, read_in_blocks

from p4sgd.host.data import FeatureSpace, read_dataset
from p4sgd.host.errors import UserError


@pytest.mark.parametrize(
    ("features", "key", "labels", "expected"),
    [
        ("features", "labels", Y.reshape(-1, 1), (Y.tolist(), ())),
        ("X", "y", Y, (Y.tolist(), ())),
        ("x", "target", ["é", "a", "é"], ([1, 0, 1], ("a", "é"))),
        ("data", "Y", ["é".encode(), b"a", "é".encode()], ([1, 0, 1], ("a", "é"))),
    ],
)
def test_npz(tmp_path, features, key, labels, expected):
    path = tmp_path / "data.npz"
    np.savez(path, **{features: X, key: np.array(labels)})
    data = read_dataset(path)
    assert data.features.tolist() == X.tolist()
    assert (data.labels.tolist(), data.label_names) == expected
    np.savez(path, X=X, y=Y[:2].astype(object))
    data = read_dataset(path, labels_needed=False)
    assert (data.labelled, data.labels.tolist()) == (False, [0, 0, 0])


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
def test_sparse_npz(tmp_path, form):
    matrix = scipy.sparse.random_array((20, 30), density=0.1, format=form, rng=np.random.default_rng(0))
    path = tmp_path / "data.npz"
    scipy.sparse.save_npz(path, matrix)
    assert not read_dataset(path, labels_needed=False).labelled
    with np.load(path) as content:
        np.savez(path, **content, labels=np.arange(20))
    data = read_dataset(path)
    assert isinstance(data.features, scipy.sparse.csr_array)
    assert np.array_equal(data.features.toarray(), matrix.toarray())
    assert data.labels.tolist() == list(range(20))


@pytest.mark.parametrize("name", ["data.npy", "data.npz", "data.parquet"])
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"nonsense", b"PK\x03\x04 but no more", b"PAR1 and no more PAR1", "cut off", "of others"),
        b"\x93NUMPY\x01\x00\x10\x00{'descr': ('<f8'",
    ],
)
def test_damaged(tmp_path, name, content):
    path, rng = tmp_path / name, np.random.default_rng(0)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "of others":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("data", "hello")
    else:
        np.savez(tmp_path / "data.npz", X=rng.random((50, 50)), y=np.zeros(50))
        np.save(tmp_path / "data.npy", rng.random((50, 50)))
        pq.write_table(pa.table({"a": rng.random(5000), "y": np.zeros(5000)}), tmp_path / "data.parquet")
        path.write_bytes(path.read_bytes()[:-3000])
    problem = "cannot be read(?!.*Python objects)|holds data, but not as a NumPy array|is an .npz file by its contents"
    with pytest.raises(UserError, match=f"^{path}: ({problem})"):
        read_dataset(path)


def test_parquet_pages_with_checksums_are_verified(tmp_path):
    path, value = tmp_path / "data.parquet", np.float64(0.7)
    table = pa.table({"a": [0.1, value, 0.3], "y": [0, 1, 0]})
    pq.write_table(
        table, path, write_page_checksum=True, compression="none", use_dictionary=False, write_statistics=False
    )
    content = path.read_bytes()
    assert content.count(value.tobytes()) == 1
    path.write_bytes(content.replace(value.tobytes(), np.float64(0.8).tobytes()))
    with pytest.raises(UserError, match=r"data\.parquet: cannot be read as Parquet: .*checksum"):
        read_dataset(path)


@pytest.mark.parametrize("index", ["", "person", "__index_level_0__"])
def test_the_index_of_pandas_is_no_column(tmp_path, index):
    """As `DataFrame.to_parquet` stores it: last, under a name of its own if it has none."""
    path = tmp_path / "data.parquet"
    table = pa.table({"a": [1, 2], "b": [3, 4], "outcome": [0, 1], index or "__index_level_0__": [7, 8]})
    if index:
        table = table.replace_schema_metadata({"pandas": json.dumps({"index_columns": [index, {"kind": "range"}]})})
    for order in ([0, 1, 2, 3], [3, 0, 1, 2]):
        pq.write_table(table.select(order), path)
        data = read_dataset(path)
        assert (data.space.names, data.features.tolist()) == (("a", "b"), [[1, 3], [2, 4]])
        assert data.labels.tolist() == [0, 1]
    pq.write_table(table.replace_schema_metadata({"pandas": "{"}).rename_columns(["a", "b", "outcome", "c"]), path)
    assert read_dataset(path).labels.tolist() == [7, 8]


def test_npy_and_misnamed_files(tmp_path):
    path = tmp_path / "data.npy"
    np.save(path, np.column_stack([X, Y]))
    data = read_dataset(path)
    assert (data.features.tolist(), data.labels.tolist()) == (X.tolist(), Y.tolist())
    assert read_dataset(path, labels_needed=False, like=FeatureSpace(3)).features.shape == (3, 3)
    path.rename(tmp_path / "a.npz")
    with pytest.raises(UserError, match=r"is an \.npy file by its contents"):
        read_dataset(tmp_path / "a.npz")
    np.save(path, np.array([[2**60, 2**53 - 1], [3, -(2**53) + 1]]))
    assert read_dataset(path).labels.tolist() == [2**53 - 1, -(2**53) + 1]
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="it holds Python objects, not numbers"):
        read_dataset(path)
    for kind in (np.uint8, np.int16, np.int64):
        np.savez(tmp_path / "b.npz", **SPARSE | {"indptr": SPARSE["indptr"].astype(kind)})
        (tmp_path / "b.npz").rename(tmp_path / "nameless")
        for data in (read_dataset(tmp_path / "nameless"), read_in_blocks(tmp_path / "nameless")[0]):
            assert data.features.toarray().tolist() == [[1, 0], [0, 1], [1, 0]]
