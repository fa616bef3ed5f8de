"""Exported models predict as ours do."""

import json
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command_line import run

from p4sgd.host.data import Dataset, FeatureSpace, read_dataset
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.losses import LOSSES, Probabilistic, Task
from p4sgd.host.training.export import to_onnx, to_sklearn
from p4sgd.host.training.model_file import Model, ModelSet, load_model
from p4sgd.hw.spec.run import FeatureFormat

CODINGS = {
    "numbers": ("logistic", LabelCoding(Task.CLASSIFICATION, (-1.0, 1.0))),
    "fractions": ("hinge", LabelCoding(Task.CLASSIFICATION, (0.5, 1.0))),
    "texts": ("logistic", LabelCoding(Task.CLASSIFICATION, (0.0, 2.0), names=("Größe", "other", "ß"))),
    "one against the rest": ("hinge", LabelCoding(Task.CLASSIFICATION, (0.0, 1.0), 1.0, ("a", "b", "c"))),
}
OF_TASK = {
    Task.CLASSIFICATION: LabelCoding(Task.CLASSIFICATION, (0.0, 1.0)),
    Task.REGRESSION: LabelCoding(Task.REGRESSION, mean=1e6, scale=300.0),
    Task.NON_NEGATIVE: LabelCoding(Task.NON_NEGATIVE, scale=3.0),
    Task.POSITIVE: LabelCoding(Task.POSITIVE, scale=0.1),
}
CODINGS |= {name: (name, OF_TASK[loss.task]) for name, loss in LOSSES.items()}
CODINGS |= {
    "several classes": ("logistic", LabelCoding(Task.CLASSIFICATION, (0.0, 1.0, 2.0, 7.0))),
    "several texts": ("hinge", LabelCoding(Task.CLASSIFICATION, (0.0, 1.0, 2.0), names=("Größe", "other", "ß"))),
    "targets": ("squared", TargetCoding((OF_TASK[Task.REGRESSION],) * 2, ("a", "b"))),
    "labels": ("logistic", TargetCoding((OF_TASK[Task.CLASSIFICATION],) * 2, ("a", "b"))),
    "several, modified_huber": ("modified_huber", LabelCoding(Task.CLASSIFICATION, (0.0, 1.0, 2.0))),
}


def make(coding, features=5, seed=0, names=()):
    """A model with random coefficients, whose features have means far above their deviations."""
    loss, labels = CODINGS[coding]
    rng = np.random.default_rng(seed)
    rows = tuple(make_row(rng, loss, row, features, names) for row in labels.rows)
    data = 1000 + rng.normal(size=(40, features))
    return rows[0] if len(rows) == 1 else ModelSet(rows, labels), data


def make_row(rng, loss, labels, features, names):
    coefficients = rng.normal(size=features)
    return Model(
        coefficients=coefficients,
        intercept=-float(1000 * coefficients.sum()),
        weights=np.zeros(features, np.int32),
        slope=np.ones(features),
        offset=np.zeros(features),
        loss=loss,
        labels=labels,
        features=FeatureFormat(8, 8, signed=True),
        space=FeatureSpace(features, names),
    )


def ours(model, features):
    """Predictions as `p4sgd predict` writes them, activations, and probabilities of the classes, if there are."""
    data = Dataset(features, np.zeros(features.shape[0]), "d")
    predictions = model.predict(data).tolist()
    if isinstance(model.labels, LabelCoding) and model.labels.task is Task.CLASSIFICATION:
        predictions = list(map(model.labels.name, predictions))
    z, loss = model.decision_function(data), LOSSES[model.loss]
    shares = None
    if isinstance(model, ModelSet):
        shares = model.probabilities(z)
    elif isinstance(loss, Probabilistic):
        shares = np.stack([loss.probabilities(-z), loss.probabilities(z)], axis=1)
    return predictions, z, shares


