"""Models of several rows: each row is the model of a run of its own with its rate, and together they are one model."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, log_loss, roc_auc_score
from sklearn.multiclass import OneVsRestClassifier
from support.events import events
from support.recording_device import RecordingDevice
from support.results import assert_same

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.training import ResultSet, StopReason, TrainingOptions, train, trainer
from p4sgd.host.training.metrics import measure_model, score
from p4sgd.host.training.model_file import Model, load_model, save_model
from p4sgd.hw.spec.config import WorkerConfig

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=8, line_fifo_depth=64, slots=4)
SPARSE = WorkerConfig(engines=3, lanes=8, chunks=8, line_fifo_depth=64, slots=4, sparse=True)


def dataset(samples=120, features=12, classes=4, seed=1, name="made", sparse=False, names=()):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)) * (rng.random((samples, features)) < (0.1 if sparse else 1))
    labels = (x @ rng.normal(size=(features, classes)) + rng.normal(size=(samples, classes))).argmax(axis=1)
    labels[:classes] = range(classes)
    return Dataset(scipy.sparse.csr_array(x) if sparse else x, labels, name, names)


def run(data, config=CONFIG, device=None, test=None, on=None, **options):
    options = TrainingOptions(**{"epochs": 3, **options})
    device = device or open_device("emulator", config, options.workers)
    return train(data, options, device, test=test, events=events(**on or {}))


OPTIONS = st.fixed_dictionaries(
    {
        "loss": st.sampled_from(["logistic", "hinge", "squared_hinge", "modified_huber"]),
        "epochs": st.integers(1, 6),
        "batch": st.sampled_from([8, 16, 24]),
        "precision": st.integers(2, 8),
        "workers": st.integers(1, 2),
        "learning_rate": st.sampled_from([None, 0.3, 8.0]),
        "schedule": st.sampled_from(["constant", "invscaling", "adaptive"]),
        "l2": st.sampled_from([0.0, 1e-3]),
        "l1": st.sampled_from([0.0, 1e-3]),
        "bias": st.booleans(),
        "validation_fraction": st.sampled_from([0.0, 0.3]),
        "patience": st.sampled_from([None, 1]),
        "staleness": st.integers(0, 1),
        "seed": st.integers(0, 9),
        "class_weight": st.sampled_from([None, "balanced", {"1": 0.25, "2": 3.0}]),
    }
)


@settings(max_examples=12)
@given(options=OPTIONS, seed=st.integers(0, 99), tested=st.booleans(), sparse=st.booleans(), weighted=st.booleans())
def test_a_row_is_the_model_of_its_class_against_the_rest(options, seed, tested, sparse, weighted):
    data = dataset(seed=seed, classes=3, sparse=sparse)
    if weighted:
        data = dataclasses.replace(data, sample_weights=np.random.default_rng(seed).random(data.samples))
    test = dataset(samples=20, classes=3, seed=seed + 1, sparse=sparse, name="test") if tested else None
    how = {"config": SPARSE if sparse else CONFIG, "test": test, **options}
    how |= {"scaling": "maxabs" if sparse else "robust"}  # with standard a rare class by itself has wider ranges
    result = run(data, **how)
    assert isinstance(result, ResultSet)
    assert result.names == ("0", "1", "2")
    for name, row in zip(result.names, result.rows, strict=True):
        if options["learning_rate"] is not None or name == "0":  # the search begins with the rate of the row before
            assert_same(row, run(data, positive=name, **how))
    z, labels = result.activations["train"]
    if not weighted:
        # Balanced weights are each row's own, so samples count alike for all of them.
        chosen = options["class_weight"] if isinstance(options["class_weight"], dict) else {}
        weights = [chosen.get(f"{label:.0f}", 1.0) for label in labels]
        accuracy = np.average(result.model.logits(z).argmax(axis=1) == labels, weights=weights)
        assert result.metrics["train_accuracy"] == pytest.approx(accuracy)
    if not weighted and options["class_weight"] is None:
        losses = [row.metrics["train_loss"] for row in result.rows]
        assert result.metrics["train_loss"] == pytest.approx(np.mean(losses))


def test_features_are_uploaded_once():
    device, written = RecordingDevice(CONFIG, 2), []
    for worker in device.workers:
        write = worker.write_memory
        worker.write_memory = lambda bank, address, data, write=write: (
            written.append((bank, address)),
            write(bank, address, data),
        )
    run(dataset(classes=5), device=device, workers=2, epochs=2, learning_rate=0.1, schedule="constant")
    assert written.count((0, 0)) == 2, "the lines of each worker"
    assert written.count((CONFIG.labels_memory, 0)) == 5 * 2


@pytest.mark.parametrize("options", [{}, {"loss": "hinge"}, {"precondition": "block"}, {"bias": False}])
def test_a_file_has_all_rows(tmp_path, options):
    names = ("ant", "bee", "cow", "dog")
    data = dataset(names=names)
    result = run(data, **options)
    model = result.model
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert (result.names, loaded.labels, loaded.training) == (names, model.labels, model.training)
    for ours, theirs in zip(loaded.rows, model.rows, strict=True):
        for name in {field.name for field in dataclasses.fields(Model)} - {"scaling"}:
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    grids = [getattr(each.scaling, "scaling", each.scaling) for each in (loaded, model)]
    assert (grids[0].offset == grids[1].offset).all()
    assert (loaded.decision_function(data) == model.decision_function(data)).all()
    assert (loaded.coefficients.shape, loaded.intercept.shape) == ((4, 12), (4,))
    assert {loaded.labels.name(label) for label in loaded.predict(data)} <= set(names)
    assert isinstance(run(dataset(classes=2, names=names[:2])).model, Model)


def test_only_one_thread_limits_those_of_blas(monkeypatch):
    """If it began while another's limit is set, it would set that again at its end, for ever."""
    both = threading.Barrier(2)

    def fit(*_):
        with pytest.raises(threading.BrokenBarrierError):
            both.wait(0.3)

    monkeypatch.setattr(trainer, "fit_softmax", fit)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, [dataset(seed=seed) for seed in range(2)]))
    assert both.broken


