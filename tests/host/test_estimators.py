"""Estimators against scikit-learn's own checks, and against the commands `p4sgd train` and `p4sgd predict`."""

import copy
import dataclasses
import doctest
import importlib
import inspect
import json
import pickle
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.ensemble import BaggingRegressor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.metrics import d2_tweedie_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from support.command_line import run
from support.failing_device import FailingDevice

from p4sgd import GLMClassifier, GLMRegressor, load_model, save_model
from p4sgd.host import devices, estimators
from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.synth import make_table
from p4sgd.host.errors import P4sgdError
from p4sgd.host.estimators.stream import drift_remark
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.run.training_run import TrainingRun
from p4sgd.host.training import TrainingOptions, model_file

pytestmark = pytest.mark.filterwarnings(  # few epochs are enough here, and digits have constant pixels
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore:.* are constant in the training samples"
)

FEW = pytest.mark.filterwarnings("ignore:X. the scaling of features is made of")
"""For tests that begin a stream with few samples."""

REASON = "samples that are repeated or left out make other mini-batches, as in scikit-learn's own SGD estimators"
EXPECTED_FAILURES = {f"check_sample_weight_equivalence_on_{kind}_data": REASON for kind in ("dense", "sparse")}
"""Checks of scikit-learn that an estimator need not pass."""


@FEW
@parametrize_with_checks([GLMClassifier(epochs=12)], expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        GLMRegressor(epochs=12),
        GLMRegressor(epochs=30, precondition="block"),
        GLMRegressor(missing="indicator"),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_checks_of_scikit_learn_with_other_parameters(estimator, check):
    if estimator.get_params().get("precondition") == "block" and "sparse" in str(check):
        pytest.skip("sparse data cannot be whitened")
    check(estimator)


# -- data --------------------------------------------------------------------------------------------------------------


def cancer():
    return load_breast_cancer(return_X_y=True)


def diabetes():
    return load_diabetes(return_X_y=True)


def digits():
    X, y = load_digits(return_X_y=True)
    chosen = np.isin(y, (3, 8))
    return X[chosen].astype(np.float32), y[chosen]


def texts():
    X, y = cancer()
    return X, np.array(["malignant", "benign"])[y]


def flowers():
    X, y = load_iris(return_X_y=True)
    return X, np.array(["virginica", "setosa", "versicolor"])[y]


def sparse_samples(samples=300, features=3000, density=0.02):
    matrix = scipy.sparse.random_array((samples, features), density=density, rng=np.random.default_rng(5)).tocsr()
    return matrix, np.where(matrix @ np.random.default_rng(6).normal(size=features) > 0, 4, 2)


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "task"), [(GLMClassifier, Task.CLASSIFICATION), (GLMRegressor, Task.REGRESSION)])
def test_parameters_are_the_options_of_training(kind, task):
    left_out = {"positive", "parallel", "seed", "stand_ins"} | ({"class_weight"} if task is Task.REGRESSION else set())
    options = {each.name: each.default for each in dataclasses.fields(TrainingOptions) if each.name not in left_out}
    others = {name: default for name, (default, _) in estimators.parameters.OTHERS.items()}
    chosen = inspect.signature(kind).parameters
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in chosen.values())
    defaults = {name: parameter.default for name, parameter in chosen.items()}
    assert LOSSES[defaults["loss"]].task is task
    assert kind().get_params() == defaults == options | others | {"loss": defaults["loss"]}
    described = inspect.getdoc(kind).partition("Attributes\n")[0].splitlines()
    assert set(defaults) <= set(described)
    assert "{" not in inspect.getdoc(kind)
    with pytest.raises(TypeError, match="unexpected keyword argument 'alpa'"):
        kind(alpa=1)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epochs": 0}, "^epochs must be at least 1, not 0$"),
        ({"precision": True}, "^precision must be a whole number, not True$"),
        ({"bias": "yes"}, "^bias must be True or False, not 'yes'$"),
        ({"split": 8.5}, "^split must be auto or none or a number of columns, at least 1, not '8.5'$"),
        ({"planes": 2.0}, "^planes must be a whole number or None, not 2.0$"),
        ({"validation_fraction": 1.0}, "^validation_fraction must be below 1, not 1$"),
        ({"scaling": "best"}, "^scaling must be one of auto, "),
        ({"loss": "log_loss"}, "there is no loss 'log_loss', which is logistic here: choose one of logistic"),
        ({"loss": "squared_error"}, "the loss squared_error is not for classification: choose one of logistic, hinge"),
        ({"damping": 0.1}, "^damping has no effect without precondition='block': add that, or leave it out$"),
        ({"device": "abacus"}, "there is no device 'abacus'"),
        ({"device": "cluster"}, "^device='cluster' needs cluster='FILE.toml', which names"),
        ({"sparse_workers": 2}, "^sparse_workers=2 leaves none of 1 workers dense: .* workers, or config='sparse' for"),
        ({"config": "tiniest"}, "there is no configuration 'tiniest'"),
        ({"random_state": -1}, "seed must be at least 0"),
        ({"random_state": "0"}, "cannot be used to seed"),
    ],
)
def test_values_that_are_not_allowed(parameters, message):
    with pytest.raises(ValueError, match=message):
        GLMClassifier(**parameters).fit([[0.0], [1.0]] * 8, [0, 1] * 8)


def test_numbers_of_numpy_are_numbers_and_a_file_has_all_parameters(tmp_path):
    """As a search over a range of NumPy hands them out."""
    X, y = diabetes()
    numbers = {"epochs": np.int64(2), "l2": np.float32(0.125), "learning_rate": np.float64(0.0625), "merge": "4"}
    ours = GLMRegressor(random_state=np.uint8(3), **numbers).fit(X, y)
    save_model(ours, str(tmp_path / "model"))
    same = GLMRegressor(epochs=2, l2=0.125, learning_rate=0.0625, random_state=3, merge=4).fit(X, y)
    loaded = load_model(str(tmp_path / "model"))
    assert type(loaded) is GLMRegressor
    assert loaded.get_params() == same.get_params() | {"merge": "4"}
    assert (ours.coef_ == same.coef_).all()
    assert (loaded.n_features_in_, loaded.intercept_) == (10, same.intercept_)
    assert (loaded.fit(X, y).coef_ == same.coef_).all()


