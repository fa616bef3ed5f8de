"""Weights and offsets of samples in files of every format: read as a whole and in blocks; and mistakes."""

import re

import numpy as np
import pytest
from support.data_files import make_samples, read_in_blocks, use_small_blocks, write_data

from p4sgd.host.data import FeatureSpace, read_dataset
from p4sgd.host.errors import UserError

READING = {
    "w.csv": {"weight_column": "8"},
    "w.npy": {"weight_column": "-2"},
    "w.parquet": {"weight_column": "weights"},
    "w.npz": {},
    "sparse.npz": {},
    "w.vw": {"hash_bits": 3},
}
"""Names of data files with weights, and how they are read."""


@pytest.fixture
def weights():
    return np.random.default_rng(3).choice([0, 0.5, 1, 2.25, 2**-10], 60)


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("kind", ["weights", "offset", "exposure"])
def test_are_read_in_every_way(tmp_path, monkeypatch, weights, name, kind):
    """Offsets also without labels, as a model that has been trained with them needs them."""
    if name.endswith("vw") and kind == "exposure":
        kind = "offset"
    use_small_blocks(monkeypatch)
    numbers = {"weights": weights, "offset": weights - 1, "exposure": weights + 0.5}[kind]
    path, reading = write_data(tmp_path, name, *make_samples(3), numbers, kind), _reading(name, kind)
    whole, (blocks, count) = read_dataset(path, **reading), read_in_blocks(path, **reading)
    unlabelled = read_dataset(path, like=whole.space, labels_needed=False)  # the column is remembered
    assert whole.feature_count == (8 if name.endswith("vw") else 7)
    assert whole.labels.tolist() == make_samples(3)[1].tolist()
    assert count > 3

    def found(data):
        assert (data.space, data.space.offset) == (whole.space, None if kind == "weights" else kind)
        here, other = data.sample_weights, data.offsets
        return (here, other) if kind == "weights" else (other, here)

    expected = np.log(numbers) if kind == "exposure" else numbers
    for part in (whole, blocks):
        here, other = found(part)
        assert (here.tolist(), other) == (expected.tolist(), None)
    assert (found(unlabelled)[0] is None) == (kind == "weights")
    assert kind == "weights" or unlabelled.offsets.tolist() == expected.tolist()
    rows = np.random.default_rng(0).permutation(whole.samples)
    for part, which in ((whole.take(rows[:9]), rows[:9]), (whole.reordered(rows).take(rows[:7]), rows[rows[:7]])):
        assert found(part)[0].tolist() == expected[which].tolist()
        assert np.array_equal(part.rows(slice(None)), whole.rows(slice(None))[which])


def _reading(name, kind):
    role = kind.removesuffix("s")
    return {key.replace("weight", role): kind if value == "weights" else value for key, value in READING[name].items()}


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize(
    ("kind", "value"),
    [*(("weights", value) for value in (-1.5, np.nan, np.inf)), ("offset", np.nan), ("exposure", 0), ("exposure", -2)],
)
def test_mistakes_are_told_with_their_place(tmp_path, monkeypatch, weights, name, kind, value):
    use_small_blocks(monkeypatch)
    weights += 1
    weights[41] = value
    if name.endswith("vw") and kind == "exposure":
        kind, weights[41] = "offset", np.inf
    path = write_data(tmp_path, name, *make_samples(3), weights, kind)
    places = {"csv": "line 42, column 8: ", "parquet": f"row 42, column 8 .{kind}.: ", "vw": "line 42: "}
    role = kind.removesuffix("s")
    where = next((f", {text}" for end, text in places.items() if name.endswith(end)), f": the {role} of sample 42 is ")
    for read in (read_dataset, read_in_blocks):
        with pytest.raises(UserError, match=re.escape(str(path)) + where):
            read(path, **_reading(name, kind))


def test_a_header_is_found_beside_the_weights(tmp_path):
    """As beside the label, a number in its place tells nothing."""
    path = tmp_path / "data.csv"
    path.write_text("x,y2,3,lab\n1,2,3,0\n4,5,6,1\n")
    data = read_dataset(path, weight_column="3", label_column="4")
    assert (data.space, data.sample_weights.tolist()) == (FeatureSpace(2, ("x", "y2")), [3, 6])