def test_probabilities_are_those_of_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    data = Dataset(X, y, "iris")
    model = dataclasses.replace(run(data).model, softmax=None)
    reference = OneVsRestClassifier(LogisticRegression()).fit(X, y)
    for estimator, row in zip(reference.estimators_, model.rows, strict=True):
        estimator.coef_, estimator.intercept_ = row.coefficients[np.newaxis], np.array([row.intercept])
    assert model.probabilities(model.decision_function(data)) == pytest.approx(reference.predict_proba(X), rel=1e-12)
    assert (model.predict(data) == reference.predict(X)).all()
    assert model.probabilities(np.full((1, 3), -800.0)).tolist() == [[1 / 3] * 3]


def test_metrics_are_those_of_scikit_learn():
    data = dataset(seed=5)
    model = run(data, epochs=2).model
    found, truth, z = score(model, data), data.labels, model.decision_function(data)
    predicted, p = model.predict(data), model.probabilities(z)
    expected = {
        "accuracy": accuracy_score(truth, predicted),
        "balanced_accuracy": balanced_accuracy_score(truth, predicted),
        "f1": f1_score(truth, predicted, average="macro"),
        "auc": roc_auc_score(truth, p, multi_class="ovr"),
        "log_loss": log_loss(truth, p),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["classes"] == [0, 1, 2, 3]
    assert np.sum(found["confusion_matrix"]) == truth.size
    assert measure_model(model, z, truth) == {name: found[name] for name in ("loss", "accuracy")}
    some = score(model, data.take(np.flatnonzero(truth < 2)))
    assert np.isnan(some["auc"])
    assert np.shape(some["confusion_matrix"]) == (4, 4)


@pytest.mark.parametrize("chosen", [None, "balanced", {"1": 0.25, "2": 3.0}])
def test_metrics_of_all_rows_are_weighted(chosen):
    """By the samples' weights, and in training by those of classes, unless each row has its own."""
    rng = np.random.default_rng(9)
    data, test = (
        dataclasses.replace(each, sample_weights=rng.random(each.samples))
        for each in (dataset(seed=6), dataset(seed=7))
    )
    result = run(data, test=test, epochs=2, validation_fraction=0.3, class_weight=chosen)
    rest, held_out = data.split(0.3, seed=0, stratified=True)
    by_class = np.array([1, 0.25, 3, 1]) if isinstance(chosen, dict) else np.ones(4)
    for name, part in (("train", rest), ("validation", held_out), ("test", test)):
        z, labels = result.activations[name]
        z = result.model.logits(z)
        assert (labels == part.labels).all()
        weights = part.sample_weights * (1 if name == "test" else by_class[labels.astype(int)])
        expected = accuracy_score(labels, z.argmax(axis=1), sample_weight=weights)
        assert result.metrics[f"{name}_accuracy"] == pytest.approx(expected)
        assert expected != pytest.approx(accuracy_score(labels, z.argmax(axis=1)))


def test_remarks_of_rows_are_told_together():
    told = []
    X, y = load_iris(return_X_y=True)
    result = run(Dataset(X, y, "iris"), on={"remark": told.append}, epochs=6, batch=160, split="16")
    assert told == list(dict.fromkeys(result.remarks))
    assert "a batch of 152 holds all samples" in told[0]
    assert "--split 16 changes nothing: all workers are dense" in told
    # Of the epochs that a row needs only its own remark tells the number.
    own = {
        f"class {name}: {text}".partition("; about")[0]
        for name, row in zip(result.names, result.rows, strict=True)
        for text in row.remarks
    }
    of_rows = [text.partition("; more epochs")[0] for text in told if text.startswith("class ")]
    assert of_rows
    assert set(of_rows) <= own


def test_an_interruption_leaves_a_model_only_in_the_last_row():
    begun = []

    def interrupt(row, epoch):
        def count(record):
            if (len(begun) - 1, record.epoch) == (row, epoch):
                raise KeyboardInterrupt

        begun.clear()
        return run(dataset(classes=3), on={"epoch": count, "row": lambda row, names: begun.append(row)})

    with pytest.raises(KeyboardInterrupt):
        interrupt(1, 2)
    result = interrupt(2, 2)
    assert result.stopped is StopReason.INTERRUPTED
    assert [len(row.history) for row in result.rows] == [3, 3, 2]
