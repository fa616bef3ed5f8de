"""Weights of samples and classes: against the golden model, scikit-learn's metrics, and each other."""

import dataclasses

import numpy as np
import pytest
from sklearn import metrics
from sklearn.utils.class_weight import compute_sample_weight
from support.results import assert_same
from support.targets import targets

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.data.sample_numbers import importances
from p4sgd.host.devices import open_device
from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.class_weights import check_class_weight, class_weights_of, rounding_remark, weigh
from p4sgd.host.training.metrics import score
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import IMPORTANCE

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=8, line_fifo_depth=64, slots=4)


def dataset(task=Task.CLASSIFICATION, samples=101, features=20, seed=1, weighted=True):
    rng = np.random.default_rng(seed)
    x = rng.random((samples, features))
    z = x @ rng.normal(size=features) * 2
    weights = rng.exponential(size=samples)
    weights[::7] = 0
    return Dataset(x, targets(task, z - np.median(z)), "made", sample_weights=weights if weighted else None)


def run(data, config=CONFIG, test=None, **options):
    options = TrainingOptions(**{"epochs": 4, **options})
    return train(data, options, open_device("emulator", config, options.workers), test=test)


@pytest.mark.parametrize("more", [{}, {"validation_fraction": 0.2}, {"loss": "squared"}, {"loss": "gamma", "l1": 1e-3}])
def test_equal_weights_are_as_good_as_none(more):
    none = dataset(LOSSES[more.get("loss", "logistic")].task, weighted=False)
    equal = dataclasses.replace(none, sample_weights=np.full(none.samples, 0.3))
    assert_same(run(none, **more), run(equal, **more))


def test_ranges_of_skewed_columns_do_not_depend_on_weights():
    x = np.random.default_rng(5).lognormal(size=(900, 1))
    data = Dataset(x, (x[:, 0] > np.quantile(x, 0.99)).astype(np.float64), "made")
    none, balanced = (run(data, class_weight=each, epochs=1).model.scaling for each in (None, "balanced"))
    assert none.scale == balanced.scale < 0.9 * Scaling.fit(x).scale


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("classes", "positive", "chosen", "by_class"),
    [
        (2, None, "balanced", None),
        (2, None, {"0": 3, "1": 0.5}, [3, 0.5]),
        (2, None, "1=0.25", [1, 0.25]),
        # Of one against the rest: by the labels of the data, but balanced are the two classes that are trained.
        (3, "2", {2: 4, 0: 2}, [2, 1, 4]),
        (3, "2", "balanced", None),
    ],
)
def test_weights_of_classes_are_weights_of_their_samples(classes, positive, chosen, by_class, weighted):
    data = dataset(weighted=weighted)
    if classes == 3:
        data = dataclasses.replace(data, labels=np.arange(data.samples) % 3.0)
    own = np.ones(data.samples) if data.sample_weights is None else data.sample_weights
    trained = data.labels if positive is None else (data.labels == 2) * 1.0
    if by_class is not None:
        factor = np.array(by_class)[data.labels.astype(int)]
    else:  # scikit-learn's counts samples without their weights
        totals = np.array([own[trained == label].sum() for label in (0, 1)])
        factor = (own.sum() / 2 / totals)[trained.astype(int)]
        assert weighted or factor == pytest.approx(compute_sample_weight("balanced", trained))
    spelt = dataclasses.replace(data, sample_weights=own * factor)
    one, two = run(data, class_weight=chosen, positive=positive), run(spelt, positive=positive)
    assert one.model.weights.tolist() == two.model.weights.tolist()
    assert one.metrics["train_loss"] == pytest.approx(two.metrics["train_loss"])


def test_classes_of_weight_0():
    """One class must be left at least; classes of the model that training starts from may have weights, too."""
    data = dataset()
    three = Dataset(data.features, np.arange(data.samples) % 3, "made")
    for samples, chosen, positive in ((data, "0=0", None), (three, "0=0,2=0", None), (three, "1=0", "1")):
        with pytest.raises(UserError, match="made: --class-weight is 0 for all samples but those of one class: "):
            run(samples, class_weight=chosen, positive=positive)
    assert run(three, class_weight="2=0", positive="1").model.labels.positive == 1
    assert len(run(three, class_weight="1=0").model.rows) == 3
    samples = Dataset(np.eye(4), [0, 1, 0, 1], "d", ("a", "c"))
    coding = LabelCoding(Task.CLASSIFICATION, (0, 1, 2), names=("a", "b", "c"))
    assert check_class_weight({"b": 2.0}, samples, coding) == ()
    (remark,) = check_class_weight({"e": 2.0}, samples, coding)
    assert remark == "d: --class-weight names the label e, which no sample has; there are a, c, b"
    (weights,) = weigh([samples], LabelCoding(Task.CLASSIFICATION, (0, 1), names=("a", "c")), {"b": 2.0, "c": 0.5})
    assert weights.tolist() == [1, 0.5, 1, 0.5]


