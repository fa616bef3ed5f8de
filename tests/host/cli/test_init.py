"""`p4sgd train --init`: training goes on from the weights of a model file, as the estimators' warm start does."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from support.command_line import run
from support.tensor_file import rewrite

from p4sgd import GLMClassifier, GLMRegressor
from p4sgd import load_model as load_estimator
from p4sgd.host.training.model_file import load_model, save_model

pytestmark = pytest.mark.usefixtures("own_folder")


def train(data, out, *words):
    run("train", data, "--out", out, "--overwrite", *words)
    return load_model(Path(out))


def sparse_data():
    """Columns are dealt by the heat of the samples that are trained on."""
    rng = np.random.default_rng(3)
    X = scipy.sparse.random_array((300, 400), density=0.02, rng=rng, format="csr")
    return X, (X[:, [0]].toarray().ravel() + rng.normal(size=300) > 0).astype(float)


CASES = {
    "classes": (GLMClassifier, load_breast_cancer, {"precision": 4, "l2": 1e-3}),
    "robust, few planes read": (GLMClassifier, load_breast_cancer, {"scaling": "robust", "planes": 6, "precision": 3}),
    "several classes": (GLMClassifier, load_digits, {"scaling": "maxabs"}),
    "numbers": (GLMRegressor, load_diabetes, {"bias": False}),
    "whitened": (GLMClassifier, load_breast_cancer, {"precondition": "block"}),
    "sparse": (GLMClassifier, sparse_data, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_warm_start_of_the_estimators(case):
    """Samples, and with them statistics and the rate, are others than in the first run."""
    kind, load, parameters = CASES[case]
    X, y = sparse_data() if case == "sparse" else load(return_X_y=True)
    for name, rows in (("first.npz", slice(None)), ("second.npz", slice(100, 300))):
        if case == "sparse":
            csr = X[rows]
            parts = {"data": csr.data, "indices": csr.indices, "indptr": csr.indptr, "shape": csr.shape}
            np.savez(name, format=b"csr", y=y[rows], **parts)
        else:
            np.savez(name, X=X[rows], y=y[rows])
    ours = kind(epochs=3, warm_start=True, **parameters).fit(X, y)
    flags = {name: [] if name == "bias" else [f"--{name}", value] for name, value in parameters.items()}
    words = sum(flags.values(), ["--no-bias"] if "bias" in parameters else [])
    first = train("first.npz", "model", "--epochs", 3, "--loss", ours.loss, *words)
    assert (first.weights == ours.model_.weights).all()
    ours.set_params(epochs=2).fit(X[100:300], y[100:300])
    second = train(
        "second.npz", "again", "--init", "model", "--epochs", 2, *flags.get("l2", [])
    )  # of which none is kept
    assert (second.weights == ours.model_.weights).all()
    assert (second.coefficients == ours.model_.coefficients).all()
    assert np.array_equal(second.intercept, ours.model_.intercept)
    assert (second.labels, second.features) == (first.labels, first.features)
    assert (second.weights != first.weights).any()
    loaded = load_estimator("model").set_params(warm_start=True, epochs=2)
    assert (loaded.fit(X[100:300], y[100:300]).coef_ == ours.coef_).all()
    if case == "sparse":
        assert first.scaling.heat is not None
        assert second.training["configuration"]["sparse"]


def test_models_of_earlier_versions():
    """They lack the scaling, and are good for all else."""
    train("iris:1", "model", "--epochs", 1)
    rewrite(Path("model"), drop=("scaling_offset", "scaling_scale"), scaling=None)
    run("evaluate", "model", "iris:1")
    (line,) = run("train", "iris:1", "--init", "model", status=2).stderr.splitlines()
    assert line.startswith("p4sgd train: model: lacks the scaling of features")
    X, y = load_breast_cancer(return_X_y=True)
    with pytest.raises(ValueError, match="the model: lacks the scaling"):
        load_estimator("model").partial_fit(X[:, :4], y)


@pytest.mark.parametrize("options", [[1], {"epochs": "x"}, {"precision": 99}, {"bias": False}])
def test_damaged_options(options):
    model = train("iris:1", "model", "--epochs", 1)
    began = model.training["options"] | options if isinstance(options, dict) else options
    save_model(dataclasses.replace(model, training={"options": began}), Path("model"))
    (line,) = run("train", "iris:1", "--init", "model", status=2).stderr.splitlines()
    assert line.startswith("p4sgd train: model: a damaged model file: "), line


def test_training_goes_on_with_the_features_of_a_model(tmp_path):
    for name, seed in (("titanic.csv", 0), ("test.csv", 1)):
        run("data", "synth", "titanic", "--out", tmp_path / name, "--seed", seed)
    run("train", tmp_path / "titanic.csv", "--missing", "indicator", "--epochs", 20, "--out", tmp_path / "model")
    odd = tmp_path / "odd.csv"
    odd.write_text((tmp_path / "test.csv").read_text().replace("Queenstown", "Cobh"))
    done = run("train", odd, "--init", tmp_path / "model", "--epochs", 2, "--out", tmp_path / "next", "--test", odd)
    assert "values that the model does not know, such as 'Cobh'" in " ".join(done.stderr.split())
    ours, theirs = load_model(tmp_path / "next"), load_model(tmp_path / "model")
    assert ours.space.encoding == theirs.space.encoding
    assert not (ours.weights == theirs.weights).all()
    done = run("train", odd, "--init", tmp_path / "model", "--missing", "mean", status=2)
    assert "this model was trained with --missing indicator, not with --missing mean" in done.stderr
