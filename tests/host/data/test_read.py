"""Picking the reader: names, extensions, first bytes; built-in data sets."""

import bz2
import contextlib
import gzip
import lzma
import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
from support.data_files import read_in_blocks

from p4sgd.host.data import read_dataset
from p4sgd.host.data.builtin import BUILTIN
from p4sgd.host.data.read import find_format
from p4sgd.host.errors import UserError


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("moved", [False, True])
def test_builtin_is_as_scikit_learn_loads_it(name, moved, monkeypatch):
    if moved:
        monkeypatch.setitem(BUILTIN, name, BUILTIN[name]._replace(file=""))
    data, expected = read_dataset(name), getattr(sklearn.datasets, f"load_{name}")()
    assert data.features.tobytes() == np.asarray(expected.data, np.float64).tobytes()
    assert np.array_equal(data.labels, expected.target)
    assert data.space.names == tuple(expected.feature_names)
    if data.label_names:
        assert data.label_names == tuple(expected.target_names)


@pytest.mark.parametrize("name", ["iris:versicolor", "iris:1", "wine:class_1", "digits:1", "digits:3"])
def test_one_class_against_the_rest(name):
    data, whole = read_dataset(name), read_dataset(name.partition(":")[0])
    assert np.array_equal(data.labels, whole.labels == (3 if name.endswith("3") else 1))
    assert (data.label_names, data.name) == ((), name)
    for wrong in ("digits:10", "digits:", "digits:3.0"):
        with pytest.raises(UserError, match=f"^{wrong}: digits has no label .*; there are 0, 1, 2"):
            read_dataset(wrong)
    with pytest.raises(UserError, match=r"^diabetes:3: the labels of diabetes are measurements"):
        read_dataset("diabetes:3")


def test_a_file_of_that_name_needs_a_path(tmp_path, own_folder):
    (tmp_path / "iris").write_text("1,2,0\n")
    assert [read_dataset(name).samples for name in ("iris", "./iris", tmp_path / "iris")] == [150, 1, 1]


FORMATS = {  # name and first line of a file
    "libsvm": ["a.binary: -1 3:0.5 7:1", "a: # x\n1 1:2", "a: 1\n1 1:2", "a: 1 qid:1 2:5", "a.SVM: 1,2,3"],
    "csv": [
        "table: 1,2,3",
        "table.txt: 1;2;3",
        "data.TSV.gz: 1 1:2",
        "data: a,b | c,label",
        "a: 1|2|0",
        "data.txt: a b|c|label",
    ],
    "vw": ["data: 1 | 5:2 7:1", "data: 1 1.0 'tag |n:2 a b:3", "data: |n a b", "data: 1|n a b"],
    None: ["data: name age group label"],
}


@pytest.mark.parametrize(("file", "expected"), [(file, name) for name in FORMATS for file in FORMATS[name]])
def test_formats(tmp_path, file, expected):
    name, _, line = file.partition(": ")
    path = tmp_path / name
    path.write_text(f"{line}\n")
    if expected is None:
        with pytest.raises(UserError, match="unknown format: say which it is with --format"):
            find_format(path)
    else:
        assert find_format(path) == (expected, "." not in name or name.endswith(("binary", "txt")))
    assert find_format(path, "npy" if "gz" not in name else "vw")[1] is False
    with pytest.raises(UserError, match=r"there is no format 'xls'.* libsvm, csv"):
        find_format(path, "xls")
    (tmp_path / "a.npz.gz").touch()
    with pytest.raises(UserError, match="npz files are read uncompressed"):
        find_format(tmp_path / "a.npz.gz")
    with pytest.raises(UserError, match=r"^/dev/null: is no ordinary file and cannot be read twice"):
        read_dataset("/dev/null")


def test_a_pipe_is_read_once(tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("1,x,0\n2,y,1\n",))
    writer.start()
    data = read_dataset(pipe, header=False)
    writer.join()
    assert (data.features.tolist(), data.name) == ([[1, 0], [2, 1]], str(pipe))
    pipe.unlink()
    pipe.write_text("3,x,0\n4,y,1\n")
    assert read_dataset(pipe, header=False).features.tolist() == [[3, 0], [4, 1]], "the file that is there now"


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


@pytest.mark.parametrize("name", ["a.libsvm", "a.svm.xz", "a.vw.gz", "a.csv", "a.csv.bz2", "libsvm", "vw", "csv"])
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
