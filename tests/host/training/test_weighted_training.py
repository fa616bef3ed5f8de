"""Weights of samples and classes: against the golden model, scikit-learn's metrics, and each other."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
from sklearn import metrics
from sklearn.utils.class_weight import compute_sample_weight
from support.ranks import run_ranks
from support.targets import targets

from p4sgd.host.data import Dataset
from p4sgd.host.data.dataset import join_shares
from p4sgd.host.data.identity import identify
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.data.sample_weights import importances
from p4sgd.host.devices import open_device
from p4sgd.host.distributed import share_of
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.training import CheckpointFile, TrainingOptions, load_checkpoint, train
from p4sgd.host.training.class_weights import check_class_weight, class_weights_of, rounding_remark, weigh
from p4sgd.host.training.dealing.shares import deal_units
from p4sgd.host.training.evaluation import score
from p4sgd.host.training.metrics import measure
from p4sgd.host.training.preparation import prepare
from p4sgd.host.training.prepared import Placement
from p4sgd.host.training.rate import choose_penalties, choose_rate, run_settings
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import IMPORTANCE
from p4sgd.sim import golden
from p4sgd.sim.emulator import EmulatedDevice, RemoteWorkers
from p4sgd.sim.sparse.data_parallel import SampleRanks

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=8, line_fifo_depth=64, slots=4)
LISTING = dataclasses.replace(CONFIG, engines=3, sparse=True)


def dataset(task=Task.CLASSIFICATION, samples=101, features=20, seed=1, weighted=True, sparse=False):
    rng = np.random.default_rng(seed)
    x = rng.random((samples, features))
    if sparse:
        x[rng.random(x.shape) < 0.8] = 0
    z = x @ rng.normal(size=features) * 2
    weights = rng.exponential(size=samples)
    weights[::7] = 0
    y = targets(task, z - np.median(z))
    return Dataset(scipy.sparse.csr_array(x) if sparse else x, y, "made", sample_weights=weights if weighted else None)


def run(data, config=CONFIG, **options):
    options = TrainingOptions(**{"epochs": 4, **options})
    return train(data, options, open_device("emulator", config, options.workers))


def same(one, two):
    """Whether two results are the same, bit for bit."""
    assert [record.metrics for record in one.history] == [record.metrics for record in two.history]
    assert one.metrics == two.metrics
    return one.model.weights.tobytes() == two.model.weights.tobytes() and one.model.intercept == two.model.intercept


@pytest.mark.parametrize("name", LOSSES)
def test_weights_are_the_golden_model_s(name):
    data = dataset(LOSSES[name].task)
    options = TrainingOptions(loss=name, epochs=1, batch=24, learning_rate=0.3, l2=1e-3)
    result = train(data, options, open_device("emulator", CONFIG, 1))
    prepared = prepare(data, options, Placement(deal_units(data.feature_count, options, [CONFIG])))
    (image,), form = prepared.images, prepared.features
    wanted = prepared.targets.weights * LOSSES[name].importance(prepared.targets.coding.real(prepared.targets.labels))
    assert image.importances[: data.samples].tolist() == importances(wanted / wanted.max()).tolist()
    assert sorted(prepared.targets.weights) == pytest.approx(sorted(data.sample_weights / data.sample_weights.max()))
    rate = choose_rate(0.3, options.batch * float(image.importances[: data.samples].mean() / 65536), form)
    penalties = choose_penalties(rate.actual, 1e-3 * prepared.penalty_unit**2, 0)
    settings = run_settings(
        options, form, rate, penalties, chunks=1, mini_batches=5, workers=1, unit=prepared.unit, weighted=True
    )
    lines = image.layout.unpack_lines(np.stack(image.port_lines), form.precision, form.signed)
    q = image.layout.unpad(lines)
    zeros, table = [np.zeros(q.shape[1], np.int64)], LOSSES[name].table()
    labels, weighing = image.labels.astype(np.int64), image.importances.astype(np.int64)
    exempt = 0, data.feature_count
    (weights,) = golden.train([q], labels, zeros, table, settings, weighing, exempt=exempt).weights
    assert result.model.weights.tolist() == weights.tolist()
    assert result.history[0].learning_rate == rate.actual == pytest.approx(0.3, rel=0.01)


@pytest.mark.parametrize("more", [{}, {"validation_fraction": 0.2}, {"loss": "squared"}, {"loss": "gamma", "l1": 1e-3}])
def test_equal_weights_are_as_good_as_none(more):
    task = LOSSES[more.get("loss", "logistic")].task
    none = dataset(task, weighted=False)
    equal = dataclasses.replace(none, sample_weights=np.full(none.samples, 0.3))
    assert same(run(none, **more), run(equal, **more))


@pytest.mark.parametrize("chosen", ["balanced", {"0": 3, "1": 0.5}, "1=0.25"])
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_classes_are_weights_of_their_samples(chosen, weighted):
    data = dataset(weighted=weighted)
    own = np.ones(data.samples) if data.sample_weights is None else data.sample_weights
    if chosen == "balanced":  # scikit-learn's counts samples without their weights
        totals = [own[data.labels == label].sum() for label in (0, 1)]
        by_class = own.sum() / 2 / np.array(totals)
        if not weighted:
            assert by_class[data.labels.astype(int)] == pytest.approx(compute_sample_weight("balanced", data.labels))
    else:
        by_class = np.array([3, 0.5]) if isinstance(chosen, dict) else np.array([1, 0.25])
    spelt = dataclasses.replace(data, sample_weights=own * by_class[data.labels.astype(int)])
    one, two = run(data, class_weight=chosen), run(spelt)
    assert one.model.weights.tolist() == two.model.weights.tolist()
    assert one.metrics["train_loss"] == pytest.approx(two.metrics["train_loss"])


def test_samples_of_one_class_that_count():
    data = dataset()
    with pytest.raises(UserError, match="all samples but those of one class have the weight 0"):
        run(dataclasses.replace(data, sample_weights=data.labels))
    alone = "made: --class-weight is 0 for all samples but those of one class: a classifier needs two"
    with pytest.raises(UserError, match=alone):
        run(data, class_weight="0=0")
    three = Dataset(data.features, np.arange(data.samples) % 3, "made")
    for positive in (None, "1"):
        with pytest.raises(UserError, match=alone):
            run(three, class_weight="0=0,2=0", positive=positive)
    with pytest.raises(UserError, match=alone):
        run(three, class_weight="1=0", positive="1")
    assert run(three, class_weight="2=0", positive="1").model.labels.positive == 1
    assert len(run(three, class_weight="1=0").model.rows) == 3


def test_classes_of_the_model_that_training_starts_from_may_have_weights():
    """Also those that no sample has, of other texts."""
    samples = Dataset(np.eye(4), [0, 1, 0, 1], "d", ("a", "c"))
    check_class_weight({"b": 2.0}, samples, LabelCoding(Task.CLASSIFICATION, (0, 1, 2), names=("a", "b", "c")))
    with pytest.raises(UserError, match="--class-weight names the label e, which no sample has; there are a, c, b"):
        check_class_weight({"e": 2.0}, samples, LabelCoding(Task.CLASSIFICATION, (0, 1, 2), names=("a", "b", "c")))
    (weights,) = weigh([samples], LabelCoding(Task.CLASSIFICATION, (0, 1), names=("a", "c")), {"b": 2.0, "c": 0.5})
    assert weights.tolist() == [1, 0.5, 1, 0.5]


def test_weights_of_classes_of_one_against_the_rest():
    """By the labels of the data; balanced are the two classes that are trained."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(90, 4)), np.arange(90) % 3.0
    data = Dataset(x, y, "made")
    one = run(data, positive="2", class_weight={2: 4, 0: 2})
    two = run(dataclasses.replace(data, sample_weights=np.array([2, 1, 4])[y.astype(int)]), positive="2")
    assert one.model.weights.tolist() == two.model.weights.tolist()
    balanced = run(data, positive="2", class_weight="balanced")
    spelt = run(dataclasses.replace(data, sample_weights=np.array([0.75, 0.75, 1.5])[y.astype(int)]), positive="2")
    assert balanced.model.weights.tolist() == spelt.model.weights.tolist()


