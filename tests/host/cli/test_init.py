"""`p4sgd train --init`: training goes on from the weights of a model file, as the estimators' warm start does."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from support.command_line import run
from support.ranks import run_ranks
from support.tensor_file import rewrite

from p4sgd import GLMClassifier, GLMRegressor
from p4sgd import load_model as load_estimator
from p4sgd.host.run.request import TrainingRequest
from p4sgd.host.run.training_run import TrainingRun
from p4sgd.host.training.model_file import load_model, save_model


def train(data, out, *words):
    run("train", data, "--out", out, "--overwrite", *words)
    return load_model(Path(out))


CASES = {
    "classes": (GLMClassifier, load_breast_cancer, {"precision": 4, "l2": 1e-3}),
    "robust, few planes read": (GLMClassifier, load_breast_cancer, {"scaling": "robust", "planes": 6, "precision": 3}),
    "several classes": (GLMClassifier, load_digits, {"scaling": "maxabs"}),
    "numbers": (GLMRegressor, load_diabetes, {"bias": False}),
    "whitened": (GLMClassifier, load_breast_cancer, {"precondition": "block"}),
}


def words_of(parameters):
    for name, value in parameters.items():
        yield from ["--no-bias"] if name == "bias" else [f"--{name}", value]


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_warm_start_of_the_estimators(case, tmp_path):
    """Samples, and with them statistics and the rate, are others than in the first run."""
    kind, load, parameters = CASES[case]
    X, y = load(return_X_y=True)
    for name, rows in (("first", slice(None)), ("second", slice(100, 400))):
        np.savez(tmp_path / f"{name}.npz", X=X[rows], y=y[rows])
    ours = kind(epochs=3, warm_start=True, **parameters).fit(X, y)
    words = ["--loss", ours.loss, *words_of(parameters)]
    first = train(tmp_path / "first.npz", tmp_path / "model", "--epochs", 3, *words)
    assert (first.weights == ours.model_.weights).all()
    ours.set_params(epochs=2).fit(X[100:400], y[100:400])
    l2 = ["--l2", parameters["l2"]] if "l2" in parameters else []  # of the penalty nothing is kept
    more = ["--init", tmp_path / "model", "--epochs", 2, *l2]
    second = train(tmp_path / "second.npz", tmp_path / "again", *more)
    assert (second.weights == ours.model_.weights).all()
    assert (second.coefficients == ours.model_.coefficients).all()
    assert np.array_equal(second.intercept, ours.model_.intercept)
    assert (second.labels, second.features) == (first.labels, first.features)
    assert (second.weights != first.weights).any()
    loaded = load_estimator(tmp_path / "model").set_params(warm_start=True, epochs=2)
    assert (loaded.fit(X[100:400], y[100:400]).coef_ == ours.coef_).all()


def test_sparse_data_keep_their_zeros(tmp_path):
    """With columns dealt by the heat of the samples that are trained on."""
    rng = np.random.default_rng(3)
    X = scipy.sparse.random_array((300, 400), density=0.02, rng=rng, format="csr")
    y = (X[:, [0]].toarray().ravel() + rng.normal(size=300) > 0).astype(float)
    ours = GLMClassifier(epochs=2, warm_start=True).fit(X, y)
    for name, rows in (("first", slice(None)), ("second", slice(0, 200))):
        part = X[rows].tocoo()
        lines = [f"{label:g}" for label in y[rows]]
        for row, column, value in zip(part.row, part.col, part.data, strict=True):
            lines[row] += f" {column + 1}:{float(value)!r}"
        lines[0] += "" if " 400:" in lines[0] else " 400:0"
        (tmp_path / f"{name}.libsvm").write_text("\n".join(lines) + "\n")
    first = train(tmp_path / "first.libsvm", tmp_path / "model", "--epochs", 2)
    assert first.scaling.heat is not None
    ours.fit(X[:200], y[:200])
    second = train(tmp_path / "second.libsvm", tmp_path / "again", "--init", tmp_path / "model", "--epochs", 2)
    assert second.training["configuration"]["sparse"]
    assert (second.weights == ours.model_.weights).all()


def test_from_a_model_that_was_trained_on_prepared_data(tmp_path):
    run("data", "prepare", "breast_cancer", "--out", tmp_path / "folder", "--quiet")
    of_folder = train(tmp_path / "folder", tmp_path / "model", "--epochs", 2, "--lr", 1)
    of_data = train("breast_cancer", tmp_path / "other", "--epochs", 2, "--lr", 1)
    assert (of_folder.weights == of_data.weights).all()
    one, other = (
        train("breast_cancer", tmp_path / "again", "--init", tmp_path / each, "--epochs", 2)
        for each in ("model", "other")
    )
    assert (one.weights == other.weights).all()


def test_targets_are_scaled_as_before(tmp_path):
    """Targets that are ten times as large are learned in the old unit."""
    X, y = load_diabetes(return_X_y=True)
    np.savez(tmp_path / "first.npz", X=X, y=y)
    np.savez(tmp_path / "second.npz", X=X, y=2 * y + 1)
    first = train(tmp_path / "first.npz", tmp_path / "model", "--loss", "squared", "--epochs", 3)
    second = train(tmp_path / "second.npz", tmp_path / "again", "--init", tmp_path / "model", "--epochs", 20)
    assert second.labels == first.labels
    assert second.training["metrics"]["train_r2"] > 0.4


def test_models_of_earlier_versions(tmp_path):
    """They lack the scaling, and are good for all else."""
    path = tmp_path / "model"
    train("iris:1", path, "--epochs", 1)
    rewrite(path, drop=("scaling_offset", "scaling_scale"), scaling=None)
    run("evaluate", path, "iris:1")
    (line,) = run("train", "iris:1", "--init", path, status=2).stderr.splitlines()
    assert line.endswith(
        "lacks the scaling of features that training goes on from, as models of earlier versions do: train it anew"
    )
    X, y = load_breast_cancer(return_X_y=True)
    with pytest.raises(ValueError, match="the model: lacks the scaling"):
        load_estimator(path).partial_fit(X[:, :4], y)


def test_several_processes_go_on_alike(tmp_path):
    train("breast_cancer", tmp_path / "model", "--epochs", 2, "--precondition", "block")
    request = TrainingRequest(data="breast_cancer", init=tmp_path / "model", options={"epochs": 2})
    alone = TrainingRun(request).execute().model
    for model in run_ranks(2, lambda ranks: TrainingRun(request, ranks).execute().model):
        assert (model.weights == alone.weights).all()
        assert model.intercept == alone.intercept


@pytest.mark.parametrize("options", [[1], {"epochs": "x"}, {"precision": 99}, {"bias": False}])
def test_damaged_options(tmp_path, options):
    path = tmp_path / "model"
    model = train("iris:1", path, "--epochs", 1)
    began = model.training["options"] | options if isinstance(options, dict) else options
    save_model(dataclasses.replace(model, training={"options": began}), path)
    (line,) = run("train", "iris:1", "--init", path, status=2).stderr.splitlines()
    assert line.startswith(f"p4sgd train: {path}: a damaged model file: "), line
