"""Training on the emulator: against the golden model, against the definition of every metric, and all its ends."""

import dataclasses
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import mean_tweedie_deviance
from support.bench import default_seed
from support.events import events
from support.failing_device import FailingDevice
from support.prepared import features_read, prepare_for, train_golden
from support.recording_device import RecordingDevice, RecordingWorker
from support.targets import targets

from p4sgd.host.data import Dataset
from p4sgd.host.data.sample_numbers import importances
from p4sgd.host.data.scaling import KINDS
from p4sgd.host.devices import open_device
from p4sgd.host.devices.session import Session
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.training import StopReason, TrainingOptions, train
from p4sgd.host.training.epoch_metrics import Near, fit_intercept, quantised_activations
from p4sgd.host.training.events import SILENT
from p4sgd.host.training.metrics import score
from p4sgd.host.training.model_file import Model, load_model, save_model
from p4sgd.host.training.options import declarations
from p4sgd.host.training.preparation import check_memory
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import WEIGHT

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=8, line_fifo_depth=64, slots=4)
SCHEDULES = declarations()["schedule"].choices


def dataset(task=Task.CLASSIFICATION, samples=100, features=20, signed=False, seed=1, name="made"):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, features)) if signed else rng.random((samples, features))
    x[:, 3] = 7.0  # constant
    z = x @ rng.normal(size=features) * 2 + rng.normal(size=samples) * 0.2
    z -= np.median(z)
    return Dataset(x, targets(task, z), name)


def run(data=None, workers=1, test=None, events=SILENT, device=None, config=CONFIG, **options):
    options = TrainingOptions(**{"epochs": 4, "workers": workers, **options})
    device = device or open_device("emulator", config, workers)
    data = data or dataset()
    return train(data, options, device, test=test, events=events)


# -- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "weighted"), [(1, False), (2, True)])
@pytest.mark.parametrize("name", LOSSES)
def test_weights_are_the_golden_model_s(name, workers, weighted):
    """All epochs again by the definition, from the images and the options, with changing rates and penalties."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = np.random.default_rng(seed)
    data = dataset(LOSSES[name].task, samples=int(rng.integers(40, 120)), signed=bool(rng.integers(2)), seed=seed)
    if weighted:
        own = rng.exponential(size=data.samples) * (rng.random(data.samples) < 0.8)
        data = dataclasses.replace(data, sample_weights=own).counted()
    options = TrainingOptions(
        loss=name,
        workers=workers,
        epochs=3,
        batch=8 * int(rng.integers(1, 4)),
        precision=int(rng.integers(1, 5)),
        planes=int(rng.integers(5, 9)),
        scaling=KINDS[rng.integers(len(KINDS))],
        schedule="invscaling",
        l2=1e-3,
        l1=1e-4,
        learning_rate=0.02,  # so that no loss diverges, which would lower it
        seed=int(rng.integers(1000)),
    )
    result = train(data, options, open_device("emulator", CONFIG, workers))
    prepared = prepare_for(data, options, CONFIG)
    q = features_read(prepared)
    order, weights = np.arange(-(-data.samples // options.batch) * options.batch), np.zeros(q.shape[1], np.int64)
    y, own = prepared.targets.coding.real(prepared.targets.labels), prepared.targets.weights
    if weighted:
        wanted = own * LOSSES[name].importance(y)
        importance = prepared.images[0].importances[: data.samples].tolist()
        assert importance == importances(wanted / wanted.max()).tolist()
        assert sorted(own) == pytest.approx(sorted(data.sample_weights / data.sample_weights.max()))
    for epoch, record in enumerate(result.history, 1):
        rate, weights = train_golden(prepared, options, 0.02 / epoch**0.5, order, weights)
        assert record.learning_rate == rate
        z = (q @ weights)[: data.samples] / 2.0 ** (WEIGHT.fraction + prepared.features.fraction)
        losses = LOSSES[name].value(z + fit_intercept(LOSSES[name], z, y, own), y)
        expected = np.average(losses, weights=own) if weighted else losses.mean()
        assert record.metrics["train_loss"] == (pytest.approx(expected) if weighted else expected), f"epoch {epoch}"
        if epoch == result.best_epoch:
            assert result.model.weights.tolist() == weights.tolist()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("scaling", "signed"), [("minmax", True), ("maxabs", True), ("maxabs", False)])
@pytest.mark.parametrize("stored", [1, 2, 4, 8])
def test_the_fold_is_exact_on_the_grid(stored, scaling, signed, bias):
    """Features that need no rounding: the model on raw features gives what the hardware's integers give."""
    rng = np.random.default_rng(3)
    two_sided = signed and scaling == "maxabs"
    top = max(1, (1 << stored - 1) - 1) if two_sided else (1 << stored) - 1
    grid = rng.integers(-top if two_sided else 0, (0 if stored == 1 else top) + 1 if two_sided else top + 1, (24, 11))
    grid[0], grid[1] = (-top if two_sided else 0), (-top if two_sided else top)
    slope, offset = rng.uniform(0.1, 9, 11), (rng.normal(size=11) * 5 if scaling == "minmax" else np.zeros(11))
    data = Dataset(grid * slope / top + offset, np.arange(24.0) % 2, "grid")
    options = TrainingOptions(precision=stored, scaling=scaling, bias=bias, workers=2)
    prepared = prepare_for(data, options, CONFIG)
    assert prepared.features.signed == two_sided
    weights = rng.integers(-(1 << 31), 1 << 31, 11 + bias)
    z = quantised_activations(prepared.images, prepared.split(weights), prepared.features, 24)
    model = prepared.fold(weights, LOSSES["logistic"])
    assert model.decision_function(prepared.train) == pytest.approx(z, rel=1e-9, abs=1e-6)


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_epsilon_is_in_the_unit_of_the_target():
    """And what is shown is in that of the scaled target."""
    data = dataset(Task.REGRESSION)
    scale = data.labels.std()
    for options, unit, value in (
        ({"loss": "huber", "epsilon": 2.0}, scale**2, lambda error: np.where(error < 2, error**2 / 2, 2 * error - 2)),
        ({"loss": "epsilon_insensitive", "epsilon": 0.5}, scale, lambda error: np.maximum(0, error - 0.5)),
    ):
        result = run(data, **options)
        error = np.abs(result.model.predict(data) - data.labels)
        assert result.metrics["train_loss"] == pytest.approx(value(error).mean() / unit, rel=0.01)


