"""Synthetic data sets: size, density, repeatability, something to learn."""

import tracemalloc

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from p4sgd.host.data import read_dataset, synth
from p4sgd.host.data.dataset import Dataset
from p4sgd.host.data.synth import SHAPES, make_dataset, write_dataset
from p4sgd.host.errors import UserError


def stored(data):
    return data.features.nnz if data.sparse else np.count_nonzero(data.features)


def test_shapes_of_the_originals():
    assert {name: (shape.samples, shape.features) for name, shape in SHAPES.items()} == {
        "gisette": (6000, 5000),
        "real-sim": (72309, 20958),
        "rcv1": (20242, 47236),
    }
    densities = {name: round(100 * shape.density, 2) for name, shape in SHAPES.items()}
    assert densities == {"gisette": 99.1, "real-sim": 0.24, "rcv1": 0.16}


@pytest.mark.parametrize(
    ("name", "scale", "shape", "values"),
    [
        ("gisette", 0.001, (16, 8), 127),
        ("gisette", 0.02, (120, 100), 11_892),
        ("gisette", 0.1, (600, 500), 297_300),
        ("real-sim", 0.001, (72, 21), 2 * 72),
        ("real-sim", 0.02, (1446, 419), 2 * 1446),
        ("real-sim", 0.1, (7231, 2096), 37_095),
        ("rcv1", 0.001, (20, 47), 2 * 20),
        ("rcv1", 0.02, (405, 945), 2 * 405),
        ("rcv1", 0.1, (2024, 4724), 14_989),
    ],
)
def test_scaled(name, scale, shape, values):
    """A part of the samples and of the features, as dense; a sparse sample has two values at least on average."""
    data = make_dataset(name, seed=3, scale=scale)
    assert data.features.shape == shape
    assert data.sparse == (name != "gisette")
    assert stored(data) == pytest.approx(values, abs=2)
    assert set(data.labels) == {-1, 1}
    assert abs(data.labels.mean()) < 0.5
    if data.sparse:
        assert np.diff(data.features.indptr).min() >= 1, "a sample is empty"
        lengths = np.sqrt((data.features.data**2).cumsum())[data.features.indptr[1:] - 1]
        assert np.allclose(np.diff(lengths**2), 1, atol=1e-3)
        assert data.features.data.min() > 0
    else:
        assert np.abs(data.features).max() <= 1


@pytest.mark.slow
def test_whole_rcv1_is_never_dense():
    tracemalloc.start()
    data = make_dataset("rcv1")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert data.features.shape == (20242, 47236)
    assert data.features.nnz == 1_498_952
    assert peak < 400e6, "dense it would be 7.6 GB"


def test_the_seed_decides():
    first, again, other = (make_dataset("rcv1", seed=seed, scale=0.02) for seed in (1, 1, 2))
    assert (first.features != again.features).nnz == 0
    assert np.array_equal(first.labels, again.labels)
    assert (first.features != other.features).nnz > 100


@pytest.mark.parametrize(("name", "scale", "accuracy"), [("rcv1", 0.2, 0.75), ("gisette", 0.1, 0.9)])
def test_there_is_something_to_learn(name, scale, accuracy):
    train, test = make_dataset(name, scale=scale).split(0.2, seed=0, stratified=True)
    model = LogisticRegression(C=1, max_iter=300).fit(train.features, train.labels)
    assert model.score(test.features, test.labels) > accuracy


def test_some_labels_are_wrong(monkeypatch):
    noisy = make_dataset("real-sim", scale=0.1)
    monkeypatch.setattr(synth, "_NOISE", 0)
    clean = make_dataset("real-sim", scale=0.1)
    assert 0.01 < (noisy.labels != clean.labels).mean() < 0.03


@pytest.mark.parametrize("name", ["gisette", "rcv1"])
@pytest.mark.parametrize("ending", ["libsvm", "svm", "npz"])
def test_written_and_read(tmp_path, name, ending):
    data = make_dataset(name, scale=0.01)
    path = tmp_path / f"data.{ending}"
    write_dataset(data, path)
    again = read_dataset(path)
    assert again.features.shape == data.features.shape
    assert np.allclose(again.rows(slice(None)), data.rows(slice(None)), rtol=0, atol=1e-7)
    assert np.array_equal(again.labels, data.labels)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mnist"}, "there is no shape 'mnist'.* gisette, real-sim, rcv1"),
        ({"name": "rcv1", "scale": 0}, "scale must be above 0 and at most 1, not 0"),
        ({"name": "rcv1", "scale": 1.5}, "scale must be above 0 and at most 1, not 1.5"),
        ({"name": "rcv1", "seed": -1}, "seed must be at least 0"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        make_dataset(**arguments)


def test_unknown_ending(tmp_path):
    with pytest.raises(UserError, match=r"cannot write this format: name the file \.libsvm or \.npz"):
        write_dataset(Dataset(np.ones((1, 1)), np.ones(1), "x"), tmp_path / "data.csv")
