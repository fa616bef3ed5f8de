"""`p4sgd train --folds`: cross-validation with scikit-learn's folds, in which nothing of a fold is trained on."""

import functools
import json

import numpy as np
import pytest
import sklearn.datasets
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import KFold, StratifiedKFold, cross_validate
from support import command_line
from support.events import events
from support.ranks import run_ranks

from p4sgd import GLMClassifier, GLMRegressor
from p4sgd.host.run import folds as folds_module
from p4sgd.host.run.request import TrainingRequest
from p4sgd.host.run.training_run import TrainingRun
from p4sgd.host.training.model_file import load_model

p4sgd = functools.partial(command_line.run, "train")


def found(*words):
    return json.loads(p4sgd(*words, "--json").stdout)["cross_validation"]


CLASSES = {"accuracy": "accuracy", "auc": "roc_auc"}
SEVERAL = {"accuracy": "accuracy", "auc": "roc_auc_ovr", "f1": "f1_macro"}
NUMBERS = {"r2": "r2", "mae": "neg_mean_absolute_error"}


@pytest.mark.parametrize(
    ("words", "estimator", "metrics"),
    [
        ("breast_cancer --folds 4 --precision 4 --seed 3", GLMClassifier(precision=4, random_state=3), CLASSES),
        ("breast_cancer --folds 3 --precondition block", GLMClassifier(precondition="block"), CLASSES),
        ("iris --folds 3", GLMClassifier(), SEVERAL),
        ("diabetes --folds 3 --loss squared", GLMRegressor(), NUMBERS),
    ],
    ids=["classes", "whitened", "several classes", "numbers"],
)
def test_metrics_are_those_of_scikit_learn_s_cross_validation(words, estimator, metrics):
    """The mean and the deviation of targets are those of the samples outside of the fold, too."""
    X, y = getattr(sklearn.datasets, f"load_{words.split()[0]}")(return_X_y=True)
    estimator.set_params(epochs=4)
    kind = StratifiedKFold if isinstance(estimator, GLMClassifier) else KFold
    cv = kind(int(words.split()[2]), shuffle=True, random_state=estimator.random_state)
    expected = cross_validate(estimator, X, y, cv=cv, scoring=[*metrics.values()], return_estimator=True)
    ours = found(*words.split(), "--epochs", 4)
    for name, theirs in metrics.items():
        values = expected[f"test_{theirs}"] * (-1 if theirs.startswith("neg") else 1)
        assert [fold[name] for fold in ours["folds"]] == pytest.approx(values, abs=1e-12)
        assert ours["mean"][name] == pytest.approx(values.mean())
        assert ours["deviation"][name] == pytest.approx(values.std())
    if metrics is not SEVERAL:
        rates = [each.history_[0]["learning_rate"] for each in expected["estimator"]]
        assert [fold["learning_rate"] for fold in ours["folds"]] == rates
    assert sum(fold["samples"] for fold in ours["folds"]) == len(y)


def test_weights_of_samples_as_scikit_learn_passes_them(tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    weights = np.random.default_rng(2).integers(0, 4, y.size)
    np.savetxt(tmp_path / "data.csv", np.column_stack([X, weights, y]), delimiter=",")
    ours = found(tmp_path / "data.csv", "--weight-column", 31, "--folds", 3, "--epochs", 3)
    X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]  # the others count nowhere
    parts = StratifiedKFold(3, shuffle=True, random_state=0).split(X, y)
    for fold, (rest, held_out) in zip(ours["folds"], parts, strict=True):
        classifier = GLMClassifier(epochs=3).fit(X[rest], y[rest], sample_weight=weights[rest])
        assert fold["accuracy"] == pytest.approx(classifier.score(X[held_out], y[held_out], weights[held_out]))


def test_what_is_fitted_does_not_see_the_fold(monkeypatch):
    """Values of one fold that are out of all proportion change nothing in its run."""

    def run(factor):
        X, y = load_breast_cancer(return_X_y=True)
        rows = folds_module.split_folds(plan.data, plan.options, 3)[0][1]
        X[rows] *= factor
        data = type(plan.data)(X, y, "data")
        request = TrainingRequest(data=data, options={"epochs": 2, "precondition": "block"})
        return list(folds_module.cross_validate(TrainingRun(request), 3))

    plan = TrainingRun(TrainingRequest(data="breast_cancer"))
    tame, wild = run(1), run(1000)
    same = [(a.result.model.weights == b.result.model.weights).all() for a, b in zip(tame, wild, strict=True)]
    assert same == [True, False, False]


def test_several_processes_find_the_same():
    request = TrainingRequest(data="breast_cancer", options={"epochs": 2})
    alone = [fold.metrics for fold in folds_module.cross_validate(TrainingRun(request), 3)]
    for theirs in run_ranks(2, lambda ranks: list(folds_module.cross_validate(TrainingRun(request, ranks), 3))):
        assert [fold.metrics for fold in theirs] == alone


def test_a_remark_is_made_once_though_its_figures_differ():
    """What is predicted depends on the samples of a fold."""
    shown = []
    remarks = folds_module._OfFold(events(remark=shown.append))
    for fold, text in enumerate(("1,200 hot columns, predicted 2.5 ms", "1,300 hot columns, predicted 3 ms", "12"), 1):
        remarks.fold(fold)
        for each in (text, "the same"):
            remarks.remark(each)
    assert shown == ["fold 1: 1,200 hot columns, predicted 2.5 ms", "fold 1: the same", "fold 3: 12"]


def test_the_table_and_the_model_of_all_samples(tmp_path):
    out = tmp_path / "model"
    done = p4sgd("breast_cancer", "--folds", 3, "--epochs", 2)
    assert list(tmp_path.iterdir()) == []
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert lines[0] == ["fold", "samples", "epoch", "loss", "accuracy", "auc", "f1"]
    assert [line[0] for line in lines[2:]] == ["1", "2", "3", "mean", "±"]
    document = json.loads(p4sgd("breast_cancer", "--folds", 3, "--epochs", 2, "--out", out, "--json").stdout)
    alone = json.loads(p4sgd("breast_cancer", "--epochs", 2, "--json").stdout)
    assert document["weights_sha256"] == alone["weights_sha256"]
    assert len(document["cross_validation"]["folds"]) == 3
    assert load_model(out).training["samples"] == 569