@pytest.mark.parametrize("precision", [1, 8])
@pytest.mark.parametrize(("scaling", "width"), [("standard", np.std), ("minmax", np.ptp), ("none", None)])
def test_objective_has_the_penalties(scaling, width, precision):
    """On coefficients of features with a deviation of 1, scaled to [0, 1], or raw."""
    options = {"epochs": 2, "learning_rate": 0.1, "precision": precision, "scaling": scaling}
    result = run(l2=0.05, l1=0.001, **options)
    assert result.monitored == "objective"
    assert result.model.weights.size == 21
    # The intercept is fitted without a penalty, so the bias has none.
    scale = 1.0 if width is None else width(dataset().features, axis=0)
    w = result.model.coefficients * scale
    penalty = 0.025 * (w**2).sum() + 0.001 * np.abs(w).sum()
    for metrics in (result.metrics, result.best.metrics):
        assert metrics["objective"] == pytest.approx(metrics["train_loss"] + penalty)
    if scaling != "none" or precision > 1:  # else training sees no feature but the constant one
        assert (w**2).sum() < ((run(l2=0.0, **options).model.coefficients * scale) ** 2).sum()


def test_the_penalty_on_texts_is_that_on_raw_features_however_many_numbers_there_are(tmp_path):
    rng = np.random.default_rng(7)
    x = rng.exponential(1000, (400, 101))
    x[24:, 1:51] = 0
    x[:, 51:] = rng.random((400, 50)) < 0.015
    result = run(Dataset(scipy.sparse.csr_array(x), (x[:, 0] > 700) * 1.0, "made"), epochs=2, l2=0.05)
    model = result.model
    assert (model.scaling.kind, np.unique(model.scaling.scale[51:]).tolist()) == ("none", [model.scaling.common])
    w = model.coefficients * model.scaling.common / model.scaling.scale
    assert result.metrics["objective"] == pytest.approx(result.metrics["train_loss"] + 0.025 * (w**2).sum())
    save_model(model, tmp_path / "made.model")
    assert load_model(tmp_path / "made.model").scaling.common == model.scaling.common


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("sparse", "scale"), [(False, lambda x: x.std(axis=0)), (True, lambda x: 1.0)])
def test_the_default_penalty_of_classes_is_that_of_scikit_learn(sparse, scale, weighted):
    """C = 1, after its StandardScaler where features are centred; samples of weight 0 do not count."""
    rng = np.random.default_rng(6)
    x = rng.integers(0, 3, (300, 60)) * (rng.random((300, 60)) < (0.04 if sparse else 1.0)) / 2.0
    y = (x @ rng.normal(size=60) * 3 + rng.logistic(size=300) > 0) * 1.0
    weights = (rng.random(300) < 0.6) * 1.0 if weighted else None
    data = Dataset(scipy.sparse.csr_array(x) if sparse else x, y, "wide", sample_weights=weights)
    result, counted = run(data, epochs=30), np.ones(300, bool) if weights is None else weights > 0
    assert (result.monitored, result.summary["scaling"]) == ("objective", "none" if sparse else "standard")
    features, signs = (x / scale(x))[counted], 2 * y[counted] - 1
    peer = LogisticRegression(tol=1e-6, max_iter=1000).fit(features, signs)
    least = np.logaddexp(0, -signs * peer.decision_function(features)).mean() + (peer.coef_**2).sum() / 2 / signs.size
    assert least < result.metrics["objective"] < 1.02 * least
    told = run(data, epochs=30, l2=result.summary["l2"])
    assert told.model.weights.tolist() == result.model.weights.tolist()


