"""The softmax of several classes that are trained one against the rest."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from p4sgd import GLMClassifier, load_model, save_model
from p4sgd.host.training.export import to_sklearn
from p4sgd.host.training.softmax import Softmax, fit_softmax


def activations(samples, classes, seed, factor=1.0, addends=0.0):
    """Activations and classes whose chances are softmax(factor * z + addends)."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(samples, classes))
    return (logits - addends) / factor, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.mark.parametrize("held_out", [True, False])
def test_the_softmax_that_made_the_classes_is_found(held_out):
    addends = np.array([0.0, 1.5, -1.5, 0.5])
    samples, other = (*activations(20_000, 4, 0, 3.0, addends), None), (*activations(2_000, 4, 1), None)
    found = fit_softmax(other, samples, 1, 0.0) if held_out else fit_softmax(samples, None, 1, 0.0)
    assert found.factors == pytest.approx([3] * 4, rel=0.1)
    assert np.array(found.addends) - found.addends[0] == pytest.approx(addends, abs=0.15)


def test_a_weight_of_2_is_two_samples_and_one_of_0_none():
    """Up to what is held near equal factors, which depends on how many samples there are."""
    (z, labels), weights = activations(6000, 3, 2, 0.5, 3 * np.arange(3)), np.random.default_rng(3).integers(0, 3, 6000)
    repeated = np.repeat(np.arange(6000), weights)
    ours = fit_softmax((z, labels, None), (z, labels, weights / 2), 1, 0.0)
    theirs = fit_softmax((z, labels, None), (z[repeated], labels[repeated], None), 1, 0.0)
    assert ours.factors == pytest.approx(theirs.factors, rel=0.05)
    assert ours.addends == pytest.approx(theirs.addends, abs=0.05)


def test_nothing_is_fitted_without_evidence():
    """Too few samples, too many features, or where shares of each against the rest are as good."""
    z, labels = activations(600, 3, 4)
    assert fit_softmax((z, labels, None), None, 2, 0.01) is not None
    assert fit_softmax((z, labels, None), None, 200, 0.01) is None
    assert fit_softmax((z[:12], labels[:12], None), None, 2, 0.01) is None
    rng = np.random.default_rng(5)
    assert fit_softmax((0.01 * rng.normal(size=(600, 3)), rng.integers(0, 3, 600), None), None, 2, 0.01) is None


def test_many_classes_have_the_log_loss_of_a_multinomial_model(tmp_path):
    """Its probabilities add up to the samples of a class; estimator, file and exported model predict alike."""
    X, y = make_blobs(2400, 8, centers=20, cluster_std=4.0, random_state=0)
    classifier = GLMClassifier(epochs=4).fit(X[:1200], y[:1200])
    assert classifier.predict_proba(X[:1200]).sum(axis=0) == pytest.approx(np.bincount(y[:1200]), abs=1)
    p, rest = classifier.predict_proba(X[1200:]), y[1200:]
    reference = LogisticRegression(max_iter=1000).fit(X[:1200], y[:1200])
    assert log_loss(rest, p) < 1.1 * log_loss(rest, reference.predict_proba(X[1200:]))
    assert p == pytest.approx(softmax(X[1200:] @ classifier.coef_.T + classifier.intercept_, axis=1))
    assert p == pytest.approx(softmax(classifier.decision_function(X[1200:]), axis=1))
    assert (classifier.predict(X[1200:]) == p.argmax(axis=1)).all()
    z = classifier.model_.decision_function(classifier._samples(X[1200:]))
    shares = 1 / (1 + np.exp(-z))
    assert log_loss(rest, p) < 0.75 * log_loss(rest, shares / shares.sum(axis=1, keepdims=True))
    assert (p.argmax(axis=1) == rest).mean() > (z.argmax(axis=1) == rest).mean() - 0.01
    save_model(classifier, tmp_path / "m")
    assert (load_model(tmp_path / "m").predict_proba(X) == classifier.predict_proba(X)).all()
    assert to_sklearn(classifier.model_).predict_proba(X[1200:]) == pytest.approx(p)


def test_a_damaged_softmax():
    with pytest.raises(ValueError, match="factors"):
        Softmax((-1.0, 1.0), (0.0, 1.0))
    with pytest.raises(ValueError, match="shape"):
        Softmax((1.0, 1.0), (0.0,))