@pytest.mark.parametrize(
    ("sparse", "more"),
    [
        (False, {}),
        (True, {"validation_fraction": 0.3, "class_weight": "balanced"}),
        (True, {"loss": "squared"}),
        pytest.param(True, {}, marks=pytest.mark.slow),
        pytest.param(False, {"validation_fraction": 0.3, "class_weight": "balanced"}, marks=pytest.mark.slow),
        pytest.param(False, {"loss": "squared"}, marks=pytest.mark.slow),
    ],
)
def test_neither_workers_nor_layout_nor_ranks_matter(sparse, more, tmp_path):
    data = dataset(LOSSES[more.get("loss", "logistic")].task, sparse=sparse, features=30)
    options = {"scaling": "maxabs", "l2": 1e-3, "workers": 2, **more}
    one = run(data, **options)
    assert same(one, run(data, LISTING, **options))
    assert same(one, run(data, **{**options, "workers": 1}))

    def share(ranks, ours):
        own = share_of(ranks, data.samples)
        part = data.features[own.start : own.stop]
        weighed = join_shares(part, data.labels, data.name, ranks, sample_weights=data.sample_weights)
        assert identify(weighed) == identify(data)
        return train(weighed, TrainingOptions(epochs=4, **ours), **devices(ranks, ours))

    def devices(ranks, ours):
        if "parallel" not in ours:
            remote = RemoteWorkers(ranks.rank, ranks.size, MergedSums(ranks).start)
            return {"device": EmulatedDevice(CONFIG, 1, remote=remote)}
        divided = SampleRanks(ranks.rank, ranks.size, ranks.all_sum, ranks.all_sum, ranks.all_to_all)
        return {"device": EmulatedDevice(LISTING, 1, sample_ranks=divided), "sample_ranks": divided}

    for ours in (options, {**options, "workers": 1, "parallel": "data"}):
        for result in run_ranks(2, lambda ranks, ours=ours: share(ranks, ours)):
            assert same(one, result)