@pytest.mark.parametrize(("loss", "power"), [("poisson", 1), ("gamma", 2), ("tweedie", 1.5)])
def test_the_default_penalty_of_losses_with_a_logarithm_is_the_deviance_and_helps(loss, power):
    """A quotient, so it has no unit; of 300 texts most have a few samples."""
    rng = np.random.default_rng(7)
    texts = rng.integers(0, 300, 2400)
    mean = np.exp(rng.normal(size=300) / 2)[texts]
    y = rng.poisson(mean) * 1.0 if power < 2 else rng.gamma(1, mean)
    x, trained = scipy.sparse.csr_array(np.eye(300)[texts]), slice(1200)
    penalised, other_unit, free = (
        run(
            Dataset(x[trained], unit * y[trained], "texts"), loss=loss, epochs=30, config=WorkerConfig.u280(), **options
        )
        for unit, options in ((1.0, {}), (1000.0, {}), (1.0, {"l2": 0.0}))
    )
    scaled = y[trained] / y[trained].mean()
    assert penalised.summary["l2"] == pytest.approx(mean_tweedie_deviance(scaled, np.ones(1200), power=power) / 1200)
    assert other_unit.summary["l2"] == pytest.approx(penalised.summary["l2"])
    deviances = [score(each.model, Dataset(x[1200:], y[1200:], "d"))["deviance"] for each in (penalised, free)]
    assert deviances[0] < 0.99 * deviances[1]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("options", [{}, {"precondition": "block"}, {"precision": 2}])
def test_a_wild_value_does_not_move_the_intercept(options, sparse):
    """One that is clamped counts as training saw it, however far outside it is."""
    if sparse and "precondition" in options:
        pytest.skip("sparse data are not whitened")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)) * (rng.random((400, 6)) < (0.5 if sparse else 1.0))
    y = 5 + x @ rng.normal(size=6) + rng.normal(size=400) / 4
    models = []
    for value in (50.0, 1e6):
        x[70, 1] = value
        features = scipy.sparse.csr_array(x) if sparse else x
        result = run(Dataset(features, y, "wild"), loss="squared", scaling="robust", epochs=10, **options)
        models.append(result.model)
    assert result.model.intercept == pytest.approx(models[0].intercept, abs=1e-3)
    calm = Dataset(np.delete(x, 70, 0), np.delete(y, 70), "calm")
    assert score(result.model, calm)["r2"] > (0.5 if "precision" in options else 0.9)


