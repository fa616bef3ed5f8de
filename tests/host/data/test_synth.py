"""Synthetic data sets: size, density, heat, repeatability, something to learn."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from support.data_files import make_dataset

from p4sgd.host.data import read_dataset, synth
from p4sgd.host.data.synth import CategoricalSource, make_source, make_table, write_dataset, write_table
from p4sgd.host.errors import UserError


@pytest.mark.parametrize(
    ("name", "choices", "shape", "values"),
    [
        ("gisette", {"samples": 50, "features": 40}, (50, 40), 1982),
        ("gisette", {"scale": 0.01, "samples": 50}, (50, 50), 2478),
        ("gisette", {"scale": 0.001}, (16, 8), 127),
        ("rcv1", {"scale": 0.1, "samples": 100}, (100, 4724), 741),
        ("rcv1", {"scale": 0.001}, (20, 47), 2 * 20),
        ("real-sim", {"scale": 0.1, "samples": 100, "nonzeros": 30}, (100, 2096), 3000),
        ("real-sim", {"scale": 0.1}, (7231, 2096), 37_095),
        ("avazu", {"scale": 0.00001}, (146, 30), 15 * 146),
        ("criteo", {"samples": 30, "features": 100}, (30, 100), 39 * 30),
        ("kdd12", {"scale": 0.00001, "features": 5000}, (1496, 5000), 11 * 1496),
        ("zipf", {"samples": 70_000, "features": 1000, "nonzeros": 3}, (70_000, 1000), 210_000),
    ],
)
def test_chosen_sizes(name, choices, shape, values):
    """A part is as dense as the whole; a sparse sample has two values at least on average, and unit norm."""
    data, made = make_dataset(name, **choices), make_source(name, **choices)
    assert data.features.shape == shape
    assert (made.samples, made.feature_count, made.sparse) == (*shape, name != "gisette")
    assert set(data.labels) == {-1, 1}
    assert abs(data.labels.mean()) < 0.5
    if data.sparse:
        assert data.features.nnz == pytest.approx(values, abs=2)
        assert np.diff(data.features.indptr).min() >= 1, "a sample is empty"
        assert np.allclose(data.features.power(2).sum(axis=1), 1, atol=1e-3)
        assert data.features.data.min() > 0
        assert data.features.has_canonical_format
        assert data.features.indices.max() == shape[1] - 1, "the last column is empty"
    if isinstance(made, CategoricalSource):
        sizes, fields = made.field_sizes(), made.fields
        assert (sizes.size, sizes.sum(), sizes.min() >= 2) == (fields, shape[1], True)
        assert np.diff(data.features.indptr).tolist() == [fields] * shape[0]
        assert np.unique(data.features.data).tolist() == [round(fields**-0.5, 6)]
    elif not data.sparse:
        assert np.count_nonzero(data.features) == pytest.approx(values, abs=2)
        assert np.abs(data.features).max() <= 1


@pytest.mark.parametrize(("nonzeros", "features"), [(1, 1000), (15, 10_000), (39, 20_000)])
def test_heat(nonzeros, features):
    """Columns are as frequent as documented: value r of a field of n in proportion to log(1 + 1 / r)."""
    chosen = {"samples": 20_000, "features": features, "nonzeros": nonzeros}
    sizes = make_source("zipf", **chosen).field_sizes()
    expected = np.concatenate([np.log1p(1 / np.arange(1, n + 1)) / np.log1p(n) for n in sizes])
    counts = np.bincount(make_dataset("zipf", **chosen).features.indices)
    hot = np.argsort(counts)[-100:]
    assert 0.3 < (hot < features / 2).mean() < 0.7, "anywhere"
    for part in (features, features // 10, features // 100, features // 1000):
        hottest = [np.sort(values)[::-1][:part].sum() / nonzeros for values in (expected, counts / 20_000)]
        assert hottest[1] == pytest.approx(hottest[0], abs=0.01)


@pytest.mark.parametrize("choices", [{"name": "rcv1", "scale": 0.02}, {"name": "avazu", "samples": 99, "features": 99}])
def test_the_seed_decides_and_not_how_many_samples_follow(choices):
    first, again, other = (make_dataset(**choices, seed=seed) for seed in (1, 1, 2))
    assert (first.features != again.features).nnz == 0
    assert np.array_equal(first.labels, again.labels)
    assert (first.features != other.features).nnz > 100
    few, more = (make_dataset("zipf", samples=n, features=1000, nonzeros=2) for n in (70_000, 140_000))
    assert (more.features[:70_000] != few.features).nnz == 0
    assert np.array_equal(more.labels[:70_000], few.labels)


@pytest.mark.parametrize(
    ("choices", "accuracy"),
    [
        ({"name": "rcv1", "scale": 0.2}, 0.75),
        ({"name": "gisette", "scale": 0.1}, 0.9),
        ({"name": "avazu", "samples": 5000, "features": 2000}, 0.85),
        ({"name": "kdd12", "samples": 5000, "features": 5000}, 0.85),
    ],
)
def test_there_is_something_to_learn_and_some_labels_are_wrong(choices, accuracy, monkeypatch):
    data = make_dataset(**choices)
    assert abs(data.labels.mean()) < 0.1
    train, test = data.split(0.2, seed=0, stratified=True)
    model = LogisticRegression(C=1, max_iter=300).fit(train.features, train.labels)
    assert model.score(test.features, test.labels) > accuracy
    monkeypatch.setattr(synth, "_NOISE", 0)
    assert 0.01 < (make_dataset(**choices).labels != data.labels).mean() < 0.03


ZIPF = {"name": "zipf", "features": 500, "nonzeros": 3}


@pytest.mark.parametrize(
    "choices",
    [{"name": name, "scale": 0.01} for name in ("gisette", "rcv1")] + [ZIPF | {"samples": n} for n in (100, 70_000)],
)
@pytest.mark.parametrize("ending", ["libsvm", "svm", "npz"])
def test_written_and_read(tmp_path, choices, ending):
    """Written block by block, the data are those made as a whole."""
    path, data = tmp_path / f"data.{ending}", make_dataset(**choices)
    write_dataset(make_source(**choices), path)
    again = read_dataset(path)
    assert again.features.shape == data.features.shape
    if data.sparse:
        assert (again.features != data.features).nnz == 0
    else:
        assert np.allclose(again.rows(slice(None)), data.features, rtol=0, atol=1e-7)
    assert np.array_equal(again.labels, data.labels)
    assert list(tmp_path.iterdir()) == [path]
    if ending == "npz" and data.sparse:
        assert (scipy.sparse.load_npz(path) != data.features).nnz == 0


def peak_of(make):
    tracemalloc.start()
    made = make()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return made, peak


@pytest.mark.slow
def test_whole_rcv1_is_never_dense():
    data, peak = peak_of(lambda: make_dataset("rcv1"))
    assert (data.features.shape, data.features.nnz) == ((20242, 47236), 1_498_952)
    assert peak < 400e6, "dense it would be 7.6 GB"


@pytest.mark.parametrize(
    ("ending", "samples", "limit"),
    [("libsvm", 1500, 0.5e6), ("npz", 100_000, 22e6)],  # NumPy writes 16 MiB at a time
)
def test_categorical_is_never_whole_in_memory(tmp_path, monkeypatch, ending, samples, limit):
    monkeypatch.setattr(synth, "_BLOCK", 64)
    made = make_source("criteo", samples=samples, features=1000)
    write_dataset(make_source("criteo", samples=2, features=1000), tmp_path / f"small.{ending}")  # for the imports
    assert peak_of(lambda: write_dataset(made, tmp_path / f"data.{ending}"))[1] < limit < 12 * made.stored


def test_the_made_table(tmp_path):
    made = make_table("titanic")
    assert (made.num_rows, made.column_names[-1]) == (1309, "survived")
    assert make_table("titanic").equals(made)
    assert not make_table("titanic", seed=1).equals(made)
    assert make_table("titanic", scale=0.5).num_rows == 654
    gaps = {name: round(made[name].null_count / made.num_rows, 2) for name in ("age", "deck", "embarked")}
    assert gaps == {"age": 0.19, "deck": 0.78, "embarked": 0.0}
    with pytest.raises(UserError, match="cannot write a table in this format"):
        write_table(made, tmp_path / "titanic.npz")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"name": "rcv1", "seed": -1}, "seed must be at least 0"),
        ({"name": "titanic", "seed": -1}, "seed must be at least 0"),
        ({"name": "titanic", "scale": 2}, "scale must be above 0 and at most 1, not 2"),
        ({"name": "avazu", "samples": 1}, "samples must be at least 2, not 1"),
        ({"name": "avazu", "features": 0}, "features must be at least 2, not 0"),
        ({"name": "avazu", "features": 1 << 31}, "features must be less than 2,147,483,648, not 2,147,483,648"),
    ],
)
def test_refused(choices, message):
    with pytest.raises(UserError, match=message):
        (make_table if choices["name"] == "titanic" else make_source)(**choices)