def assert_same(found, expected):
    if not isinstance(expected[0], str | int):
        np.testing.assert_allclose(np.array(found, float), expected, rtol=1e-9)
    else:
        assert list(found) == expected


@pytest.mark.parametrize("coding", CODINGS)
def test_scikit_learn_predicts_the_same(coding):
    model, features = make(coding)
    estimator = pickle.loads(pickle.dumps(to_sklearn(model)))
    expected, z, probabilities = ours(model, features)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(estimator.predict(features).tolist(), expected)
        assert_same(estimator.predict(scipy.sparse.csr_array(features)).tolist(), expected)
        if model.labels.task is Task.CLASSIFICATION and isinstance(model.labels, LabelCoding):
            np.testing.assert_allclose(estimator.decision_function(features), z, atol=1e-9)
        if probabilities is not None:
            found = np.array(estimator.predict_proba(features))
            found = found[:, :, 1].T if isinstance(model.labels, TargetCoding) else found
            np.testing.assert_allclose(found, probabilities, atol=1e-9)
    assert hasattr(estimator, "predict_proba") == (probabilities is not None)
    assert not hasattr(estimator, "feature_names_in_")
    named, _ = make(coding, names=tuple("abcde"))
    assert to_sklearn(named).feature_names_in_.tolist() == list("abcde")


@pytest.mark.parametrize("coding", CODINGS)
def test_onnx_predicts_the_same(coding):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'p4sgd[export]'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(st.integers(1, 40), st.integers(0, 1 << 32))
    def check(count, seed):
        model, features = make(coding, count, seed)
        content = to_onnx(model)
        onnx.checker.check_model(content, full_check=True)
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        outputs = [output.name for output in session.get_outputs()]
        found = dict(zip(outputs, session.run(None, {"features": features}), strict=True))
        expected, z, probabilities = ours(model, features)
        if model.labels.task is not Task.CLASSIFICATION:
            assert outputs == ["prediction"]
            np.testing.assert_allclose(found["prediction"], expected, rtol=1e-9)
            return
        assert outputs == ["label", *(["probabilities"] if probabilities is not None else []), "activation"]
        np.testing.assert_allclose(found["activation"], z, atol=1e-8)
        assert_same(found["label"].tolist(), expected)
        if probabilities is not None:
            np.testing.assert_allclose(found["probabilities"], probabilities, atol=1e-8)

    check()
    named, _ = make(coding, names=tuple("abcde"))
    made = onnx.load_from_string(to_onnx(named))
    said = {each.key: json.loads(each.value) for each in made.metadata_props}
    assert (said["loss"], said["feature_names"]) == (named.loss, list("abcde"))
    assert coding != "texts" or said["classes"] == ["Größe", "ß"]
    assert made.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 5


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("train", "breast_cancer", "--epochs", 3, "--out", "model", "--quiet")
    document = json.loads(run("export", "model", "--to", "sklearn", "--out", "m.pkl", "--json").stdout)
    assert document == {"model": "model", "to": "sklearn", "out": "m.pkl", "bytes": Path("m.pkl").stat().st_size}
    data = read_dataset("breast_cancer")
    expected = load_model(Path("model")).predict(data).tolist()
    assert pickle.loads(Path("m.pkl").read_bytes()).predict(data.features).tolist() == expected
    assert "choose one of onnx, sklearn" in run("export", "model", "--to", "pmml", "--out", "m", status=2).stderr
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnx", None)
        done = run("export", "model", "--to", "onnx", "--out", "m.onnx", status=2)
    assert done.stderr.strip().endswith("pip install 'p4sgd[export]'")
    assert not Path("m.onnx").exists()
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'p4sgd[export]'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    assert "m.onnx" in run("export", "model", "--to", "onnx", "--out", "m.onnx").stdout
    session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    (labels,) = session.run(["label"], {"features": data.features.astype(np.float64)})
    assert labels.tolist() == expected