@pytest.mark.parametrize("precision", [2, 8])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["squared", "logistic", "poisson"])
def test_predictions_add_up_to_the_targets(name, weighted, precision):
    """Of the canonical links, also where training rounds and clamps features and limits exponents."""
    rng = np.random.default_rng(4)
    x = rng.exponential(size=(600, 4)) * [1.0, 10.0, 0.1, 1e3]
    z = x @ [0.6, 0.03, -1.0, 0.0] + rng.normal(size=600) / 2
    y = {"squared": z + 1, "logistic": (z > np.median(z)) * 1.0, "poisson": rng.poisson(np.exp(z)) * 1.0}[name]
    weights = rng.integers(0, 4, 600) * 1.0 if weighted else None
    for scaling in ("standard", "minmax"):
        data = Dataset(x, y, "skewed", sample_weights=weights)
        model = run(data, loss=name, scaling=scaling, precision=precision).model
        z = model.decision_function(data)
        predicted = model.probabilities(z)[:, 1] if name == "logistic" else model.predict(data)
        sums = (np.average(each, weights=weights) for each in (predicted, y))
        assert next(sums) == pytest.approx(next(sums), rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-290, 1e290])
@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_any_size_train(kind, size, sparse):
    """What is the same but for a power of two trains the same."""
    x = dataset(signed=True).features * (np.random.default_rng(0).random((100, 20)) < (0.2 if sparse else 1.0))
    if sparse and kind in ("standard", "robust"):
        pytest.skip("sparse data are not centred")
    results = []
    for factor in (1.0, 2.0 ** np.round(np.log2(size))):
        features = scipy.sparse.csr_array(x * factor) if sparse else x * factor
        # The penalty on coefficients of raw features is another if their unit is.
        unpenalised = {"l2": 0.0} if kind == "none" else {}
        results.append(run(Dataset(features, dataset().labels, "scaled"), scaling=kind, epochs=2, **unpenalised))
    assert results[0].model.weights.tolist() == results[1].model.weights.tolist()


