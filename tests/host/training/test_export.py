"""Exported models predict as ours do."""

import json
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command_line import run

from p4sgd import GLMClassifier, GLMRegressor
from p4sgd.host.data import Dataset, FeatureSpace, read_dataset
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.losses import LOSSES, Probabilistic, Task
from p4sgd.host.training.export import rounding, to_onnx, to_sklearn
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


def frame(pandas, rows=160, seed=3):
    """A table with numbers, texts, texts of digits and truth values, gaps in all of them, and words like gaps."""
    rng = np.random.default_rng(seed)
    columns = {
        "size": rng.normal(50, 20, rows),
        "age": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(40, 9, rows)),
        "colour": rng.choice(["red", "green", "blue", None], rows),
        "code": rng.choice(["01001", "94016", "7", None], rows),
        "label": rng.choice(["None", "nan", "other", None], rows),
        "grade": pandas.Categorical(rng.choice([1, 2, 3, None], rows)),
        "odd": pandas.Categorical(rng.random(rows) < 0.5),
        "two": rng.choice(["a", "b"], rows),
        "member": pandas.array(rng.choice([True, False, None], rows), dtype="boolean"),
        "sure": rng.random(rows) < 0.5,
    }
    return pandas.DataFrame(columns)


def onnx_inputs(session, table):
    """The columns of a frame as the inputs of a graph."""
    given = {}
    for each in session.get_inputs():
        values = table[each.name.removeprefix("column ")]
        if each.type == "tensor(string)":
            values = (
                values.astype(object).where(values.notna(), "").astype(str).replace({"True": "true"}).to_numpy(object)
            )
        given[each.name] = np.asarray(values, object if values.dtype == object else np.float64)[:, np.newaxis]
    return given


@pytest.mark.parametrize("missing", ["mean", "indicator"])
@pytest.mark.parametrize("target", ["two classes", "three classes", "numbers", "counts", "labels"])
def test_tables(target, missing):
    """Whole: with texts, gaps, and texts that training has not seen. Nothing of p4sgd is needed to predict."""
    pandas = pytest.importorskip("pandas")
    table, other = frame(pandas), frame(pandas, seed=4)
    other.loc[:9, ["colour", "code", "label"]] = "unheard of"
    score = table["size"] / 20 + (table["colour"] == "red") * 2 - (table["code"] == "7") + table["age"].isna()
    y = {
        "two classes": np.where(score > 3, "yes", "no"),
        "three classes": np.digitize(score, [2, 4]),
        "numbers": 1e6 + score.to_numpy() * 300,
        "counts": np.floor(np.abs(score)).to_numpy(),
        "labels": np.column_stack([score > 3, score > 2]).astype(int),
    }[target]
    loss = {"loss": "poisson"} if target == "counts" else {}
    kind = GLMRegressor if target in ("numbers", "counts") else GLMClassifier
    estimator = kind(epochs=3, missing=missing, **loss).fit(table, y)
    content = pickle.dumps(to_sklearn(estimator.model_))
    assert b"p4sgd" not in content
    pipeline = pickle.loads(content)
    assert [type(step).__name__ for step in pipeline[:1]] == ["ColumnTransformer"]
    expected = estimator.predict(other)
    plain = pa.Table.from_pandas(other.astype({"grade": object, "odd": object}))
    for samples in (other, plain, other.assign(unknown=1)[sorted([*other.columns, "unknown"])]):
        assert_same(pipeline.predict(samples).tolist(), expected.tolist())
    integers = other.assign(code=np.resize([1001, 94016, 7], len(other)))  # of texts, two of which are known so
    assert_same(pipeline.predict(integers).tolist(), estimator.predict(integers).tolist())
    probable = hasattr(estimator, "predict_proba") and target != "labels"
    if probable:
        shares = estimator.predict_proba(other)
        np.testing.assert_allclose(pipeline.predict_proba(other), shares, atol=1e-12)
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'p4sgd[export]'")
    onnx.checker.check_model(to_onnx(estimator.model_), full_check=True)
    for float32 in (False, True):
        session = onnxruntime.InferenceSession(to_onnx(estimator.model_, float32=float32))
        inputs = onnx_inputs(session, other)
        if float32:
            inputs = {name: each if each.dtype == object else each.astype(np.float32) for name, each in inputs.items()}
        found = dict(zip([each.name for each in session.get_outputs()], session.run(None, inputs), strict=True))
        if kind is GLMRegressor:
            # Of counts the logarithm may change so much.
            most = rounding(estimator.model_) * (2 * expected.max() if target == "counts" else 2) if float32 else 0
            np.testing.assert_allclose(found["prediction"], expected, rtol=1e-9, atol=most)
        else:
            assert found["label"].tolist() == expected.tolist()
        if probable:
            np.testing.assert_allclose(found["probabilities"], shares, atol=1e-5 if float32 else 1e-9)


