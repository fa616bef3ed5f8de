"""Data sets: forms of features, blocks of rows, splits, identities."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.data import Dataset, FeatureSpace
from p4sgd.host.data import matrix as matrices
from p4sgd.host.data.identity import identify
from p4sgd.host.data.matrix import checked, find_not_finite
from p4sgd.host.errors import UserError


@pytest.mark.parametrize("few", [0, 4])
def test_forms_of_features(few, monkeypatch):
    monkeypatch.setattr(matrices, "_FEW_COLUMNS", few)
    parts = np.array([2, 0, 0]), np.array([0, 3])
    whole = scipy.sparse.csr_matrix((np.array([1, 2, 3]), *parts), shape=(1, 4), dtype=np.int8)
    messy = scipy.sparse.csr_matrix((np.array([1.0, 2, 3]), *parts), shape=(1, 4))
    for matrix in (whole, messy, messy.tocoo()):
        data = Dataset(matrix, np.zeros(1), "x")
        assert isinstance(data.features, scipy.sparse.csr_array)
        assert (data.features.indices.tolist(), data.features.data.tolist()) == ([0, 2], [5, 1])
    assert messy.indices.tolist() == [2, 0, 0]
    for kind, kept in zip(
        ["u1", "i2", "f2", "?", "i4", "i8", "f4", "f8"], ["f4"] * 4 + ["f8"] * 2 + ["f4", "f8"], strict=True
    ):
        top = 1 if kind in ("?", "f2") else np.iinfo(kind).max if kind[0] in "iu" and kind != "i8" else 7
        values = np.array([[0, 1], [top, 1]]).astype(kind)
        data = Dataset(values, np.zeros(2), "x")
        assert (data.features.dtype, data.features.tolist()) == (kept, values.astype(np.float64).tolist())


@pytest.mark.parametrize("few", [0, 4])
def test_duplicates_are_added_in_their_order(few, monkeypatch):
    """Whichever way rows are sorted, and as long as they are: (1 + 2^60) − 2^60 is 0, another order gives 1."""
    monkeypatch.setattr(matrices, "_FEW_COLUMNS", few)
    matrix = scipy.sparse.csr_array(([1.0, 2], [2, 0], [0, 2]), shape=(1, 4))
    assert checked(matrix, "x").indices.tolist() == [0, 2]
    assert matrix.indices.tolist() == [2, 0]
    for values, total in (([1, 2.0**60, -(2.0**60)], 0), ([2.0**60, -(2.0**60), 1], 1)):
        for others in (0, 30):  # SciPy sorts long rows otherwise
            columns, beside = [1, *[2] * others, 1, *[0] * others, 1], [5] * others
            row = [values[0], *beside, values[1], *beside, values[2]]
            matrix = scipy.sparse.csr_array((row, columns, [0, len(row)]), shape=(1, 4))
            assert checked(matrix, "x").toarray().tolist() == [[5 * others, total, 5 * others, 0]]


@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, scipy.sparse.csr_array])
def test_reordered_samples_are_those_taken(form):
    features = form(np.arange(15, dtype=np.float32).reshape(5, 3))
    data, rng = Dataset(features, np.arange(5), "x"), np.random.default_rng(0)
    first, second = rng.permutation(5), rng.permutation(5)
    got, expected = data.reordered(first).reordered(second), data.take(first).take(second)
    assert got.labels.tolist() == expected.labels.tolist()
    for which in (slice(None), slice(1, 3), slice(4, 8)):
        rows = got.rows(which)
        assert isinstance(rows, np.ndarray)
        assert (rows.dtype, rows.tolist()) == (np.float64, expected.rows(which).tolist())
    assert got.take(first[:2]).rows(slice(2)).tolist() == expected.take(first[:2]).rows(slice(2)).tolist()
    own = got.features @ np.ones(3)
    assert got.in_order(own).tolist() == (expected.features @ np.ones(3)).tolist()
    if isinstance(data.features, np.ndarray):
        assert np.shares_memory(got.features, data.features), "no copy"


def damaged(form, index):
    """A sparse matrix with an index that it does not have, as a damaged file may have."""
    matrix = scipy.sparse.csr_array(np.array([[1.0, 0, 2], [0, 3, 4]])).asformat(form)
    matrix.indices[-1] = index
    return matrix


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros((0, 3)), np.zeros(0), "no samples"),
        (np.zeros((3, 0)), np.zeros(3), "no features"),
        (np.zeros((3, 2)), np.zeros(2), "3 samples, but labels of shape"),
        (np.zeros((3, 2)), np.array([0, np.nan, 1]), "label of sample 2 is nan"),
        (np.array([["a"]]), np.zeros(1), "must be numbers"),
        (scipy.sparse.csr_array(np.array([[1 + 1j]])), np.zeros(1), "must be numbers, not complex128"),
        (scipy.sparse.coo_array(np.zeros(3)), np.zeros(3), r"must be a matrix .*not of shape \(3,\)"),
        (damaged("csr", 3), np.zeros(2), "the sparse matrix is damaged: indices must be < 3"),
        (damaged("csc", 10**9), np.zeros(3), "the sparse matrix is damaged"),
        (damaged("csr", -1), np.zeros(2), "the sparse matrix is damaged: indices must be >= 0"),
    ],
)
def test_refused(features, labels, message):
    with pytest.raises(UserError, match=f"^somewhere.*{message}"):
        Dataset(features, labels, "somewhere")


@given(
    classes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
    stratified=st.booleans(),
)
def test_split(classes, fraction, seed, stratified):
    labels = np.repeat(np.arange(len(classes)), classes)
    samples = labels.size
    data = Dataset(np.arange(samples).reshape(-1, 1), labels, "x", tuple("abcd"))
    if max(1, round(fraction * samples)) >= samples:
        with pytest.raises(UserError, match="leaves none"):
            data.split(fraction, seed=seed, stratified=stratified)
        return
    rest, held = data.split(fraction, seed=seed, stratified=stratified)
    again, _ = data.split(fraction, seed=seed, stratified=stratified)
    other, _ = data.split(fraction, seed=seed + 1, stratified=stratified)
    assert np.array_equal(rest.features, again.features), "the seed decides"
    if rest.samples > 20:
        assert not np.array_equal(rest.features, other.features)
        assert (np.diff(rest.features[:, 0]) < 0).any(), "not shuffled"
    assert sorted([*rest.features[:, 0], *held.features[:, 0]]) == list(range(samples)), "a sample is lost or doubled"
    assert held.samples == max(1, round(fraction * samples))
    assert (held.name, held.label_names) == ("held-out samples of x", tuple("abcd"))
    for part in (rest, held):
        assert np.array_equal(part.labels, labels[part.features[:, 0].astype(int)])
    if stratified:
        for label, count in enumerate(classes):
            assert abs((held.labels == label).sum() - held.samples / samples * count) < 1.001


@pytest.mark.parametrize("form", [scipy.sparse.csr_array, np.array])
def test_the_first_value_that_is_not_finite(form, monkeypatch):
    """In blocks of four rows."""
    monkeypatch.setattr(matrices, "_BLOCK_VALUES", 20)
    dense = np.ones((10, 5))
    assert find_not_finite(form(dense)) is None
    dense[6, 3], dense[7, 1] = -np.inf, np.nan
    assert find_not_finite(form(dense)) == (6, 3)


def changed(data, **more):
    return dataclasses.replace(data, name="other", **more)


def one_more(array, place):
    array = array.copy()
    array[place] = np.nextafter(array[place], 9)
    return array


def test_every_value_label_and_name_counts_for_the_identity_and_no_place_in_memory():
    rng = np.random.default_rng(1)
    data = Dataset(rng.normal(size=(96, 40)), rng.integers(0, 2, 96), "made")
    matrix = scipy.sparse.csr_array(([1.0, 2.0, 3.0], [0, 2, 1], [0, 1, 2, 3, 3]), shape=(4, 4))
    other_places = {"data": [1, 2, 4], "indices": [0, 2, 3], "indptr": [0, 1, 2, 2, 3]}
    large = np.zeros((5000, 100), np.float32)
    sets = [
        data,
        changed(data, features=one_more(data.features, (95, 39))),
        changed(data, labels=one_more(data.labels, 50)),
        changed(data, features=data.features[:, ::-1]),
        changed(data, features=data.features.reshape(192, 20), labels=np.repeat(data.labels, 2)),
        changed(data, features=scipy.sparse.csr_array(data.features)),
        changed(data, space=FeatureSpace(40, tuple(map(str, range(40))))),
        changed(data, label_names=("no", "yes")),
        changed(data, space=FeatureSpace(40, zero_based=True)),
        changed(data, sample_weights=np.ones(96)),
        changed(data, sample_weights=one_more(np.ones(96), 7)),
        Dataset(matrix, np.arange(4.0), "sparse"),
        *[Dataset(one_more(large, (row, 99)), np.zeros(5000), "large") for row in (0, 2620, 2621, 2622, 4999)],
    ]
    for part, values in other_places.items():
        other = matrix.copy()
        getattr(other, part)[:] = values
        sets.append(Dataset(other, np.arange(4.0), "sparse"))
    assert len({identify(each) for each in sets}) == len(sets)
    assert identify(changed(data, features=np.asfortranarray(data.features))) == identify(data)
    assert identify(Dataset(matrix.copy(), np.arange(4.0), "moved")) == identify(sets[11])