@given(st.sampled_from(sorted(LOSSES)), st.integers(1, 40), st.integers(0, 1 << 30), *[st.booleans()] * 3)
def test_the_intercept_is_where_the_derivative_changes_its_sign(name, samples, seed, coarse, alike, weighted):
    """Between two places 2^-16 apart, within ±1024."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=samples) * 10.0 ** rng.integers(-3, 3) + rng.normal() * 10.0 ** rng.integers(-2, 3)
    z = np.round(z * 4) / 4 if coarse else z
    y = np.ones(samples) if alike else np.sign(rng.normal(size=samples))
    y = np.maximum(y, 0) if LOSSES[name].task is Task.NON_NEGATIVE else y
    weights = rng.exponential(size=samples) if weighted else np.ones(samples)
    given = LOSSES[name], z, y, weights if weighted else None
    c, step = fit_intercept(*given), 2.0**-16
    near = Near(int(rng.integers(-1 << 25, 1 << 25)), 10.0 ** rng.integers(-20, 20))
    assert fit_intercept(*given, near=near) == fit_intercept(*given, near=near) == c, "wherever the search begins"

    def slope(c):
        return np.average(LOSSES[name].residual(z + c, y), weights=weights)

    assert slope(c - step) <= 0 or c < -1023.9
    assert slope(c + step) >= 0 or c > 1023.9
    # The middle of equally good ones, which prefers neither class.
    assert fit_intercept(LOSSES["hinge"], np.array([-7.0, 3.0]), np.array([-1.0, 1.0])) == pytest.approx(2.0, abs=1e-4)


@pytest.mark.parametrize("far", [50.0, 290.0])
def test_an_intercept_that_is_far_off_takes_few_trials(far):
    """Where the derivative rises as e^z, secants from its steep part go on in steps of 1."""
    trials = []
    loss = SimpleNamespace(residual=None, derivative=lambda z, y: trials.append(z) or np.exp(z) - y)
    assert fit_intercept(loss, np.array([far]), np.ones(1), limited=False) == pytest.approx(-far)
    assert len(trials) < 64


@pytest.mark.parametrize("scaling", ["minmax", "maxabs"])
@pytest.mark.parametrize(("precision", "planes"), [(1, 1), (2, 2), (2, 8)])
def test_without_a_bias_quantisation_shifts_no_activation(precision, planes, scaling):
    """The model is on average where the hardware was; but for that its intercept is what the scaling gives."""
    data, options = dataset(), {"precision": precision, "planes": planes, "scaling": scaling, "bias": False}
    result = run(data, epochs=20, l2=0.0, **options)
    assert result.model.weights.size == 20
    prepared = prepare_for(data, TrainingOptions(**options), CONFIG)
    weights = result.model.weights.astype(np.int64)
    seen = quantised_activations(prepared.images, prepared.split(weights), prepared.features, data.samples)
    assert result.model.decision_function(data).mean() == pytest.approx(seen.mean())
    assert result.metrics["train_accuracy"] > result.best.metrics["train_accuracy"] - 0.03


def test_sorted_samples_are_shuffled():
    data = dataset()
    order = np.argsort(data.labels, kind="stable")
    prepared = prepare_for(data.take(order), TrainingOptions(batch=8), CONFIG)
    per_batch = prepared.images[0].labels.reshape(-1, 8)[:12]
    assert ((per_batch > 0).any(axis=1) & (per_batch < 0).any(axis=1)).sum() >= 9


def test_the_result_is_plain_data():
    result = run(Dataset(np.random.default_rng(0).random((16, 2)), np.full(16, 3.0), "flat"), loss="squared")
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["epochs"][0]["train_r2"] is None, "R² of equal targets is no number"
    assert document["options"] == TrainingOptions(epochs=4, loss="squared").to_json()
    assert document["learning_rate"] == result.history[0].learning_rate
    json.dumps(result.model.training, allow_nan=False)


# -- how training ends -----------------------------------------------------------------------------------------------


def test_patience_keeps_the_best():
    options = {"learning_rate": 15.0, "batch": 8, "precision": 2, "validation_fraction": 0.3, "schedule": "constant"}
    result = run(epochs=60, patience=3, **options)
    assert result.stopped is StopReason.PATIENCE
    scores = [record.metrics["validation_loss"] for record in result.history]
    assert result.best_epoch == int(np.argmin(scores)) + 1
    assert min(scores[-3:]) >= min(scores[:-3]) * (1 - TrainingOptions().tolerance)
    again = run(epochs=result.best_epoch, **options)
    assert again.model.weights.tolist() == result.model.weights.tolist()


def test_adaptive_goes_back_to_the_best_weights_with_another_rate():
    """With so large a tolerance no epoch but the first makes progress here: the rate changes after each. What a penalty
    loses is told at the first rate only."""
    options = {"batch": 8, "precision": 2, "tolerance": 0.99, "l2": 1e-7}
    result = run(epochs=9, learning_rate=6.0, **options)
    rates = [record.learning_rate for record in result.history]
    losses = [record.metrics["objective"] for record in result.history]
    assert rates[0] == rates[1]
    assert result.stopped is StopReason.CONVERGED
    for epoch in range(2, len(rates)):
        better = int(np.argmin(losses[:epoch])) == epoch - 1
        factor = (5 if epoch == 3 else 1) if better and epoch > 2 else 1 / 5
        assert rates[epoch] / rates[epoch - 1] == pytest.approx(factor, rel=0.01)
    assert rates[3] == rates[1], "one of them was better"
    best = int(np.argmin(losses[:2])) + 1
    rest = run(epochs=best, learning_rate=rates[0], schedule="constant", **options | {"tolerance": 2e-3})
    assert [record.metrics for record in rest.history] == [record.metrics for record in result.history[:best]]
    assert len([remark for remark in result.remarks if remark.startswith("l2 ")]) == 1


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        # Every loss with one schedule, and every schedule with three losses or more.
        (name, SCHEDULES[-number % len(SCHEDULES)])
        for number, name in enumerate(LOSSES)
    ],
)
def test_a_rate_100_times_too_large_ends_with_a_good_model_and_one_remark(name, schedule):
    data, options = dataset(LOSSES[name].task, samples=300), {"loss": name, "epochs": 40, "schedule": schedule}
    if LOSSES[name].task is Task.CLASSIFICATION:
        wrong = np.random.default_rng(2).random(300) < 0.2
        data = Dataset(data.features, np.where(wrong, 1 - data.labels, data.labels), "noisy")
    good = run(data, **options)
    wild = run(data, **options, learning_rate=100 * good.history[0].learning_rate)
    assert wild.best.metrics["train_loss"] <= 1.1 * good.best.metrics["train_loss"] + 0.01
    (remark,) = [remark for remark in wild.remarks if not re.search("converged|are constant", remark)]
    assert re.search("learning rate .* too large.* diverged in epoch", remark)
    assert f"{wild.best.learning_rate:.3g}" in remark or schedule != "constant"


@pytest.mark.parametrize("schedule", ["constant", "adaptive"])
def test_an_epoch_that_diverged_is_undone(schedule):
    """What follows is what a run with the lower rate would have been."""
    options = {"loss": "squared", "schedule": schedule, "patience": 2}
    wild = run(dataset(Task.REGRESSION), epochs=16, learning_rate=1500.0, **options)
    undone = [record.epoch for record in wild.history if record.metrics["train_loss"] > 1]  # 0.5 for a constant model
    assert undone == [1]
    tame = run(dataset(Task.REGRESSION), epochs=15, learning_rate=wild.history[1].learning_rate, **options)
    assert [record.metrics for record in wild.history[1:]] == [record.metrics for record in tame.history]
    assert wild.model.weights.tolist() == tame.model.weights.tolist()


def test_too_few_epochs_are_told():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    separable = Dataset(x + np.sign(x), (x[:, 0] > 0) * 1.0, "separable")
    noise = Dataset(rng.normal(size=(400, 3)), rng.integers(0, 2, 400).astype(float), "noise")
    for data, options, says in (
        (None, {"epochs": 6, "learning_rate": 0.2}, "objective still falls; about N more epochs"),
        (separable, {"epochs": 20, "l2": 0.0}, "train loss still falls; if the classes are separable"),
        (separable, {"epochs": 6, "learning_rate": 0.2, "l2": 1e-4}, "objective still falls; about N more epochs"),
    ):
        result = run(data, **options)
        assert ("N" in says) == (result.more_epochs is not None)
        assert says.replace("N", str(result.more_epochs)) in result.remarks[-1]
    done = run(noise, epochs=30)
    assert (done.more_epochs, done.remarks) == (None, ())


@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_training_ends_when_hardly_anything_is_gained(name):
    data = dataset(LOSSES[name].task, samples=2000, features=5, signed=True)
    ended, whole = run(data, loss=name, epochs=40), run(data, loss=name, epochs=40, patience=40)
    assert (ended.stopped, whole.stopped) == (StopReason.CONVERGED, StopReason.EPOCHS)
    assert len(ended.history) < 20
    assert ended.metrics["train_loss"] < 1.002 * whole.metrics["train_loss"]
    assert all("are constant" in remark for remark in ended.remarks)


def test_overfitting_is_told_and_a_stronger_penalty_helps():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(900, 100))
        y = (x[:, :5].sum(axis=1) + 2 * rng.logistic(size=900) > 0) * 1.0
        data, test = Dataset(x[:150], y[:150], "few"), Dataset(x[150:], y[150:], "others")
        result = run(data, test=test, epochs=20, l2=0.0, config=WorkerConfig.u280())
        told = re.search(r"the test loss was least .* learns .* by heart: try --l2 (\S+)$", result.remarks[-1])
        assert not any("more epoch" in remark for remark in result.remarks)
        better = run(data, test=test, epochs=20, l2=float(told[1]), config=WorkerConfig.u280())
        assert better.metrics["test_loss"] < result.metrics["test_loss"]


@pytest.mark.parametrize(
    ("options", "advised", "texts"),
    [
        ({"scaling": "robust"}, {"scaling": "auto"}, 0),
        ({"precision": 3}, {"precision": 8}, 0),
        ({"precision": 3}, {"precision": 8}, 80),
    ],
)
def test_a_loss_that_parts_from_that_in_training_is_told_with_a_remedy_that_helps(options, advised, texts):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = np.exp(rng.normal(size=(2000, 3)) * [0.1, 1.6, 0.1])
        y = rng.poisson(x[:, 1] ** 0.5) * 1.0
        words = np.eye(texts)[rng.integers(0, texts, 2000)] if texts else np.empty((2000, 0))

        def fit(numbers, words=words, y=y, **options):
            data = scipy.sparse.csr_array(np.c_[numbers, words]) if texts else numbers
            return run(Dataset(data, y, "skewed"), loss="poisson", epochs=10, **options)

        result = fit(x, **options)
        assert result.model.scaling.filled.tolist() == [0, 1, 2] * bool(texts)
        told = [remark for remark in result.remarks if "most of all feature 2: " in remark]
        assert re.search(f"{'scaling auto' if 'scaling' in advised else 'more planes'}", told[0])
        for each in (fit(np.log(x), **options), fit(x, **options | advised)):
            assert each.metrics["train_loss"] < result.metrics["train_loss"]
            assert not any("above that in training" in remark for remark in each.remarks)


@pytest.mark.parametrize("loss", ["gamma", "tweedie"])
def test_sums_of_predictions_far_from_those_of_targets_are_told_with_a_remedy_that_helps(loss):
    rng = np.random.default_rng(1)
    logarithms = rng.normal(size=(2000, 2)) * [0.1, 1.2]
    y = np.exp(logarithms[:, 1]) * rng.gamma(5, 0.2, 2000)
    for x, apart in ((np.exp(logarithms), True), (logarithms, False)):
        result = run(Dataset(x, y, "skewed"), loss=loss, epochs=10, config=WorkerConfig.u280())
        z, labels = result.activations["train"]
        sums = result.model.labels.predictions(z).sum() / labels.sum()
        assert any(f"add up to {sums:.3g} times their targets" in remark for remark in result.remarks) == apart
        assert (sums > 1.25) == apart


def test_whitened_features_that_are_clamped_are_told_with_a_remedy_that_helps():
    rng = np.random.default_rng(2)
    one = 3 * rng.normal(size=2000)
    apart = rng.normal(size=2000) * np.where(rng.random(2000) < 0.003, 60, 1)
    data = Dataset(np.stack([one, one + 0.1 * apart], axis=1), apart + rng.normal(size=2000), "alike")
    clamped, better = (
        run(data, loss="squared", epochs=10, precondition=kind, config=WorkerConfig.u280())
        for kind in ("block", "none")
    )
    told = "whitened features are rounded and clamped: leave --precondition out"
    assert any(remark.endswith(told) for remark in clamped.remarks)
    assert not any(remark.endswith(told) for remark in better.remarks)
    assert better.metrics["train_loss"] < clamped.metrics["train_loss"]


def test_of_a_bounded_loss_auto_is_not_advised_but_the_logarithm_which_helps():
    x, y = load_breast_cancer(return_X_y=True)
    logarithms = (x - x.mean(axis=0)) / x.std(axis=0)
    data, better = (Dataset(each, y * 1.0, "skewed") for each in (np.exp(logarithms), logarithms))
    one = run(data, epochs=20, scaling="robust", config=WorkerConfig.u280())
    other = run(better, epochs=20, config=WorkerConfig.u280())
    [told] = [remark for remark in one.remarks if "above that in training" in remark]
    assert re.search(r"most of all (feature \d+(, )?)+: try their logarithm$", told)
    assert other.metrics["train_loss"] < one.metrics["train_loss"]
    assert not any("above that in training" in remark for remark in other.remarks)


def test_ctrl_c_keeps_what_there_is(monkeypatch):
    """After an epoch, within one, or while the best model is measured; there is nothing before the first epoch."""

    def stop(record):
        if record.epoch == 3:
            raise KeyboardInterrupt

    for epochs, how in (
        (3, {"events": events(epoch=stop)}),
        (2, {"device": FailingDevice(CONFIG, 1, 3, KeyboardInterrupt())}),
    ):
        result = run(**how)
        assert (result.stopped, len(result.history)) == (StopReason.INTERRUPTED, epochs)
        assert result.model.weights.tolist() == run(epochs=result.best_epoch).model.weights.tolist()
    with pytest.raises(KeyboardInterrupt):
        run(device=FailingDevice(CONFIG, 1, 1, KeyboardInterrupt()))
    measure, interrupts = Model.products, iter([KeyboardInterrupt()])

    def interrupt(self, data):
        for error in interrupts:
            raise error
        return measure(self, data)

    whole = run(epochs=2)
    monkeypatch.setattr(Model, "products", interrupt)
    result = run(epochs=2)
    assert (result.stopped, result.metrics) == (StopReason.INTERRUPTED, whole.metrics)


# -- what the user is told -------------------------------------------------------------------------------------------


def test_remarks_are_told_once_when_they_come_up():
    heard = []
    result = run(events=events(remark=heard.append), learning_rate=15.0, batch=8, precision=1, l2=1e-9)
    assert heard == list(dict.fromkeys(result.remarks))
    assert any(remark.startswith("l2 has no effect") for remark in heard)
    x = np.random.default_rng(2).random((64, 4))
    separable = Dataset(x, (x[:, 0] > 0.5) * 1.0, "separable")
    options = {"loss": "hinge", "batch": 8, "epochs": 3, "scaling": "minmax", "l2": 0.0}
    result = run(separable, learning_rate=300.0, **options)
    assert all("weight_saturated" in record.flags for record in result.history)
    assert sum("weights were saturated" in remark for remark in result.remarks) == 1
    diverged = run(separable, learning_rate=1000.0, **options)
    assert "weight_saturated" in diverged.history[0].flags
    assert not any("saturated" in remark for remark in diverged.remarks), "there is a remark about the divergence"


@pytest.mark.parametrize(
    ("pattern", "told", "signed", "options"),
    [
        # 100 samples need a batch of 104 if one is to take them all.
        ("a batch of 104 .*all samples", False, False, {"batch": 104}),
        ("a batch of 104 .*all samples", True, False, {"batch": 112}),
        ("positive features .*0.*scaling minmax", True, True, {"scaling": "maxabs", "precision": 1}),
        ("positive features", False, False, {"scaling": "maxabs", "precision": 1}),
        ("positive features", False, True, {"scaling": "maxabs", "precision": 2}),
        ("positive features .*0.*single plane", True, False, {"scaling": "standard", "precision": 1, "planes": 2}),
        ("positive features", False, False, {"scaling": "standard", "precision": 1, "planes": 1}),
        ("levels are 2.5 deviations apart", True, False, {"precision": 2, "planes": 8}),
        ("apart", False, False, {"precision": 4, "planes": 8}),
        ("apart", False, False, {"precision": 2, "planes": 2}),
        ("l2 acts on the weights of whitened features", True, False, {"precondition": "block", "l2": 0.001}),
        ("learning rate is 7.45e-09 instead of 1e-08: .* near the smallest", True, False, {"learning_rate": 1e-8}),
        ("near the smallest", False, False, {"learning_rate": 1e-6}),
    ],
)
def test_options_that_do_not_suit_each_other_are_told(pattern, told, signed, options):
    remarks = run(dataset(signed=signed), epochs=1, **options).remarks
    assert any(re.search(pattern, remark) for remark in remarks) == told


def test_data_options_and_devices_that_do_not_suit():
    tiny = Dataset(dataset().features * 1e-200, dataset().labels, "tiny")
    for options, message in (
        ({"data": dataset(features=100), "config": dataclasses.replace(CONFIG, line_fifo_depth=32)}, "FIFO"),
        ({"l2": 10.0, "learning_rate": 1.0}, "must be below 2\\^-6"),
        ({"alpha": 1e9}, r"^alpha 1e\+09 is too large for these data: choose at most "),
        ({"l1": 1e15}, r"^l1 1e\+15 is too large .* at most"),
        ({"data": tiny, "scaling": "none", "l2": 1e-3}, "too small for a penalty of raw coefficients: leave l2 out"),
        ({"config": dataclasses.replace(CONFIG, table_segments=128)}, "128 segments, training needs 256"),
        ({"test": dataset(Task.REGRESSION, name="t")}, "t: the label .* is neither 0 nor 1"),
    ):
        with pytest.raises(UserError, match=message):
            run(**options)
    with pytest.raises(UserError) as refused:
        run(l2=1e15)
    run(epochs=1, l2=0.9 * float(str(refused.value).split()[-1]))
    with pytest.raises(P4sgdError, match=r"options .*1 workers, the device has 2"):
        run(workers=1, device=open_device("emulator", CONFIG, 2))


@pytest.mark.parametrize("held_out", [0.0, 0.3])
@pytest.mark.parametrize("workers", [1, 2])
def test_memory_is_checked_to_the_byte(workers, held_out, monkeypatch):
    """What an upload and the weights take is what the check asks for."""
    ends = []
    monkeypatch.setattr(RecordingWorker, "write_memory", lambda _, bank, at, data: ends.append(at + data.size))
    data = dataset(samples=500)
    options = TrainingOptions(workers=workers, validation_fraction=held_out, precision=3, batch=24)
    prepared = prepare_for(data, options, CONFIG)
    session = Session(RecordingDevice(CONFIG, workers))
    session.upload(prepared.images)
    session.write_weights(prepared.split(np.zeros(data.feature_count + 1, np.int32)))
    needed = max(ends)
    check_memory(data, options, prepared.shards, needed)
    with pytest.raises(UserError, match=f"made .*{needed:,} bytes .*memory.*{needed - 1:,}: "):
        check_memory(data, options, prepared.shards, needed - 1)