def test_float32_changes_no_more_than_is_said():
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    X = np.random.default_rng(0).normal(1e4, 1, (300, 5))  # differences of which float32 loses digits
    regressor = GLMRegressor(epochs=3, scaling="minmax").fit(X, X @ [1.0, -2, 3, 0, 0.5])
    session = onnxruntime.InferenceSession(to_onnx(regressor.model_, float32=True))
    (found,) = session.run(None, {"features": X.astype(np.float32)})
    error, most = np.abs(found - regressor.predict(X)).max(), rounding(regressor.model_)
    assert 0 < error <= most < 100 * error


@pytest.mark.parametrize("kind", ["offset", "exposure"])
def test_offsets(kind):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    X = np.random.default_rng(0).normal(size=(200, 3))
    given = 1 + np.arange(200.0) % 5
    loss = {"loss": "poisson"} if kind == "exposure" else {}
    regressor = GLMRegressor(epochs=3, **loss).fit(X, given * np.exp(X[:, 0]), **{kind: given})
    session = onnxruntime.InferenceSession(to_onnx(regressor.model_))
    (found,) = session.run(None, {"features": X, kind: given})
    np.testing.assert_allclose(found, regressor.predict(X, **{kind: given}), rtol=1e-9)
    alone = to_sklearn(regressor.model_).predict(X)
    np.testing.assert_allclose(alone * given if kind == "exposure" else alone + given, found, rtol=1e-9)


def test_columns_named_as_other_inputs_and_outputs():
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    names = ("offset", "column offset", "label")
    columns = [np.array(list("abc") * 20, object), np.arange(60.0), np.arange(60.0) % 7]
    X, offset = pa.table(columns, names), np.arange(60) % 2 - 1.0
    classifier = GLMClassifier(epochs=2, loss="hinge").fit(X, np.arange(60) % 4 > 1, offset=offset)
    session = onnxruntime.InferenceSession(to_onnx(classifier.model_))
    inputs = ("column offset", "column column offset", "column label")
    given = {name: column[:, np.newaxis] for name, column in zip(inputs, columns, strict=True)}
    (found,) = session.run(["activation"], given | {"offset": offset})
    np.testing.assert_allclose(found, classifier.decision_function(X, offset=offset), atol=1e-12)


