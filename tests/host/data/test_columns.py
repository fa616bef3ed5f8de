"""Which columns are features, in every format of tables; other data are read to match the training data."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data_files import read_in_blocks

from p4sgd.host.data import FeatureSpace, read_dataset
from p4sgd.host.errors import UserError

VALUES = {"a": [1, 2], "b": [3, 4], "c": [5, 6], "label": [0, 1], "price": [7, 8], "Y": [1, 0], "id": ["x", "y"]}


@pytest.fixture(params=["csv", "parquet"])
def table(request, tmp_path):
    def make(names, **other):
        columns = VALUES | other
        path = tmp_path / f"{names.replace(' ', '-')}.{request.param}"
        if request.param == "csv":
            rows = zip(*(columns[name] for name in names.split()), strict=True)
            path.write_text("\n".join([names.replace(" ", ","), *(",".join(map(str, row)) for row in rows)]) + "\n")
        else:
            pq.write_table(pa.table({name: columns[name] for name in names.split()}), path)
        return path

    return make


@pytest.mark.parametrize("suffix", ["csv", "headers.csv", "npy", "parquet"])
@pytest.mark.parametrize("seed", range(5))
def test_a_table_is_read_again_as_it_was(tmp_path, suffix, seed):
    """Whatever columns are labels, weights or ignored, and with headers also among others and in another order."""
    rng = np.random.default_rng(seed)
    values = rng.random((6, 8)).round(3)
    roles = rng.permutation(8)
    labels, weight, ignored = roles[: 1 + seed % 2], roles[2], roles[3 : 3 + seed % 3]
    names, named = [f"name {place}" for place in range(8)], suffix in ("headers.csv", "parquet")

    def write(name, order, extra=()):
        path, headers = tmp_path / f"{name}.{suffix}", [*(names[place] for place in order), *extra]
        table = np.column_stack([values[:, order], np.full((6, len(extra)), 9.0)])
        if suffix == "npy":
            np.save(path, table)
        elif suffix == "parquet":
            pq.write_table(pa.table(dict(zip(headers, table.T, strict=True))), path)
        else:
            np.savetxt(path, table, delimiter=",", header=",".join(headers) if named else "", comments="")
        return path

    def column(place):
        return names[place] if named else int(place) + 1

    options = {"label_column": list(map(column, labels)), "ignore_columns": list(map(column, ignored))}
    path = write("trained", np.arange(8))
    trained = read_dataset(path, **options, weight_column=column(weight))
    if len(labels) == 1:
        blocks, _ = read_in_blocks(path, **options, weight_column=column(weight))
        assert read_dataset(path, like=blocks.space).features.tolist() == trained.features.tolist()
    if len(labels) == 1 and not named:
        other = read_dataset(path, like=trained.space, label_column=column(roles[-1]))
        assert other.labels.tolist() == values[:, roles[-1]].tolist()
    for file in (path, *([write("other", rng.permutation(8), ["more"])] if named else [])):
        data, bare = read_dataset(file, like=trained.space), read_dataset(file, like=trained.space, labels_needed=False)
        for name in ("features", "labels", "sample_weights"):
            assert getattr(data, name).tolist() == getattr(trained, name).tolist()
        assert data.target_names == trained.target_names
        assert bare.features.tolist() == trained.features.tolist()
        told = () if file == path else ("left out what the model does not know: more",)
        assert data.remarks == bare.remarks == told
    only = write("features", [place for place in range(8) if place not in (*labels, weight, *ignored)])
    assert read_dataset(only, like=trained.space, labels_needed=False).features.tolist() == trained.features.tolist()


@pytest.mark.parametrize(
    ("names", "options", "features", "label"),
    [
        ("b label a", {}, "b a", "label"),
        ("Y a price", {"label_column": "price"}, "Y a", "price"),
        ("Y a price", {"like": "Y a"}, "Y a", "price"),
        ("a label Y", {"like": "a Y"}, "a Y", "label"),
        ("label a Y", {"ignore_columns": ("label",)}, "a", "Y"),
        ("a Y", {"like": "Y a", "labels_needed": False}, "Y a", None),
        ("id a b label price", {"ignore_columns": ["id", "-1"]}, "a b", "label"),
        ("id a b label price", {"ignore_columns": ["1", "label"]}, "a b", "price"),
        ("id a b label price", {"ignore_columns": ["id", "price"], "like": "a b"}, "a b", "label"),
        ("id b a", {"ignore_columns": ["id"], "like": "a b", "labels_needed": False}, "a b", None),
        ("c label a Y", {"label_column": "Y", "ignore_columns": ["2"]}, "c a", "Y"),
    ],
)
def test_columns_that_are_chosen(table, names, options, features, label):
    if "like" in options:
        options = options | {"like": FeatureSpace(2, tuple(options["like"].split()))}
    data = read_dataset(table(names), **options)
    assert data.space.names == tuple(features.split())
    assert data.features.T.tolist() == [VALUES[name] for name in features.split()]
    assert (data.labelled, data.labels.tolist()) == (label is not None, VALUES.get(label, [0, 0]))


def test_features_of_the_same_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,a,b,label\n1,2,3,0\n")
    assert read_dataset(path, like=FeatureSpace(3, ("a", "a", "b"))).features.tolist() == [[1, 2, 3]]
    with pytest.raises(UserError, match="features of the same name must be in the order of the training data"):
        read_dataset(path, like=FeatureSpace(3, ("a", "b", "a")))


@pytest.mark.parametrize("label", [["", "0"], ["NA", "x"], ["inf", "x"], ["x", "0"]])
def test_labels_that_are_not_needed_may_be_anything(table, label):
    path = table("label a b", label=label)
    data = read_dataset(path, labels_needed=False, like=FeatureSpace(2))
    assert (data.labelled, data.features.tolist()) == (False, [[1, 3], [2, 4]])
    with pytest.raises(UserError, match="label"):
        read_dataset(path)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_columns_of_a_matrix(tmp_path, place):
    """Ignored ones, and labels that are not needed, may hold anything."""
    path = tmp_path / "a.npy"
    np.save(path, np.insert([[1.0, 3], [2, 4]], place, np.nan, axis=1))
    data = read_dataset(path, labels_needed=False, label_column=place + 1)
    assert (data.labelled, data.features.tolist()) == (False, [[1, 3], [2, 4]])
    np.save(path, np.insert([[1.0, 3, 0], [2, 4, 1]], place, np.nan, axis=1))
    for read in (read_dataset, lambda *args, **options: read_in_blocks(*args, **options)[0]):
        data = read(path, ignore_columns=[place - 4])
        assert (data.features.tolist(), data.labels.tolist()) == ([[1, 3], [2, 4]], [0, 1])