def test_partial_fit_takes_weights():
    X, y = cancer()
    for kind, classes in ((GLMClassifier, {"classes": [0, 1]}), (GLMRegressor, {})):
        first = kind(learning_rate=0.01, scaling="standard").partial_fit(X, y, **classes)
        alike, none, others = (
            copy.deepcopy(first).partial_fit(X, y, sample_weight=weights).coef_.tolist()
            for weights in (np.full(y.size, 0.3), None, np.linspace(0, 1, y.size))
        )
        assert alike == none != others


def test_weights_of_classes():
    """By class, whatever these are called; and a search finds the parameter."""
    X, y = cancer()
    spelt = GLMClassifier(epochs=2).fit(X, y, sample_weight=np.where(y == 0, 2, 0.5))
    for weights, labels in (
        ({"bad": 2, "good": np.float32(0.5)}, np.array(["bad", "good"])[y]),
        ({0: 2, 1: 0.5}, y),
        ({False: 2, True: 0.5}, y.astype(bool)),
        ({-3: 2, 7: 0.5}, np.where(y == 0, -3, 7)),
    ):
        assert (GLMClassifier(epochs=2, class_weight=weights).fit(X, labels).coef_ == spelt.coef_).all()
    search = GridSearchCV(GLMClassifier(epochs=2), {"class_weight": [None, "balanced", {0: 2, 1: 1}]}, cv=2).fit(X, y)
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()
    with pytest.warns(UserWarning, match="class_weight names the label 2, which no sample has; there are 0, 1$"):
        other = GLMClassifier(epochs=2, class_weight={0: 2, 1: 0.5, 2: 3}).fit(X, y)
    assert (other.coef_ == spelt.coef_).all()
    with pytest.raises(ValueError, match="class_weight='balanced' needs all samples"):
        GLMClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1])
    later = GLMClassifier(class_weight={0: 2, 1: 1}).partial_fit(X, y, classes=[0, 1])
    later.partial_fit(X[y == 0], y[y == 0])  # a class that is missing in these samples is known all the same


@pytest.mark.parametrize("case", ["classes", "numbers", "table", "sparse"])
def test_samples_of_weight_0_count_nowhere(case):
    """Not even in scaling, features of a table, held-out samples, classes and the meaning of targets."""
    rng = np.random.default_rng(2)
    weights, wild = rng.choice([0, 0.5, 2], 400), rng.normal(size=(400, 5))
    out = weights == 0
    wild[out] *= 1e6
    y = np.select([out, wild[:, 0] > 0], ["other", "yes"], "no")
    estimator, X = GLMClassifier(epochs=4, validation_fraction=0.1, patience=2), wild
    if case == "numbers":
        estimator, y = GLMRegressor(epochs=4, validation_fraction=0.1, loss="huber"), wild[:, 0] * 3
    if case == "table":
        columns = {"a": wild[:, 0], "b": np.where(out, "gone", np.where(wild[:, 1] > 0, "u", "v"))}
        X, estimator = pa.table(columns), GLMClassifier(epochs=4, missing="mean")
    if case == "sparse":
        X = scipy.sparse.csr_array(wild * (rng.random(wild.shape) < 0.03))
    left = X.filter(pa.array(~out)) if case == "table" else X[~out]
    one = estimator.fit(X, y, sample_weight=weights)
    other = clone(estimator).fit(left, y[~out], sample_weight=weights[~out])
    assert (one.model_.weights == other.model_.weights).all()
    assert np.array_equal(one.intercept_, other.intercept_)
    assert one.predict(left).tolist() == other.predict(left).tolist()
    assert [each["train_loss"] for each in one.history_] == [each["train_loss"] for each in other.history_]
    for wrong, message in (([1.0], "shape"), (np.full(400, -1.0), "Negative"), (np.full(400, np.nan), "NaN")):
        with pytest.raises(ValueError, match=message):
            estimator.fit(X, y, sample_weight=wrong)


@pytest.mark.filterwarnings("ignore::UserWarning")  # that batches are too large, and of classes that are missing
def test_small_folds_and_bags():
    """A fold may lack a class that has a weight, and a bag nearly all samples."""
    X, y = np.random.default_rng(0).normal(size=(12, 5)), np.repeat([0, 1, 2], 4)
    classifier = GLMClassifier(epochs=5, class_weight={0: 1, 1: 2, 2: 3})
    with pytest.warns(UserWarning, match="class_weight names the label 0, which no sample has; there are 1, 2"):
        assert cross_val_score(classifier, X, y, cv=KFold(3), error_score="raise").tolist() == [0, 0, 0]
    regressor = GLMRegressor(validation_fraction=0.1, patience=3, epochs=10)
    bags = BaggingRegressor(regressor, n_estimators=20, random_state=0).fit(X, X[:, 0])
    assert np.isfinite(bags.predict(X)).all()


def test_random_state():
    X, y = diabetes()

    shared = np.random.RandomState(1)
    states = (np.random.RandomState(1), shared, 0, shared)
    first, again, zero, later = (GLMRegressor(epochs=1, random_state=each).fit(X, y).coef_.tolist() for each in states)
    assert first == again not in (zero, later)


# -- the law: weights of the command line ------------------------------------------------------------------------------


def p4sgd(*words):
    return run(*words).stdout


