"""Weights of samples and classes on the command line; that all ways lead to the same model is in the matrix."""

import json
import os

import numpy as np
import pytest
from sklearn import metrics
from support.command_line import run

from p4sgd import GLMClassifier, load_model

RNG = np.random.default_rng(11)
X = RNG.normal(size=(120, 12))
Y = np.where(X @ RNG.normal(size=12) + RNG.normal(size=120) > 0.8, "spam", "ham")
WEIGHTS = RNG.choice([0, 0.25, 1, 3], 120)
QUICK = ("--epochs", "3", "--batch", "24")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Data with weights, without them, and with those of classes multiplied in."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", X=X, y=Y, weights=WEIGHTS)
    np.savez("none.npz", X=X, y=Y)
    np.savez("spelt.npz", X=X, y=Y, weights=np.where(Y == "spam", 4.0, 0.5) * WEIGHTS)


def trained(*words):
    """The checksum of the weights and the metrics of a run."""
    document = json.loads(run("train", *words, *QUICK, "--json").stdout)
    return document["weights_sha256"], document["metrics"]


@pytest.mark.parametrize(
    ("data", "words", "parameters"),
    [("data.npz", (), {}), ("none.npz", ("--class-weight", "balanced"), {"class_weight": "balanced"})],
)
def test_weights_are_those_of_the_estimators(data, words, parameters):
    assert trained(data, *words, "--out", "model") != trained("none.npz")
    weights = WEIGHTS if data == "data.npz" else None
    estimator = GLMClassifier(epochs=3, batch=24, **parameters).fit(X, Y, sample_weight=weights)
    assert estimator.model_.weights.tolist() == load_model("model").model_.weights.tolist()


def test_weights_of_classes_multiply_those_of_samples_and_may_be_named_again():
    chosen, again, other = (("--class-weight", text) for text in ("spam=4,ham=0.5", "ham=.5,spam=4.0", "spam=2"))
    expected = trained("spelt.npz")[0]
    assert trained("data.npz", *chosen)[0] == trained("data.npz", "--positive", "spam", *chosen)[0] == expected
    run("data", "prepare", "data.npz", *chosen, "--out", "made", "--batch", 24)
    run("train", "data.npz", *chosen, *QUICK[2:], "--checkpoint", "kept", "--epochs", 1)
    assert trained("made", *again)[0] == trained("--resume", "kept", *again)[0] == expected
    done = run("train", "made", *other, status=2)
    assert "was prepared with class-weight spam=4.0,ham=0.5, not spam=2.0: choose that or" in done.stderr
    done = run("train", "--resume", "kept", *other, status=2)
    assert "this run began with --class-weight spam=4.0,ham=0.5, not with --class-weight spam=2.0:" in done.stderr


def test_held_out_samples_keep_their_weights_in_a_folder():
    more = ("--validation-fraction", 0.3)
    expected = trained("data.npz", *more)
    run("data", "prepare", "data.npz", "--out", "made", "--batch", 24, *more)
    found = trained("made")
    assert found[0] == expected[0]
    for name in ("validation_loss", "validation_accuracy"):
        assert found[1][name] == pytest.approx(expected[1][name], rel=0.02)


def test_evaluate_uses_them():
    run("train", "data.npz", *QUICK, "--out", "model")
    predicted = run("predict", "model", "none.npz").stdout.split()
    for data, weights in (("data.npz", WEIGHTS), ("none.npz", None)):
        found = json.loads(run("evaluate", "model", data, "--json").stdout)["accuracy"]
        assert found == pytest.approx(metrics.accuracy_score(Y, predicted, sample_weight=weights))
