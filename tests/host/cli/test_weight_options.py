"""Weights of samples and classes on the command line: the same weights whichever way, on every device, resumed too."""

import csv
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
    """A table with weights, and the same data as an archive."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", X=X, y=Y, weights=WEIGHTS)
    np.savez("none.npz", X=X, y=Y)
    with open("data.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["weight", *(f"c{i}" for i in range(12)), "label"])
        writer.writerows(zip(WEIGHTS, *X.T, Y, strict=True))


def trained(*words):
    """The checksum of the weights and the metrics of a run."""
    document = json.loads(run("train", *words, *QUICK, "--json").stdout)
    return document["weights_sha256"], document["metrics"]


def test_the_same_weights_whichever_way():
    expected = trained("data.npz", "--out", "model")
    assert expected != trained("none.npz")
    assert trained("data.csv", "--weight-column", "weight") == trained("data.csv", "--weight-column", "1") == expected
    estimator = GLMClassifier(epochs=3, batch=24).fit(X, Y, sample_weight=WEIGHTS)
    assert estimator.model_.weights.tolist() == load_model("model").model_.weights.tolist()


def test_weights_of_classes():
    spelt = np.where(Y == "spam", 4.0, 0.5) * WEIGHTS
    np.savez("spelt.npz", X=X, y=Y, weights=spelt)
    expected = trained("spelt.npz")[0]
    assert trained("data.npz", "--class-weight", "spam=4,ham=0.5")[0] == expected
    assert trained("data.npz", "--positive", "spam", "--class-weight", "spam=4,ham=0.5")[0] == expected
    run("data", "prepare", "data.npz", "--class-weight", "spam=4,ham=0.5", "--out", "made", "--batch", 24)
    assert trained("made")[0] == trained("made", "--class-weight", "ham=0.5,spam=4")[0] == expected
    done = run("train", "made", "--class-weight", "balanced", status=2)
    assert "was prepared with class-weight spam=4.0,ham=0.5, not balanced: choose that or" in done.stderr
    balanced = trained("none.npz", "--class-weight", "balanced", "--out", "model")[0]
    estimator = GLMClassifier(epochs=3, batch=24, class_weight="balanced").fit(X, Y)
    assert estimator.model_.weights.tolist() == load_model("model").model_.weights.tolist()
    totals = {name: np.count_nonzero(np.equal(Y, name)) for name in ("spam", "ham")}
    assert trained("none.npz", "--class-weight", f"spam={60 / totals['spam']},ham={60 / totals['ham']}")[0] == balanced


def test_a_resumed_run_may_name_its_weights_again():
    words = ("train", "data.npz", "--class-weight", "spam=4,ham=0.5", "--batch", 24, "--checkpoint", "kept")
    run(*words, "--epochs", 1)
    resumed = run("train", "--resume", "kept", "--class-weight", "ham=.5,spam=4.0", "--epochs", 3, "--json")
    expected = trained("data.npz", "--class-weight", "spam=4,ham=0.5")[0]
    assert json.loads(resumed.stdout)["weights_sha256"] == expected
    done = run("train", "--resume", "kept", "--class-weight", "spam=2", status=2)
    assert "this run began with --class-weight spam=4.0,ham=0.5, not with --class-weight spam=2.0:" in done.stderr


def test_held_out_samples_keep_their_weights_in_a_folder():
    more = ("--validation-fraction", 0.3)
    expected = trained("data.npz", *more)
    run("data", "prepare", "data.npz", "--out", "made", "--batch", 24, *more)
    found = trained("made")
    assert found[0] == expected[0]
    # The train loss is of quantised samples here.
    for name in ("loss", "accuracy"):
        assert found[1][f"validation_{name}"] == pytest.approx(expected[1][f"validation_{name}"], rel=0.02)


def test_evaluate_uses_them():
    run("train", "data.npz", *QUICK, "--out", "model")
    for words in (("data.csv", "--weight-column", "weight"), ("data.npz",)):
        found = json.loads(run("evaluate", "model", *words, "--json").stdout)
        predicted = [row.split(",")[0] for row in run("predict", "model", *words).stdout.split()]
        assert found["accuracy"] == pytest.approx(metrics.accuracy_score(Y, predicted, sample_weight=WEIGHTS))
    alike = json.loads(run("evaluate", "model", "none.npz", "--json").stdout)
    assert alike["accuracy"] == pytest.approx(metrics.accuracy_score(Y, predicted)) != found["accuracy"]


@pytest.mark.rtl
def test_the_simulated_hardware_weighs():
    words = ("data.npz", "--class-weight", "spam=3", "--epochs", 1, "--batch", 24, "--lr", 0.5, "--workers", 2)
    expected = json.loads(run("train", *words, "--json").stdout)["weights_sha256"]
    assert json.loads(run("simulate", *words, "--config", "tiny", "--json").stdout)["weights_sha256"] == expected