CASES = {
    "defaults": (GLMClassifier, cancer, {"epochs": 6}),
    "texts": (GLMClassifier, texts, {"loss": "hinge", "precision": 3, "workers": 3, "epochs": 4, "l2": 0.01}),
    "float32": (GLMClassifier, digits, {"planes": 6, "precision": 4, "validation_fraction": 0.2, "patience": 2}),
    "sparse": (GLMClassifier, sparse_samples, {"epochs": 5, "l1": 1e-4, "random_state": 9}),
    "three texts": (GLMClassifier, flowers, {"epochs": 4, "validation_fraction": 0.2, "loss": "hinge"}),
    "no bias": (GLMClassifier, digits, {"bias": False, "epochs": 3, "scaling": "minmax"}),
    "whitened": (GLMRegressor, diabetes, {"precondition": "block", "epochs": 3}),
    "quantile": (GLMRegressor, diabetes, {"loss": "quantile", "quantile": 0.8, "staleness": 1, "epochs": 3}),
}
"""Estimator, data and parameters by name."""


@pytest.mark.parametrize("case", CASES)
def test_weights_and_predictions_are_those_of_the_command_line(tmp_path, case):
    kind, load, parameters = CASES[case]
    (X, y), data, path, saved = load(), tmp_path / "data.npz", tmp_path / "model", tmp_path / "ours"
    if scipy.sparse.issparse(X):
        parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": X.shape}
        np.savez(data, format=np.array(b"csr"), **parts, y=y)
    else:
        np.savez(data, X=X, y=y)
    words = ["--loss", "squared"] if kind is GLMRegressor else []
    for name, value in parameters.items():
        option = {"learning_rate": "lr", "random_state": "seed"}.get(name, name).replace("_", "-")
        words += [f"--no-{option}"] if value is False else [f"--{option}", value]
    p4sgd("train", data, "--quiet", "--out", path, *words)
    theirs, ours = model_file.load_model(path), kind(**parameters).fit(X, y)
    for name in ("weights", "coefficients", "intercept"):
        assert np.array_equal(getattr(ours.model_, name), getattr(theirs, name)), name
    assert ours.model_.training["configuration"] == theirs.training["configuration"]
    save_model(ours, saved)
    classify = kind is GLMClassifier
    probable = ["--probabilities"] if classify and ours.loss == "logistic" else []
    for written, estimator in ((saved, load_model(path)), (path, ours)):
        told = json.loads(p4sgd("predict", written, data, "--json", *probable))
        assert estimator.predict(X).tolist() == told["predictions"]
        if probable:
            shares = estimator.predict_proba(X)
            assert (shares[:, 1] if shares.shape[1] == 2 else shares).tolist() == told["probabilities"]
        if classify:
            assert estimator.classes_.tolist() == np.unique(y).tolist()
            assert (estimator.decision_function(X) == theirs.decision_function(ours._samples(X))).all()


def test_a_file_is_replaced_on_request_only(tmp_path):
    X, y = cancer()
    first, second = (GLMClassifier(epochs=epochs).fit(X, y) for epochs in (1, 2))
    path = tmp_path / "model"
    save_model(first, path)
    with pytest.raises(ValueError, match=r"model: already exists: choose .*, or replace it with overwrite=True$"):
        save_model(second, path)
    assert (load_model(path).coef_ == first.coef_).all()
    save_model(second, path, overwrite=True)
    assert (load_model(path).coef_ == second.coef_).all()
    (tmp_path / "thesis").write_text("years of work")
    with pytest.raises(ValueError, match="already exists and is no model file"):
        save_model(second, tmp_path / "thesis", overwrite=True)
    for name in ("thesis", "none"):
        with pytest.raises(ValueError, match=f"{name}: "):
            load_model(tmp_path / name)


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["defaults", "texts", "sparse", "no bias", "whitened"])
@pytest.mark.parametrize("schedule", ["adaptive", "invscaling"])
def test_epochs_of_partial_fit_are_those_of_a_run(case, schedule):
    """As long as training does not diverge. The schedule ``adaptive`` is then ``constant``."""
    kind, load, parameters = CASES[case]
    X, y = load()
    rate = {"learning_rate": 0.01} if case != "defaults" else {}
    parameters = parameters | rate | {"schedule": schedule, "l2": 0.0}  # partial_fit has no penalty by default
    ours = kind(**parameters)
    for epochs in range(1, 4):
        ours.partial_fit(X, y, **({"classes": np.unique(y)} if kind is GLMClassifier and epochs == 1 else {}))
        constant = {"schedule": "constant"} if schedule == "adaptive" else {}
        whole = kind(**parameters | constant | {"epochs": epochs}).fit(X, y)
        if whole.model_.training["epoch"] == epochs:  # else its model is of an earlier one
            assert (ours.model_.weights == whole.model_.weights).all()
        assert ours.n_iter_ == epochs
        ours_rates, rates = ([record["learning_rate"] for record in each.history_] for each in (ours, whole))
        assert ours_rates == rates
    assert whole.model_.training["epoch"] == 3, "the last epoch was compared"


def test_zeros_that_sparse_data_do_not_store_may_have_drifted():
    rng = np.random.default_rng(4)
    x = np.hstack([rng.integers(2020, 2026, (200, 1)), np.eye(300)[rng.integers(0, 300, 200)]])
    scaling = Scaling.fit(scipy.sparse.csr_array(x))
    lacking = x.copy()
    lacking[:150, 0] = 0
    for rows, drifted in ((x, False), (lacking, True)):
        for form in (np.asarray, scipy.sparse.csr_array):
            remark = drift_remark(scaling, Dataset(form(rows), np.zeros(200), "made"))
            assert ("most values of 1 of 301 features" in (remark or "")) == drifted


