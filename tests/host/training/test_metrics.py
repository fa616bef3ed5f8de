"""Metrics against scikit-learn's."""

import numpy as np
import pytest
from sklearn import metrics

from p4sgd.host.data import Dataset
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.losses import LOSSES
from p4sgd.host.training.metrics import measure

RNG = np.random.default_rng(8)
SAMPLES = 200


WEIGHTS = RNG.exponential(size=SAMPLES) * (RNG.random(SAMPLES) < 0.8)
weighted = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])


def measured(name, labels, z, weights):
    loss = LOSSES[name]
    data = Dataset(np.zeros((labels.size, 1)), labels, "d", sample_weights=weights)
    coding = LabelCoding.fit(loss.task, data)
    return measure(loss, coding, z, coding.labels_of(data), weights), coding


@weighted
def test_metrics_are_scikit_learn_s(weights):
    how, z = {"sample_weight": weights}, RNG.normal(size=SAMPLES)
    labels = RNG.normal(50, 20, SAMPLES)
    found, coding = measured("squared", labels, z, weights)
    predicted = coding.predictions(z)
    assert found == {
        "loss": pytest.approx(found["mse"] / 2 / np.cov(labels, aweights=weights, ddof=0)),
        "mse": pytest.approx(metrics.mean_squared_error(labels, predicted, **how)),
        "r2": pytest.approx(metrics.r2_score(labels, predicted, **how)),
    }
    assert coding.mean == pytest.approx(np.average(labels, weights=weights))
    labels = RNG.poisson(30, SAMPLES) + 1.0
    for name, power in (("poisson", 1), ("gamma", 2), ("tweedie", 1.5)):
        found, coding = measured(name, labels, z, weights)
        predicted, mean = coding.predictions(z), np.average(labels, weights=weights)
        assert predicted == pytest.approx(mean * np.exp(z))
        assert found == {
            "loss": pytest.approx(found["deviance"] / 2 / mean ** (2 - power)),
            "mse": pytest.approx(metrics.mean_squared_error(labels, predicted, **how)),
            "deviance": pytest.approx(metrics.mean_tweedie_deviance(labels, predicted, power=power, **how)),
            "d2": pytest.approx(metrics.d2_tweedie_score(labels, predicted, power=power, **how)),
        }
    for classes in ((0.0, 1.0), (-1.0, 1.0), (2.0, 4.0)):
        labels, z = RNG.choice(classes, SAMPLES), RNG.normal(size=SAMPLES) * 3
        found, coding = measured("logistic", labels, z, weights)
        assert found == {
            "loss": pytest.approx(metrics.log_loss(labels, 1 / (1 + np.exp(-z)), **how)),
            "accuracy": pytest.approx(metrics.accuracy_score(labels, coding.predictions(z), **how)),
        }
        found, _ = measured("hinge", labels, z, weights)
        assert found["loss"] == pytest.approx(metrics.hinge_loss(labels == classes[1], z, **how))


@pytest.mark.parametrize(
    ("name", "labels", "weights"),
    [
        ("poisson", np.zeros(2), None),  # as held-out labels may be
        ("poisson", np.full(2, 3.0), None),
        ("squared", np.full(10, 0.3), None),  # ten times 0.3 has a mean that is not 0.3
        ("squared", np.append(np.full(10, 0.3), 5.0), np.append(np.linspace(0.1, 1.0, 10), 0.0)),
    ],
)
def test_labels_that_are_all_the_same_have_no_r2(name, labels, weights):
    """A sample that weighs nothing does not count."""
    coding = (
        LabelCoding(LOSSES[name].task, mean=0.3) if name == "squared" else LabelCoding(LOSSES[name].task, scale=2.0)
    )
    found = measure(LOSSES[name], coding, np.zeros_like(labels), labels, weights)
    assert np.isnan(found["r2" if name == "squared" else "d2"])
    assert found["mse"] == 0 if name == "squared" else found["deviance"] > 0