@pytest.mark.parametrize("missing", ["mean", "indicator"])
@pytest.mark.filterwarnings("ignore:.*that the model does not know")
@pytest.mark.parametrize("dates", ["text", "days", "parts"])
def test_dates(dates, missing):
    """Of all years, with a time of day and gaps, also such as training has not seen."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    moments = rng.integers(-30_000_000_000, 200_000_000_000, 300).astype("datetime64[s]")
    moments[::7] = "NaT"
    table = pandas.DataFrame({"day": moments, "x": rng.normal(size=300)})
    regressor = GLMRegressor(epochs=1, dates=dates, missing=missing).fit(table[:150], rng.normal(size=150))
    content, expected = pickle.dumps(to_sklearn(regressor.model_)), regressor.predict(table)
    assert b"p4sgd" not in content
    assert_same(pickle.loads(content).predict(table), expected.tolist())
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    for float32 in (False, True):
        session = onnxruntime.InferenceSession(to_onnx(regressor.model_, float32=float32))
        days = (moments - np.datetime64(0, "s")) / np.timedelta64(1, "D")
        day = np.where(np.isnat(moments), "", np.char.replace(moments.astype(str), "T", " ")).astype(object)
        x = table["x"].to_numpy(np.float32 if float32 else np.float64)
        given = {"day": day if dates == "text" else days, "x": x}
        (found,) = session.run(None, {name: each[:, np.newaxis] for name, each in given.items()})
        np.testing.assert_allclose(found, expected, rtol=1e-6 if float32 else 1e-9, atol=1e-6 if float32 else 0)


@pytest.mark.parametrize("dates", ["text", "days", "parts"])
@pytest.mark.parametrize("zone", [None, "America/New_York"])
def test_dates_with_a_zone_or_parts_of_a_second(dates, zone):
    """Of zones the clock counts. Texts of moments with a zone are known to p4sgd only."""
    pandas = pytest.importorskip("pandas")
    moments = pandas.to_datetime(np.arange(60) * 98_765_432_100_250 + 10**18, unit="ns").tz_localize(zone)
    table = pandas.DataFrame({"day": moments, "part": moments.as_unit("ms"), "x": np.arange(60) % 7})
    table.loc[7, "day"] = None
    regressor = GLMRegressor(epochs=1, dates=dates, missing="mean").fit(table, np.arange(60) % 5)
    pipeline, given = to_sklearn(regressor.model_), table
    if dates == "text":
        given = table.assign(**{name: table[name].dt.tz_localize(None) for name in ("day", "part")})
    np.testing.assert_allclose(pipeline.predict(given), regressor.predict(table), rtol=1e-9)


def test_targets_with_different_classes():
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    codings = (OF_TASK[Task.CLASSIFICATION], LabelCoding(Task.CLASSIFICATION, (-1.0, 4.0)))
    rows = tuple(make_row(np.random.default_rng(row), "hinge", coding, 5, ()) for row, coding in enumerate(codings))
    model, (_, features) = ModelSet(rows, TargetCoding(codings, ("a", "b"))), make("hinge")
    session = onnxruntime.InferenceSession(to_onnx(model))
    assert session.run(["label"], {"features": features})[0].tolist() == ours(model, features)[0]


def test_the_command(monkeypatch, own_folder):
    run("train", "breast_cancer", "--epochs", 3, "--out", "model", "--quiet")
    document = json.loads(run("export", "model", "--to", "sklearn", "--out", "m.pkl", "--json").stdout)
    assert document == {"model": "model", "to": "sklearn", "out": "m.pkl", "bytes": Path("m.pkl").stat().st_size}
    data = read_dataset("breast_cancer")
    expected = load_model(Path("model")).predict(data).tolist()
    assert pickle.loads(Path("m.pkl").read_bytes()).predict(data.features).tolist() == expected
    wrong = run("export", "model", "--to", "sklearn", "--float32", "--out", "m", status=2).stderr
    assert "--float32 is for --to onnx: estimators of scikit-learn take float32 as they are" in wrong
    assert "choose one of onnx, sklearn" in run("export", "model", "--to", "pmml", "--out", "m", status=2).stderr
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnx", None)
        done = run("export", "model", "--to", "onnx", "--out", "m.onnx", status=2)
    assert done.stderr.strip().endswith("pip install 'p4sgd[export]'")
    assert not Path("m.onnx").exists()
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'p4sgd[export]'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    done = run("export", "model", "--to", "onnx", "--out", "m.onnx", "--float32")
    assert "rounded to float32, features in the range of training change the activation by at most" in done.stderr
    assert "m.onnx" in run("export", "model", "--to", "onnx", "--out", "m.onnx", "--overwrite").stdout
    session = onnxruntime.InferenceSession("m.onnx", providers=["CPUExecutionProvider"])
    (labels,) = session.run(["label"], {"features": data.features.astype(np.float64)})
    assert labels.tolist() == expected