def test_partial_fit_on_a_stream():
    """Also where a part has one class, or values far beyond those of the first part."""
    X, y = cancer()
    parts = np.array_split(np.random.default_rng(3).permutation(400), 8)
    classifier = GLMClassifier()
    for part in (*parts * 3, np.flatnonzero(y == 0)[:40], np.flatnonzero(y == 1)[:40]):
        classifier.partial_fit(X[part], y[part], classes=[0, 1])
    assert classifier.n_iter_ == 26
    assert classifier.score(X[400:], y[400:]) > 0.9
    scaling = classifier._next_start.scaling
    with pytest.warns(UserWarning, match="most values of 30 of 30 features lie outside the range of the scaling"):
        assert classifier.partial_fit(X[:50] * 1000, y[:50])._next_start.scaling is scaling
    for arguments, message in (
        ((X, y, [0, 2]), "those of earlier calls were"),
        ((X, y + 1), "y has the class 2, which is not one of"),
    ):
        with pytest.raises(ValueError, match=message):
            classifier.partial_fit(*arguments)
    with pytest.raises(ValueError, match="classes must be given in the first call"):
        GLMClassifier().partial_fit(X, y)


def test_samples_one_by_one():
    """The first ones say nothing of the scale of features and targets. Later ones do."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 3)) * [1, 1000, 0.01] + [0, 5000, 0]
    y, counts = X @ [300, 0.3, 0] + 1e5, rng.poisson(np.exp(X[:, 0])) * (np.arange(300) > 1)
    regressor, classifier, counter = GLMRegressor(), GLMClassifier(), GLMRegressor(loss="poisson")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for part in np.split(np.arange(300), [*range(1, 6), *range(20, 300, 40)]):
            regressor.partial_fit(X[part], y[part], sample_weight=None if part[0] else [2])
            counter.partial_fit(X[part], counts[part])
            classifier.partial_fit(scipy.sparse.csr_array(X[part]), X[part, 0] > 0, classes=[False, True])
    assert regressor.score(X, y) > 0.99
    assert regressor.n_iter_ == classifier.n_iter_ == 13
    assert counter.score(X, counts) > 0.9 * GLMRegressor(loss="poisson").fit(X, counts).score(X, counts)
    assert classifier.score(X, X[:, 0] > 0) > 0.95
    assert sum("X: the scaling of features is made of 1 sample, and" in str(each.message) for each in told) == 3


@pytest.mark.filterwarnings("ignore:with the scaling standard half of the values")
def test_parts_of_a_stream_may_be_sparse_or_not():
    """What the first part decides holds: zeros that are not kept make no sparse workers later."""
    X, y = sparse_samples(density=0.02)
    dense, _ = sparse_samples(density=0.3)
    for first, second in ((X, dense), (dense, X)):
        ours, others = GLMClassifier(workers=2), GLMClassifier(config="u280")
        for samples in (first, second, first.toarray(), second.tocsc()):
            ours.partial_fit(samples, y, classes=[2, 4])
            others.partial_fit(samples.toarray() if samples is second else samples, y, classes=[2, 4])
        assert (ours.model_.weights == others.model_.weights).all()


def test_diverging_on_a_part_goes_back_to_the_weights_before():
    X, y = diabetes()
    regressor = GLMRegressor(learning_rate=0.05)
    before = regressor.partial_fit(X, y)._next_start
    regressor._next_start = dataclasses.replace(before, rate=40.0)
    after = regressor.partial_fit(X, np.where(np.arange(y.size) % 2, 40, -40) * (y - y.mean()))._next_start
    assert 0 < after.rate <= 4
    assert (after.weights == before.weights).all()


def test_warm_start_goes_on_from_the_weights():
    X, y = cancer()
    parameters = {"learning_rate": 0.05, "schedule": "constant", "precision": 4}
    whole = GLMClassifier(epochs=5, **parameters).fit(X, y)
    parts = GLMClassifier(epochs=3, warm_start=True, **parameters).fit(X, y)
    parts.set_params(epochs=2).fit(X, y)
    assert (parts.model_.weights == whole.model_.weights).all()
    assert (parts.intercept_, parts.n_iter_) == (whole.intercept_, 2)
    for name, value in {"planes": 6, "scaling": "minmax", "bias": False}.items():
        with pytest.raises(ValueError, match=f"{name} was .* and is {value}: only training anew can change it"):
            clone(parts).fit(X, y).set_params(**{name: value}).fit(X, y)
    with pytest.raises(ValueError, match="y has the class 2"):
        parts.fit(X, y + 1)
    regressor = GLMRegressor(epochs=1, warm_start=True).fit(X, y + 1).set_params(loss="huber").fit(X, y + 1)
    with pytest.raises(ValueError, match="the loss poisson is for regression of numbers of at least 0"):
        regressor.set_params(loss="poisson").fit(X, y + 1)
    assert parts.set_params(warm_start=False).fit(X, y + 1).classes_.tolist() == [1, 2]


@pytest.mark.parametrize("classes", [2, 3])
def test_warm_start_after_parts_fits_the_intercept_again(tmp_path, classes):
    """As from a file with the same weights, which does not say that they come from partial_fit."""
    X, y = load_iris(return_X_y=True)
    X, y = X[y < classes], y[y < classes]
    classifier = GLMClassifier(epochs=2, warm_start=True, l2=0.0).partial_fit(X, y, classes=range(classes))
    save_model(classifier, tmp_path / "model")
    one = classifier.fit(X, y)
    other = load_model(tmp_path / "model").set_params(epochs=2, warm_start=True).fit(X, y)
    assert (one.model_.weights == other.model_.weights).all()
    assert (one.intercept_ == other.intercept_).all()


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_going_on_from_one_class_against_the_rest(tmp_path):
    """The labels are then 0 and 1, as those that the model predicts, and of a model that was trained on these."""
    X, y = load_digits(return_X_y=True)
    threes, saved = (y == 3).astype(int), tmp_path / "threes.model"
    p4sgd("train", "digits", "--positive", 3, "--epochs", 3, "--out", saved)
    one, other = load_model(saved), GLMClassifier(epochs=3).fit(X, threes)
    assert one.classes_.tolist() == [0, 1]
    assert one.predict(X).tolist() == json.loads(p4sgd("predict", saved, "digits", "--json"))["predictions"]
    assert (one.model_.weights == other.model_.weights).all()
    save_model(other, tmp_path / "alone.model")
    other = load_model(tmp_path / "alone.model")
    for _ in range(2):
        assert (one.partial_fit(X, threes).coef_ == other.partial_fit(X, threes).coef_).all()


# -- the rest of scikit-learn ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the loss of the model is more than 5%")  # with a single bit
def test_searches_and_copies():
    X, y = texts()
    pipeline = make_pipeline(StandardScaler(), GLMClassifier(epochs=5))
    search = GridSearchCV(pipeline, {"glmclassifier__precision": [1, 4]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.95
    ours = search.best_estimator_[-1]
    same, X = pickle.loads(pickle.dumps(ours)), StandardScaler().fit_transform(X)
    assert same.history_ == ours.history_
    assert (same.partial_fit(X, y).coef_ == ours.partial_fit(X, y).coef_).all()


@pytest.mark.parametrize(("loss", "power"), [("poisson", 1), ("gamma", 2), ("tweedie", 1.5)])
def test_coefficients_of_a_logarithmic_link_are_those_of_the_logarithm(loss, power):
    X, y = diabetes()
    with pytest.raises(NotFittedError):
        GLMRegressor(loss=loss).score(X, y)
    regressor = GLMRegressor(loss=loss, epochs=5).fit(X, y)
    assert regressor.predict(X) == pytest.approx(np.exp(X @ regressor.coef_ + regressor.intercept_))
    assert regressor.score(X, y) == d2_tweedie_score(y, regressor.predict(X), power=power) > 0.3


def test_probabilities_only_of_losses_that_give_them():
    X, y = cancer()
    assert not hasattr(GLMClassifier(loss="hinge"), "predict_proba")
    assert not hasattr(GLMClassifier(loss="hinge"), "predict_log_proba")
    for loss in ("logistic", "modified_huber"):
        classifier = GLMClassifier(epochs=1, loss=loss).fit(X, y)
        proba = classifier.predict_proba(X)
        assert proba.sum(axis=1) == pytest.approx(1)
        assert np.exp(classifier.predict_log_proba(X)) == pytest.approx(proba)
        assert ((proba[:, 1] > 0.5) == y).mean() > 0.9


def test_several_classes_go_on_each_as_by_itself():
    X, y = load_digits(return_X_y=True)
    how = {"learning_rate": 5.0, "scaling": "minmax"}  # with standard a rare class by itself has wider ranges
    classifier, alone = GLMClassifier(**how), GLMClassifier(**how)
    for part in np.array_split(np.random.default_rng(0).permutation(len(y)), 4):
        classifier.partial_fit(X[part], y[part], classes=np.arange(10))
        alone.partial_fit(X[part], y[part] == 3, classes=[False, True])
    assert (classifier.coef_[3] == alone.coef_[0]).all()
    assert classifier.n_iter_ == 4
    assert classifier.score(X, y) > 0.9
    z = classifier.decision_function(X)
    assert z == pytest.approx(X @ classifier.coef_.T + classifier.intercept_)
    assert (classifier.predict(X) == z.argmax(axis=1)).all()
    assert classifier.predict_proba(X).sum(axis=1) == pytest.approx(1)
    classifier.set_params(warm_start=True, epochs=2).fit(X, y)
    row = alone.set_params(warm_start=True, epochs=2).fit(X, y == 3).coef_[0]
    assert (classifier.model_.rows[3].coefficients == row).all()
    assert [record["class"] for record in classifier.history_] == [name for name in "0123456789" for _ in range(2)]


def test_several_targets_are_regressions_one_by_one(tmp_path):
    X, y = diabetes()
    several = np.column_stack([y, np.log(y), -y])
    regressor = GLMRegressor(epochs=4).fit(X, several)
    assert regressor.predict(X) == pytest.approx(X @ regressor.coef_.T + regressor.intercept_)
    alone = GLMRegressor(epochs=4).fit(X, several[:, 1])
    assert (regressor.coef_[1] == alone.coef_).all()
    assert regressor.intercept_[1] == alone.intercept_
    save_model(regressor, tmp_path / "model")
    assert (load_model(tmp_path / "model").predict(X) == regressor.predict(X)).all()
    counts = GLMRegressor(loss="poisson", epochs=4).fit(X, several[:, :2])
    each = [d2_tweedie_score(*pair, power=1) for pair in zip(several.T, counts.predict(X).T, strict=False)]
    assert counts.score(X, several[:, :2]) == pytest.approx(np.mean(each))
    assert GLMRegressor(epochs=2, warm_start=True).fit(X, several).fit(X, several).score(X, several) > 0.4
    assert GLMRegressor().partial_fit(X, several).partial_fit(X, several).n_iter_ == 2


def test_a_column_of_targets_has_the_shapes_of_scikit_learn():
    X, y = diabetes()
    plain = GLMRegressor(epochs=2).fit(X, y)
    column = GLMRegressor(epochs=2).fit(X, y[:, np.newaxis])
    peer = LinearRegression().fit(X, y[:, np.newaxis])
    assert column.predict(X).shape == peer.predict(X).shape
    assert (column.coef_.shape, column.intercept_.shape) == (peer.coef_.shape, peer.intercept_.shape)
    assert type(plain.intercept_) is type(LinearRegression().fit(X, y).intercept_)
    assert (column.predict(X)[:, 0] == plain.predict(X)).all()
    assert column.score(X, y[:, np.newaxis]) == plain.score(X, y)
    assert column.fit(X, y).predict(X).shape == (y.size,)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_several_labels(tmp_path):
    X, y = load_digits(return_X_y=True)
    several = np.column_stack([y % 2, y > 4, y == 0]).astype(int)
    classifier = GLMClassifier(epochs=4).fit(X, several)
    alone = GLMClassifier(epochs=4).fit(X, several[:, 1])
    assert (classifier.predict(X)[:, 1] == alone.predict(X)).all()
    assert (classifier.predict_proba(X)[:, 1] == alone.predict_proba(X)[:, 1]).all()
    assert classifier.classes_.tolist() == [0, 1, 2]
    assert (GLMClassifier(epochs=4).fit(X, scipy.sparse.csr_array(several)).coef_ == classifier.coef_).all()
    with pytest.raises(ValueError, match="partial_fit takes one label a sample"):
        GLMClassifier().partial_fit(X, several, classes=[0, 1])
    # Targets of a file have classes of their own.
    X = np.random.default_rng(0).normal(size=(80, 2))
    targets = np.column_stack([np.where(X[:, 0] > 0, 2, 1), np.where(X[:, 1] > 0, 1, -1)])
    table, model = tmp_path / "table.csv", tmp_path / "model"
    np.savetxt(table, np.hstack((X, targets)), delimiter=",", header="a,b,t,u", comments="")
    p4sgd("train", table, "--label-column", "t", "--label-column", "u", "--epochs", 3, "--out", model)
    loaded = load_model(model)
    assert loaded.predict(X).dtype == np.int64
    assert (loaded.predict(X) == targets).mean() > 0.9
    assert [each.tolist() for each in loaded.classes_] == [[1, 2], [-1, 1]]
    with pytest.raises(ValueError, match="y has one column, the model has 2 labels"):
        loaded.partial_fit(X, targets[:, 0])


def test_classes_keep_their_type():
    """Integers are classes however many there are; of a file they would be taken for measurements."""
    X = np.random.default_rng(0).normal(size=(120, 3))
    for classes in (
        [False, True],
        [np.int8(-1), np.int8(1)],
        ["no", "yes"],
        np.array(["maybe", "no", "yes"], dtype=object),
        [2**60, 2**60 + 1],
        [2**60, 2**60 + 1, 2**60 + 2],
        list(range(40)),
    ):
        y = np.array(classes)[np.arange(120) % len(classes)]
        estimator = GLMClassifier(epochs=1, validation_fraction=0.4 if len(classes) == 40 else 0.0).fit(X, y)
        assert estimator.classes_.tolist() == list(classes)
        assert estimator.predict(X).dtype == y.dtype
    for kind in ("Int64", "boolean"):
        y = pd.Series([0, 1] * 60, dtype=kind)
        assert GLMClassifier(epochs=1).fit(X, y).classes_.dtype == y.dtype.numpy_dtype


# -- events ------------------------------------------------------------------------------------------------------------


def test_warnings_name_the_line_that_fits():
    X, y = cancer()
    saturates = {"loss": "hinge", "scaling": "minmax", "learning_rate": 300.0, "batch": 8, "epochs": 3}
    for estimator, samples, category, message in (
        (GLMClassifier(**saturates), y[:, np.newaxis], UserWarning, "weights were saturated"),
        (GLMClassifier(epochs=6), X, ConvergenceWarning, "training has not converged"),
        (GLMClassifier(epochs=2, learning_rate=4e3, schedule="constant"), X, ConvergenceWarning, "training diverged"),
        (GLMClassifier(epochs=1), X, ConvergenceWarning, "has not converged in 1 epoch: raise epochs"),
        (GLMClassifier(epochs=3), X, ConvergenceWarning, "has not converged in 3 epochs: raise epochs"),
        (GLMClassifier(epochs=2), np.zeros_like(X), UserWarning, "all features are constant"),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            estimator.fit(samples, y)
        (found,) = (each for each in told if message in str(each.message))
        assert (found.category, found.filename) == (category, __file__)
        assert sorted(str(each.message) for each in told) == sorted(estimator.remarks_)
    (remark,) = GLMClassifier(epochs=6).fit(*load_iris(return_X_y=True)).remarks_
    assert remark.startswith("classes 0, 2: training has not converged"), "one for all classes"


def test_quiet_by_default_and_a_line_for_every_epoch(capfd):
    X, y = cancer()
    quiet = GLMClassifier(epochs=5).fit(X, y)
    assert capfd.readouterr() == ("", "")
    GLMClassifier(epochs=5, verbose=1).fit(X, y)
    *epochs, remark = capfd.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in epochs] == [f"epoch {epoch}" for epoch in range(1, 6)]
    assert "train accuracy" in epochs[0]
    assert [remark] == quiet.remarks_
    quiet.set_params(verbose=1).partial_fit(X, y)
    assert capfd.readouterr().out.startswith("epoch 6, train loss")


def test_a_worker_that_is_lost_is_warned_of_also_when_quiet(monkeypatch, capfd):
    X, y = cancer()
    lost = P4sgdError("worker 1 is gone", lost_workers={1})
    monkeypatch.setattr(devices, "open_device", lambda name, config, workers: FailingDevice(config, workers, 3, lost))
    for verbose in (0, 1):
        classifier = GLMClassifier(epochs=4, workers=2, verbose=verbose)
        with pytest.warns(UserWarning, match=r"^epoch 3 is trained by 1 worker instead of 2: worker 1 is gone") as told:
            classifier.fit(X, y)
        assert sorted(str(each.message) for each in told) == sorted(classifier.remarks_)
        assert "is gone" not in capfd.readouterr().out


def test_ctrl_c_keeps_the_best_model_and_ends_what_is_around(monkeypatch):
    X, y = cancer()

    def stop(_, record):
        if record.epoch == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(estimators.glm._Shown, "epoch", stop)
    classifier = GLMClassifier(epochs=5, verbose=1)
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(X, y)
    assert classifier.n_iter_ == 3
    assert classifier.score(X, y) > 0.9
    with pytest.raises(KeyboardInterrupt):
        cross_val_score(classifier, X, y)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("fitted", [False, True])
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(monkeypatch, fitted, error):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.repeat(["no", "yes"], 30)
    classifier, regressor = GLMClassifier(epochs=1), GLMRegressor(epochs=1)
    if fitted:
        classifier.fit(X, y)
        regressor.fit(X, X[:, 0])
    kept = [dict(vars(each)) for each in (classifier, regressor)]

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(TrainingRun, "execute", fail)
    other, names = np.ones((60, 5)), np.repeat(["A", "B"], 30)
    for fit, *data in (
        (classifier.fit, other, names),
        (classifier.partial_fit, X, y, ["no", "yes"]),
        (regressor.fit, other, other[:, 0]),
        (regressor.partial_fit, X, X[:, 0]),
    ):
        with pytest.raises(error):
            fit(*data)
    assert [vars(each) for each in (classifier, regressor)] == kept


def test_examples_of_the_documentation():
    for module in (estimators.classifier, estimators.regressor):
        found = doctest.testmod(module)
        assert found.attempted > 4
        assert found.failed == 0


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(library, tmp_path):
    frames = pytest.importorskip(library)
    X, y = diabetes()
    names = load_diabetes().feature_names
    frame = frames.DataFrame({name: X[:, column] for column, name in enumerate(names)})
    regressor = GLMRegressor(epochs=3).fit(frame, frames.Series(y))
    assert regressor.feature_names_in_.tolist() == names
    assert (regressor.predict(frame) == GLMRegressor(epochs=3).fit(X, y).predict(X)).all()
    save_model(regressor, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.feature_names_in_.tolist() == names
    assert (loaded.predict(frame) == regressor.predict(frame)).all()
    assert GLMRegressor(missing="mean", epochs=1).fit(frame, y).get_feature_names_out().tolist() == names
    with pytest.raises(ValueError, match="feature names should match"):
        regressor.predict(frame[names[::-1]])
    pipeline = make_pipeline(StandardScaler(), GLMRegressor(epochs=3)).set_output(transform=library)
    assert pipeline.fit(frame, y)[-1].feature_names_in_.tolist() == names


def test_texts_and_gaps_part_by_part():
    table = make_table("titanic")
    X, y = table.drop(["survived"]), table["survived"].to_numpy()
    estimator = GLMClassifier(missing="mean")
    for first in range(0, 1200, 400):
        estimator.partial_fit(X.slice(first, 400), y[first : first + 400], classes=[0, 1])
    assert estimator.n_iter_ == 3
    assert estimator.score(X, y) > 0.7
    expected = estimator.decision_function(X)
    for row in range(12):
        rows = type(X).from_pylist(X.slice(row, 1).to_pylist())  # a column without a value is of no type
        assert estimator.decision_function(rows).tolist() == [expected[row]]
    strange = X.slice(0, 2).set_column(1, "sex", [["neither", "male"]])
    with pytest.warns(UserWarning, match="sex: 1 value that the model does not know, such as 'neither'"):
        estimator.predict(strange)
    with pytest.raises(ValueError, match="X must be a DataFrame with texts"):
        estimator.predict(np.zeros((2, 8)))
    with pytest.raises(ValueError, match=r"X, row 1, column age: the value is missing.*missing='mean'"):
        GLMClassifier().fit(X, y)


@FEW
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_rows_of_a_table_one_by_one(library):
    """Later ones have other texts, and the first gaps."""
    pytest.importorskip(library)
    rng = np.random.default_rng(0)
    texts = pa.array(rng.choice(["a", "b", "c", None], 300)).dictionary_encode()
    table = pa.table({"k": texts, "x": pa.array(rng.normal(size=300), mask=rng.random(300) < 0.2)})
    if library != "pyarrow":
        table = table.to_pandas() if library == "pandas" else importlib.import_module("polars").from_arrow(table)
    y = np.array([text == "a" for text in texts.to_pylist()])
    whole, parts = GLMClassifier(missing="indicator").fit(table, y), GLMClassifier(missing="indicator")
    for rows in (*map(slice, range(5), range(1, 6)), *(slice(first, first + 59) for first in range(5, 300, 59))):
        weights = np.arange(rows.start, rows.stop) != 3
        part = table.iloc[rows] if library == "pandas" else table[rows]
        if weights.any():
            parts.partial_fit(part, y[rows], classes=[False, True], sample_weight=weights)
    assert parts.get_feature_names_out().tolist() == whole.get_feature_names_out().tolist()
    assert parts.score(table, y) == whole.score(table, y) == 1


@pytest.mark.parametrize("missing", ["error", "mean", "indicator"])
def test_texts_of_a_frame_are_no_gaps(missing):
    """Not even those that mean one in a CSV file, such as Namibia's code."""
    codes = np.array(["NA", "DE", "FR", "None"])[np.arange(400) % 4]
    frame, y = pa.table({"country": codes}), codes == "NA"
    estimator = GLMClassifier(missing=missing, epochs=5).fit(frame, y)
    assert estimator.model_.space.names == ("country=DE", "country=FR", "country=NA", "country=None")
    assert estimator.score(frame, y) == 1