def test_a_sample_of_weight_0_does_not_count():
    """Whatever its target is, in scaling of targets, training, intercept and metrics."""
    data = dataset(Task.REGRESSION)
    labels = np.where(data.sample_weights == 0, 1e9, data.labels)
    wild = run(dataclasses.replace(data, labels=labels), loss="squared")
    assert same(run(data, loss="squared"), wild)
    assert not any(record.flags for record in wild.history)


# -- metrics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["logistic", "squared", "poisson"])
def test_metrics_are_weighted(name):
    loss, rng = LOSSES[name], np.random.default_rng(4)
    labels = {"logistic": rng.integers(0, 2, 99), "squared": rng.normal(size=99), "poisson": rng.poisson(3, 99)}[name]
    z, weights = rng.normal(size=99), rng.exponential(size=99) * (rng.random(99) < 0.8)
    data = Dataset(np.zeros((99, 1)), labels, "d", sample_weights=weights)
    coding = LabelCoding.fit(loss.task, data)
    found = measure(loss, coding, z, coding.labels_of(data), weights)
    y, predicted = coding.real(coding.labels_of(data)), coding.predictions(z)
    assert found["loss"] == pytest.approx(np.average(loss.value(z, y), weights=weights))
    if name == "logistic":
        assert found["accuracy"] == pytest.approx(metrics.accuracy_score(labels, predicted, sample_weight=weights))
        return
    assert found["mse"] == pytest.approx(metrics.mean_squared_error(labels, predicted, sample_weight=weights))
    if name == "squared":
        assert found["r2"] == pytest.approx(metrics.r2_score(labels, predicted, sample_weight=weights))
        assert coding.mean == pytest.approx(np.average(labels, weights=weights))
        assert coding.scale**2 == pytest.approx(np.cov(labels, aweights=weights, ddof=0))
    else:
        assert found["d2"] == pytest.approx(metrics.d2_tweedie_score(labels, predicted, sample_weight=weights, power=1))


def test_training_measures_by_all_weights_and_other_samples_by_their_own():
    data, test = dataset(seed=1), dataset(seed=2)
    options = TrainingOptions(epochs=2, class_weight="1=5", validation_fraction=0.3, l2=0.01)
    result = train(data, options, open_device("emulator", CONFIG, 1), test=test)
    z, labels = result.activations["test"]
    assert result.metrics["test_loss"] == pytest.approx(
        metrics.log_loss(labels, 1 / (1 + np.exp(-z)), sample_weight=test.sample_weights)
    )
    assert result.metrics["test_loss"] == pytest.approx(score(result.model, test)["loss"])
    rest, held_out = data.split(0.3, seed=0, stratified=True)
    for name, part in (("train", rest), ("validation", held_out)):
        z, labels = result.activations[name]
        weights = part.sample_weights * np.where(part.labels == 1, 5, 1)
        expected = metrics.log_loss(labels, 1 / (1 + np.exp(-z)), sample_weight=weights)
        assert result.metrics[f"{name}_loss"] == pytest.approx(expected)


