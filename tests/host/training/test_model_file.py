"""Model files: round trip, predictions, and every way of not being one."""

import json
import os

import numpy as np
import pytest
import scipy.sparse
from support.tensor_file import rewrite

from p4sgd.host.data import Dataset
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Task
from p4sgd.host.training import model_file
from p4sgd.host.training.model_file import FORMAT_VERSION, Model, load_model, save_model
from p4sgd.hw.spec.run import FeatureFormat

RNG = np.random.default_rng(5)
LABELS = LabelCoding(Task.CLASSIFICATION, (2.0, 4.0)).to_json()
NUMBERS = LabelCoding(Task.REGRESSION, mean=100.0, scale=10.0)


def model(features=4, loss="logistic", labels=None, **more):
    return Model(
        coefficients=RNG.normal(size=features),
        intercept=0.25,
        weights=RNG.integers(-(1 << 31), 1 << 31, features + 1).astype(np.int32),
        slope=RNG.random(features),
        offset=RNG.random(features + 1),
        loss=loss,
        labels=labels or LabelCoding(Task.CLASSIFICATION, (2.0, 4.0)),
        features=FeatureFormat(8, 4, signed=True),
        training={"samples": 12, "seconds": 0.5, "name": "Größe"},
        **more,
    )


def rows(features=4, samples=20):
    dense = RNG.normal(size=(samples, features)) * (RNG.random((samples, features)) < 0.5)
    return dense, np.where(dense[:, 0] > 0, 4.0, 2.0)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"feature_names": ("a", "b", "c", "Größe")},
        {"zero_based": True},
        {"zero_based": False},
        {"hash_bits": 2},
        {"loss": "huber", "labels": NUMBERS, "loss_parameters": {"epsilon": 1.5}},
    ],
)
def test_round_trip(tmp_path, more):
    path = tmp_path / "m.safetensors"
    before = model(**more)
    save_model(before, path)
    after = load_model(path)
    for name in ("coefficients", "weights", "slope", "offset"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name
        assert getattr(before, name).dtype == getattr(after, name).dtype
    for name in ("intercept", "loss", "loss_parameters", "labels", "features", "training", "space"):
        assert getattr(before, name) == getattr(after, name)
    assert list(tmp_path.iterdir()) == [path]


def test_dense_and_sparse_predict_the_same():
    trained = model()
    dense, labels = rows()
    expected = np.array([sum(c * x for c, x in zip(trained.coefficients, row, strict=True)) for row in dense]) + 0.25
    for make in (np.asarray, np.float32, scipy.sparse.csr_matrix, scipy.sparse.csr_array):
        data = Dataset(make(dense), labels, "rows")
        z = trained.decision_function(data)
        assert z.shape == (20,)
        assert z.dtype == np.float64
        assert z == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert trained.predict(data).tolist() == np.where(expected > 0, 4.0, 2.0).tolist()


def test_float32_goes_block_by_block(monkeypatch):
    trained = model()
    dense, labels = rows()
    whole = trained.decision_function(Dataset(dense.astype(np.float32), labels, "rows"))
    monkeypatch.setattr(model_file, "_BLOCK_VALUES", 12)
    assert trained.decision_function(Dataset(dense.astype(np.float32), labels, "rows")) == pytest.approx(whole)


def test_reordered_samples_predict_the_same():
    trained = model()
    data = Dataset(*rows(), "rows")
    order = np.random.default_rng(0).permutation(data.samples)
    z = trained.decision_function(data)
    assert trained.decision_function(data.reordered(order)).tolist() == z[order].tolist()


def test_sparse_rows_are_never_dense():
    trained = model(features=1_000_000)
    features = scipy.sparse.random_array((100_000, 1_000_000), density=1e-7, format="csr", rng=RNG)
    assert trained.decision_function(Dataset(features, np.zeros(100_000), "wide")).shape == (100_000,)


@pytest.mark.parametrize("features", [2, 7])
def test_another_number_of_features(features):
    trained = model()
    dense, labels = rows(features)
    shared = min(features, 4)
    expected = dense[:, :shared] @ trained.coefficients[:shared] + 0.25
    assert trained.decision_function(Dataset(scipy.sparse.csr_matrix(dense), labels, "s")) == pytest.approx(expected)
    with pytest.raises(UserError, match=f"d .*{features} features, .* 4"):
        trained.decision_function(Dataset(dense, labels, "d"))


def test_other_features_of_the_same_number():
    trained = model(feature_names=("a", "b", "c", "d"))
    dense, labels = rows()
    for names in ((), ("a", "b", "c", "d")):
        assert trained.decision_function(Dataset(dense, labels, "rows", feature_names=names)).shape == (20,)
    with pytest.raises(UserError, match=r"rows: .*features .*order"):
        trained.decision_function(Dataset(dense, labels, "rows", feature_names=("b", "a", "c", "d")))


def test_regression_predicts_in_the_target_s_unit():
    trained = model(loss="squared", labels=NUMBERS)
    dense, labels = rows()
    data = Dataset(dense, labels, "rows")
    assert trained.predict(data) == pytest.approx(100 + 10 * trained.decision_function(data))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "99"}, f"a model file of version 99, this p4sgd reads version {FORMAT_VERSION}: train again"),
        ({"kind": "other"}, "not a model file of p4sgd: p4sgd train --out writes one, which p4sgd predict takes"),
        ({"kind": None}, "not a model file of p4sgd"),
        ({"loss": '"cubic"'}, "there is no loss 'cubic'"),
        ({"loss_parameters": '{"epsilon": 1}'}, "a damaged model file: the loss logistic has no parameters epsilon"),
        ({"loss_parameters": "[1]"}, "a damaged model file"),
        ({"labels": None}, "a damaged model file"),
        ({"labels": "{"}, "a damaged model file"),
        ({"features": '{"stored": 9, "precision": 1, "signed": false}'}, "a damaged model file"),
        ({"labels": json.dumps({**LABELS, "classes": []})}, "a damaged model file: a classification cannot have"),
        ({"labels": json.dumps({**LABELS, "classes": [4, 2]})}, "a damaged model file: a classification cannot have"),
        ({"labels": json.dumps({**LABELS, "classes": [1, np.nan]})}, "a damaged model file: labels must be finite"),
        ({"labels": json.dumps({**LABELS, "names": ["a", "b"]})}, "a damaged model file: there are no names"),
        ({"labels": json.dumps({**LABELS, "scale": 0})}, "a damaged model file: labels must be finite"),
        ({"labels": json.dumps({**LABELS, "task": "regression"})}, "a damaged model file: a regression cannot have"),
        ({"loss": '"squared"'}, "a damaged model file: the loss squared is not for classification"),
        ({"replace": {"coefficients": np.array([1, 2, np.nan, 3])}}, "a damaged model file: coefficients must be"),
        ({"replace": {"coefficients": np.zeros((2, 2))}}, "a damaged model file: coefficients of shape"),
        ({"replace": {"mixing": np.zeros((9, 64))}}, "a damaged model file: mixing of shape"),
        ({"replace": {"slope": np.zeros(9)}}, "a damaged model file: slope and offset must have the shape"),
        ({"replace": {"offset": np.full(5, np.inf)}}, "a damaged model file: offset must be finite"),
        ({"replace": {"intercept": np.array([np.nan])}}, "a damaged model file: the intercept must be finite"),
        ({"replace": {"intercept": np.zeros(2)}}, "a damaged model file"),
        ({"feature_names": '["a"]'}, "a damaged model file: 1 names for 4 features"),
        ({"zero_based": "7"}, "a damaged model file: zero_based is 7"),
        ({"hash_bits": "7"}, "a damaged model file: hash_bits is 7 for 4 features"),
        ({"hash_bits": "[]"}, "a damaged model file"),
        ({"drop": ("weights",)}, "a damaged model file"),
        ({"drop": ("coefficients",)}, "a damaged model file"),
    ],
)
def test_files_that_are_none(tmp_path, changes, message):
    path = tmp_path / "m.safetensors"
    save_model(model(), path)
    rewrite(path, **changes)
    with pytest.raises(UserError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_cut_off(tmp_path, keep):
    path = tmp_path / "m.safetensors"
    save_model(model(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"not a model file .*damaged"):
        load_model(path)


def test_a_text_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,2,3\n" * 100)
    with pytest.raises(UserError, match=r"not a model file .*damaged: .*before the data$"):
        load_model(path)


def test_missing(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*No such file"):
        load_model(tmp_path / "no.safetensors")
    with pytest.raises(UserError, match="cannot write: No such file"):
        save_model(model(), tmp_path / "no" / "m.safetensors")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    save_model(model(), path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        save_model(model(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]