def test_training_measures_by_all_weights_and_other_samples_by_their_own():
    data, test = dataset(seed=1), dataset(seed=2)
    result = run(data, epochs=2, class_weight="1=5", validation_fraction=0.3, l2=0.01, test=test)
    rest, held_out = data.counted().split(0.3, seed=0, stratified=True)
    for name, part, factor in (("train", rest, 5), ("validation", held_out, 5), ("test", test, 1)):
        z, labels = result.activations[name]
        weights = part.sample_weights * np.where(part.labels == 1, factor, 1)
        expected = metrics.log_loss(labels, 1 / (1 + np.exp(-z)), sample_weight=weights)
        assert result.metrics[f"{name}_loss"] == pytest.approx(expected)
    assert result.metrics["test_loss"] == pytest.approx(score(result.model, test)["loss"])


def test_scores_of_classes_are_scikit_learn_s():
    data = dataset()
    model = run(data).model
    z, found, how = model.decision_function(data), score(model, data), {"sample_weight": data.sample_weights}
    for name, function, given in (
        ("auc", metrics.roc_auc_score, z),
        ("average_precision", metrics.average_precision_score, z),
        ("log_loss", metrics.log_loss, 1 / (1 + np.exp(-z))),
        ("accuracy", metrics.accuracy_score, z > 0),
        ("balanced_accuracy", metrics.balanced_accuracy_score, z > 0),
        ("f1", metrics.f1_score, z > 0),
    ):
        assert found[name] == pytest.approx(function(data.labels, given, **how)), name
        assert found[name] != pytest.approx(function(data.labels, given)), name


@pytest.mark.parametrize(
    ("chosen", "weights", "message"),
    [
        ("1=2,=3", None, "--class-weight must be balanced or LABEL=WEIGHT,LABEL=WEIGHT"),
        ("1=2,1=3", None, "--class-weight names a label twice"),
        ("1=x", None, "--class-weight of 1 is x: it must be a finite number of at least 0"),
        (5, None, "--class-weight must be balanced or LABEL=WEIGHT,LABEL=WEIGHT, not 5"),
        ({1: -2.0}, None, "--class-weight of 1 is -2.0: it must be a finite number of at least 0"),
        ({0: 0, 1: 0}, None, "made: the weights of all samples are 0"),
        *((None, np.where(np.arange(101) == 41, each, 1), "made: the weight of sample 42 is") for each in (-1, np.nan)),
        (None, np.ones(100), "made: there are 101 samples, but weights of shape"),
        (None, np.zeros(101), "made: the weights of all samples are 0, so that none counts"),
        (None, np.arange(101) % 2 * 1.0, "made: all labels are 1, but for samples of weight 0: a classifier"),
    ],
)
def test_weights_that_are_refused(chosen, weights, message):
    data = dataclasses.replace(dataset(weighted=False), labels=np.arange(101) % 2)
    with pytest.raises(UserError, match=message):
        run(dataclasses.replace(data, sample_weights=weights), class_weight=chosen)


def test_labels_of_all_kinds():
    kinds = {True: 4, 2.0: 3, np.int64(3): np.float32(0.5), "b": 1, np.str_("é"): 0}
    assert class_weights_of(kinds) == {"1": 4, "2.0": 3, "3": 0.5, "b": 1, "é": 0}
    assert class_weights_of("no=1=2.5, yes =1") == {"no=1": 2.5, "yes": 1}
    options = TrainingOptions(class_weight={1: 2})
    assert TrainingOptions(**options.to_json()) == options


def test_coarse_weights_are_remarked():
    weights = np.append(1.0, np.full(99_999, 1e-5))
    assert rounding_remark(weights).startswith("weights of samples are rounded to steps of 1/65,536 of the largest")
    assert rounding_remark(np.linspace(0, 1, 1000)) is rounding_remark(None) is None
    assert importances(np.array([0, 0.5, 1])).tolist() == [0, IMPORTANCE.one // 2, IMPORTANCE.one]