def test_gaps_in_arrays():
    x, y = np.array([[1, np.nan], [2, 3], [3, 4], [np.nan, 0]] * 20), [0, 1, 1, 0] * 20
    estimator = GLMClassifier(missing="indicator", epochs=3).fit(x, y)
    assert estimator.coef_.shape == (1, 4)
    names = ["feature 1", "feature 1=missing", "feature 2", "feature 2=missing"]
    assert estimator.get_feature_names_out().tolist() == names
    assert (estimator.predict(x[:4]) == estimator.predict(np.array(x[:4], object))).all()
    with pytest.raises(ValueError, match=r"^Input X contains NaN: .* missing='mean' or 'indicator'$"):
        GLMClassifier().fit(x, y)
    with pytest.raises(ValueError, match="contains infinity"):
        estimator.predict([[1, np.inf]])
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        estimator.fit(x, None)


CODES = np.array(["01001", "94016", "60601", "10001"])[np.arange(200) % 4]

FRAMES = {  # a column of a table, and how many features it makes
    "texts": (lambda: pd.DataFrame({"k": CODES}), 4),
    "string": (lambda: pd.DataFrame({"k": pd.Series(CODES, dtype="string")}), 4),
    "category": (lambda: pd.DataFrame({"k": pd.Categorical(CODES)}), 4),
    "category of integers": (lambda: pd.DataFrame({"k": pd.Categorical(CODES.astype(int))}), 4),
    "category of ranges": (lambda: pd.DataFrame({"k": pd.cut(CODES.astype(int), 3)}), 3),
    "category of truths": (lambda: pd.DataFrame({"k": pd.Categorical(CODES > "1")}), 1),
    "arrow texts": (lambda: pa.table({"k": CODES}), 4),
    "arrow dictionary": (lambda: pa.table({"k": pa.array(CODES).dictionary_encode()}), 4),
    "arrow decimals": (lambda: pa.table({"k": pa.array(CODES).cast(pa.decimal128(10, 2))}), 1),
    "integers": (lambda: pd.DataFrame({"k": CODES.astype(int)}), 1),
    "nullable integers": (lambda: pd.DataFrame({"k": pd.array(CODES.astype(int), dtype="Int64")}), 1),
    "booleans": (lambda: pd.DataFrame({"k": CODES > "1"}), 1),
    "days": (lambda: pd.DataFrame({"k": pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(200) % 31, "D")}), 8),
    "polars texts": (lambda: pytest.importorskip("polars").DataFrame({"k": CODES}), 4),
    "polars Categorical": (lambda: polars_column("Categorical"), 4),
    "polars Enum": (lambda: polars_column("Enum", sorted(set(CODES))), 4),
}