def test_scores_are_scikit_learn_s():
    for name, functions in {
        "logistic": {"auc": metrics.roc_auc_score, "average_precision": metrics.average_precision_score},
        "squared": {"mae": metrics.mean_absolute_error, "r2": metrics.r2_score},
    }.items():
        data = dataset(LOSSES[name].task)
        result = run(data, loss=name)
        found, z = score(result.model, data), result.model.decision_function(data)
        predicted = z if name == "logistic" else result.model.predict(data)
        for metric, function in functions.items():
            expected = function(data.labels, predicted, sample_weight=data.sample_weights)
            assert found[metric] == pytest.approx(expected), metric
            assert found[metric] != pytest.approx(function(data.labels, predicted)), metric


# -- mistakes and remarks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("2=3", "made: --class-weight names the label 2, which no sample has; there are 0, 1"),
        ("a", "--class-weight must be balanced or LABEL=WEIGHT,LABEL=WEIGHT, not 'a'"),
        ("1=2,=3", "--class-weight must be balanced or LABEL=WEIGHT,LABEL=WEIGHT"),
        ("1=2,1=3", "--class-weight names a label twice"),
        ("1=x", "--class-weight of 1 is x: it must be a number"),
        ("1=-2", "--class-weight of 1 is -2: it must be finite and at least 0"),
        (5, "--class-weight must be balanced or weights by label, not 5"),
        ({1: float("inf")}, "--class-weight of 1 is inf: it must be finite and at least 0"),
        ({0: 0, 1: 0}, "made: the weights of all samples are 0"),
    ],
)
def test_weights_of_classes_that_are_refused(chosen, message):
    with pytest.raises(UserError, match=message):
        run(dataset(weighted=False), class_weight=chosen)


def test_targets_have_no_classes():
    with pytest.raises(UserError, match="--class-weight has no effect on the loss squared"):
        TrainingOptions(loss="squared", class_weight="balanced")


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_weights_of_samples_that_are_refused(value):
    weights = np.ones(101)
    weights[41] = value
    message = f"made: the weight of sample 42 is {value:g}: it must be finite and at least 0"
    with pytest.raises(UserError, match=message):
        dataclasses.replace(dataset(), sample_weights=weights)
    with pytest.raises(UserError, match="made: there are 101 samples, but weights of shape"):
        dataclasses.replace(dataset(), sample_weights=weights[1:])
    with pytest.raises(UserError, match="made: the weights of all samples are 0, so that none counts"):
        run(dataclasses.replace(dataset(), sample_weights=np.zeros(101)))


def test_labels_of_all_kinds():
    kinds = {True: 4, 2.0: 3, np.int64(3): np.float32(0.5), "b": 1, np.str_("é"): 0}
    assert class_weights_of(kinds) == {"1": 4, "2.0": 3, "3": 0.5, "b": 1, "é": 0}
    assert class_weights_of("no=1=2.5, yes =1") == {"no=1": 2.5, "yes": 1}
    options = TrainingOptions(class_weight={1: 2})
    assert TrainingOptions(**options.to_json()) == options


def test_coarse_weights_are_remarked():
    weights = np.full(100_000, 1e-5)
    weights[0] = 1
    assert rounding_remark(weights).startswith("weights of samples are rounded to steps of 1/65,536 of the largest")
    assert rounding_remark(np.linspace(0, 1, 1000)) is None
    assert rounding_remark(None) is None
    assert importances(np.array([0, 0.5, 1])).tolist() == [0, IMPORTANCE.one // 2, IMPORTANCE.one]


def test_other_weights_are_other_data(tmp_path):
    """A checkpoint is not resumed with others; data without weights have the identity that they always had."""
    data, file = dataset(), CheckpointFile(tmp_path / "state")
    train(data, TrainingOptions(epochs=1), open_device("emulator", CONFIG, 1), checkpoint=file)
    saved = load_checkpoint(file.path)
    for other in (None, data.sample_weights + 1):
        changed = dataclasses.replace(data, sample_weights=other)
        with pytest.raises(UserError, match="the data of this checkpoint are others"):
            train(changed, TrainingOptions(epochs=2), open_device("emulator", CONFIG, 1), resume=saved)
    options = TrainingOptions(epochs=2, class_weight="1=2")
    with pytest.raises(UserError, match="the options of this checkpoint are others"):
        train(data, options, open_device("emulator", CONFIG, 1), resume=saved)
    one = train(data, TrainingOptions(epochs=3), open_device("emulator", CONFIG, 1), resume=saved)
    assert same(one, run(data, epochs=3))
