"""Picking the reader: names, extensions, first bytes; built-in data sets."""

import bz2
import contextlib
import gzip
import lzma
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
from support.data_files import read_in_blocks

from p4sgd.host.data import builtin, read_dataset
from p4sgd.host.data.builtin import BUILTIN
from p4sgd.host.errors import UserError


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("moved", [False, True])
def test_builtin_is_as_scikit_learn_loads_it(name, moved, monkeypatch):
    if moved:
        monkeypatch.setattr(builtin, "_TABLES", {})
    data, expected = read_dataset(name), getattr(sklearn.datasets, f"load_{name}")()
    assert data.features.tobytes() == np.asarray(expected.data, np.float64).tobytes()
    assert np.array_equal(data.labels, expected.target)
    if data.label_names:
        assert data.label_names == tuple(expected.target_names)


@pytest.mark.parametrize("name", ["iris:versicolor", "iris:1", "wine:class_1", "wine:1", "digits:1"])
def test_one_class_of_a_builtin_set(name):
    data = read_dataset(name)
    whole = read_dataset(name.partition(":")[0])
    assert np.array_equal(data.labels, whole.labels == 1)
    assert not data.label_names


def test_diabetes_is_a_regression():
    data = read_dataset("diabetes")
    assert data.features.shape == (442, 10)
    assert np.unique(data.labels).size > 100
    with pytest.raises(UserError, match="the labels of diabetes are measurements"):
        read_dataset("diabetes:3")


def test_one_label_against_the_rest():
    data, all_labels = read_dataset("digits:3"), read_dataset("digits").labels
    assert np.array_equal(data.labels, all_labels == 3)
    assert data.name == "digits:3"
    for wrong in ("digits:10", "digits:x", "digits:", "digits:3.0"):
        with pytest.raises(UserError, match=f"^{wrong}: digits has no label .*; there are 0, 1, 2"):
            read_dataset(wrong)


def test_a_file_of_that_name_needs_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "iris").write_text("1,2,0\n")
    assert read_dataset("iris").samples == 150
    assert read_dataset("./iris").samples == 1
    assert read_dataset(tmp_path / "iris").samples == 1


@pytest.mark.parametrize(
    ("name", "text", "sparse"),
    [
        ("rcv1_train.binary", "-1 3:0.5 7:1\n", True),
        ("with-comment", "# hello, world\n1 1:2\n", True),
        ("labels-first", "1\n1 1:2\n", True),
        ("ranking", "1 qid:1 2:5\n", True),
        ("table", "1,2,3\n4,5,6\n", False),
        ("table.txt", "1;2;3\n4;5;6\n", False),
        ("data.TSV", "1\t2\t3\n", False),
        ("DATA.CSV", "1,2,3\n", False),
        ("data.SVM", "1 1:3\n", True),
    ],
)
def test_format_is_recognised(tmp_path, name, text, sparse):
    path = tmp_path / name
    path.write_text(text)
    assert read_dataset(path).sparse == sparse


def test_format_is_forced(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("1 1:2\n")
    assert read_dataset(path, file_format="libsvm").sparse
    with pytest.raises(UserError, match=r"there is no format 'xls'.* libsvm, csv"):
        read_dataset(path, file_format="xls")


@contextlib.contextmanager
def nobody():
    """As a user who may not read everything, whoever runs the tests."""
    if os.geteuid():
        yield
        return
    try:
        os.seteuid(65534)
    except OSError as error:
        pytest.skip(f"root alone is here: {error}")
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("name", ["data.csv", "data.libsvm", "data.npz", "data.npy", "data.parquet"])
def test_unreadable(name):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        os.chmod(folder, 0o755)
        path = Path(folder) / name
        path.write_text("1,2,3")
        path.chmod(0)
        with nobody(), pytest.raises(UserError, match=f"^{path}: .*Permission denied"):
            read_dataset(path)


@pytest.mark.parametrize(
    "name", ["a.libsvm", "a.svm.xz", "a.vw", "a.vw.gz", "a.csv", "a.csv.bz2", "libsvm", "vw", "csv"]
)
def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path, name):
    texts = {"vw": "1 | 1:2 b\n0 | b\n", "csv": "1,2,3\n4,5,6\n", "": "1 1:2 2:3\n0 2:1\n"}
    text = next(text for kind, text in texts.items() if kind in name)
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}.get(Path(name).suffix, bytes)
    path, header, found = tmp_path / name, False if "csv" in name else None, []
    for mark in ("", "\ufeff"):
        path.write_bytes(pack((mark + text).encode()))
        for data in (read_dataset(path, header=header), read_in_blocks(path, header=header)[0]):
            found.append((data.space.count, data.features.sum(axis=0).tolist(), data.labels.tolist()))
    assert found[:2] == found[2:]