def polars_column(kind, *arguments):
    polars = pytest.importorskip("polars")
    return polars.DataFrame({"k": CODES}).with_columns(polars.col("k").cast(getattr(polars, kind)(*arguments)))


@pytest.mark.parametrize("kind", FRAMES)
def test_types_tell_what_a_column_is_and_what_is_fitted_can_be_predicted(kind):
    make, features = FRAMES[kind]
    frame, y = make(), CODES > "2"
    estimator = GLMClassifier(epochs=3, dates="parts" if kind == "days" else "text").fit(frame, y)
    assert estimator.coef_.shape == (1, features)
    assert estimator.feature_names_in_.tolist() == ["k"]
    again = pickle.loads(pickle.dumps(estimator))
    assert (again.predict(frame) == estimator.predict(frame)).all()
    if features == 4:
        assert estimator.score(frame, y) == 1


def test_columns_of_a_table_that_hold_neither_numbers_nor_texts():
    for values in (pa.array([0, 1, 2], pa.time64("us")), pa.array([[1], [2], []]), pa.array([b"a", b"b", b"c"])):
        table = pa.table({"colour": ["red", "blue", "red"], "when": values})
        with pytest.raises(ValueError, match=r"X, column when: holds .*, neither numbers, texts nor dates: leave it "):
            GLMRegressor().fit(table, [1.0, 2.0, 3.0])
    for twice in ([["x", 1, "u"], ["y", 2, "v"]], [[0.5, 1, 2], [1.5, 2, 3]]):
        with pytest.raises(ValueError, match=r"^X: several columns are called a: give each a name of its own$"):
            GLMRegressor().fit(pd.DataFrame(twice, columns=["a", "b", "a"]), [1.0, 2.0])
    many = pa.table({"id": [f"no. {row}" for row in range(1001)]})
    with pytest.raises(ValueError, match=r"X: id has .* different texts, .*: leave it out$"):
        GLMRegressor().fit(many, np.arange(1001.0))


def test_what_is_given_in_a_wrong_form_is_named():
    X, y, texts = np.c_[np.arange(9.0)], [0, 1, 1] * 3, list("abcabcabc")
    frame = pd.DataFrame({"a": y, "t": texts})
    for samples in (frame.to_numpy(), frame.to_numpy(str), frame.to_numpy().tolist()):
        for missing in ("error", "mean"):
            with pytest.raises(ValueError, match=r"^X holds texts: give a DataFrame"):
                GLMRegressor(missing=missing).fit(samples, y)
    assert GLMRegressor(epochs=1).fit(pd.DataFrame(frame.to_numpy().tolist()), y).n_features_in_ == 2
    with pytest.raises(ValueError, match=r"^y holds texts: a regression needs numbers$"):
        GLMRegressor().fit(X, np.array(texts))
    for name in ("offset", "exposure", "sample_weight"):
        with pytest.raises(ValueError, match=f"^{name} holds texts: give a number for each sample$"):
            GLMRegressor(loss="poisson").fit(X, y, **{name: texts})
    part = pa.RecordBatch.from_pandas(frame)
    assert GLMClassifier(epochs=1).fit(part, y).feature_names_in_.tolist() == ["a", "t"]
    assert GLMClassifier(epochs=1).fit(part.select(["a"]), y).feature_names_in_.tolist() == ["a"]
    polars = pytest.importorskip("polars")
    with pytest.raises(ValueError, match=r"^X is a LazyFrame, .*: give what collect\(\) returns$"):
        GLMClassifier().fit(polars.LazyFrame({"a": y}), y)


def test_models_of_a_beginning_stream_do_not_warn_of_convergence_and_scaling():
    """They are made anew of more samples: what would make them converge is no advice for the stream."""
    X = np.random.default_rng(1).normal(size=(400, 3))
    X[:390, 1] = 7
    regressor = GLMRegressor(random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for row in range(20):
            regressor.partial_fit(X[row : row + 1], 1000 * X[row : row + 1, 0] + 5)
    assert caught
    assert not any(issubclass(each.category, ConvergenceWarning) or "constant" in str(each.message) for each in caught)
    with pytest.warns(UserWarning, match=r"1 of 3 features \(2\) are constant"):
        regressor.partial_fit(X[20:390], 1000 * X[20:390, 0] + 5)
    regressor.partial_fit(X[380:], 1000 * X[380:, 0] + 5)
    assert not any("constant" in text for text in regressor.remarks_), "those that made the scaling were"
