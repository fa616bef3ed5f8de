"""Offsets and exposures: known addends of activations, in every loss."""

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import GammaRegressor, LinearRegression, PoissonRegressor, TweedieRegressor
from sklearn.metrics import d2_tweedie_score, mean_tweedie_deviance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from p4sgd import GLMClassifier, GLMRegressor, load_model, save_model
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.prepared import Targets
from p4sgd.hw.spec.fixed import ACTIVATION, IMPORTANCE, RESIDUAL
from p4sgd.sim import golden


def exact(loss, z, y):
    """∂ℓ/∂z where z has the offset in it."""
    if loss.power is None:
        return loss.residual(z, y)
    return np.exp((2 - loss.power) * z) - y * np.exp((1 - loss.power) * z)


@pytest.mark.parametrize("name", LOSSES)
def test_the_hardware_computes_residuals_of_activations_with_offsets(name):
    """golden.residual of the labels that it has, times importances, is the derivative up to a factor for all."""
    rng, n, options = np.random.default_rng(1), 400, TrainingOptions(loss=name, bias=False)
    classes = (0.0, 1.0) if LOSSES[name].task is Task.CLASSIFICATION else ()
    labels, f = rng.integers(0 if name != "gamma" else 1, 2 if classes else 4, n).astype(float), rng.uniform(-1, 1, n)
    targets = Targets(LabelCoding(LOSSES[name].task, classes), labels, offsets=f)
    loss = targets.loss(options, "data")
    y, importances = targets.integers(options, "data")
    z = ACTIVATION.from_real(rng.uniform(-1.5, 1.5, n))
    flags = golden.Flags()
    got = RESIDUAL.to_real(golden.residual(z, y, loss.table(), loss.label_mode, flags))
    got *= 1 if importances is None else IMPORTANCE.to_real(importances)
    wanted = exact(loss, ACTIVATION.to_real(z) + f, 2 * labels - 1 if classes else labels)
    factor = got @ wanted / (got @ got)
    assert importances is not None or factor == pytest.approx(1, rel=1e-3)
    jump = np.isin(name, ["hinge", "quantile", "epsilon_insensitive"])  # which rounding of a label may pass
    assert np.mean(np.abs(factor * got - wanted) > loss.largest_error * 3 + 1e-3) <= 0.01 * jump
    assert not flags.residual_saturated


def table(n=2000, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return rng, X, X @ [0.5, -0.4, 0.3, 0.0]


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("poisson", PoissonRegressor(alpha=0, max_iter=1000)),
        ("gamma", GammaRegressor(alpha=0, max_iter=1000)),
        ("tweedie", TweedieRegressor(power=1.5, alpha=0, max_iter=1000)),
    ],
)
def test_exposures_are_as_good_as_rates_of_scikit_learn(name, theirs):
    rng, X, score = table()
    e, p = np.exp(1.5 * rng.normal(size=score.size)), LOSSES[name].power
    mean = 0.3 * e * np.exp(score)
    y = mean * rng.gamma(2, 0.5, e.size) if name == "gamma" else rng.poisson(mean).astype(float)
    ours = GLMRegressor(loss=name).fit(X, y, exposure=e)
    predicted = ours.predict(X, exposure=e)
    wanted = e * theirs.fit(X, y / e, sample_weight=e ** (2 - p)).predict(X)
    assert mean_tweedie_deviance(y, predicted, power=p) < 1.001 * mean_tweedie_deviance(y, wanted, power=p)
    assert ours.score(X, y, exposure=e) == pytest.approx(d2_tweedie_score(y, predicted, power=p))
    assert ours.predict(X, exposure=2 * e) == pytest.approx(2 * predicted)
    assert ours.predict(X, offset=np.log(e)) == pytest.approx(predicted)
    if name == "poisson":
        assert predicted.sum() == pytest.approx(y.sum(), rel=1e-4)


@pytest.mark.parametrize("name", ["poisson", "gamma", "tweedie"])
@pytest.mark.parametrize("rates", [False, True])
def test_the_default_penalty_is_the_deviance_from_the_mean(name, rates):
    """Of all samples, also where the largest target is far beyond 16 times the mean, to which counts are scaled."""
    rng, p, n = np.random.default_rng(4), LOSSES[name].power, 5000
    X = rng.random((n, 2))
    y = rng.gamma(0.2, size=n) + 1e-6 if name == "gamma" else rng.poisson(0.03, n) * 1.0
    e, w = rng.uniform(0.5, 2, n) if rates else np.ones(n), rng.random(n)
    model = GLMRegressor(loss=name, epochs=1).fit(X, y, w, exposure=e if rates else None).model_
    how, scaled = w * e ** (2 - p), y / e / model.labels.scale
    mean = np.full(n, np.average(scaled, weights=how))
    assert y.max() > 16 * np.average(y, weights=w)
    expected = mean_tweedie_deviance(scaled, mean, sample_weight=how, power=p) / n
    assert model.training["l2"] == pytest.approx(expected)


def test_numbers_with_offsets_are_the_differences():
    """Bit for bit; and with a logarithmic link the quotients."""
    rng, X, score = table()
    f = 1000 + 100 * rng.normal(size=score.size)
    y = f + score + rng.normal(size=score.size)
    ours, same = GLMRegressor(epochs=5).fit(X, y, offset=f), GLMRegressor(epochs=5).fit(X, y - f)
    assert np.array_equal(ours.model_.weights, same.model_.weights)
    assert ours.predict(X, offset=f) == pytest.approx(f + LinearRegression().fit(X, y - f).predict(X), abs=0.1)
    assert ours.history_[-1]["train_r2"] > 0.99 > same.history_[-1]["train_r2"]
    e = 2.0 ** rng.integers(-2, 3, score.size)
    y = e * np.exp(score) * rng.gamma(2, 0.5, e.size)
    ours, same = (GLMRegressor(loss="gamma", epochs=5) for _ in range(2))
    assert np.array_equal(ours.fit(X, y, exposure=e).model_.weights, same.fit(X, y / e).model_.weights)
    assert np.array_equal(same.fit(X, y, offset=np.log(e)).coef_, ours.coef_)


def test_classes_with_offsets(tmp_path):
    """A model on some columns, with the rest of the activation given, has the coefficients of one on all columns."""
    rng, X, score = table(4000)
    y = np.where(rng.random(score.size) < 1 / (1 + np.exp(-2 * score)), "yes", "no")
    whole = GLMClassifier(validation_fraction=0.1).fit(X, y)
    f = X[:, :1] @ whole.coef_[0, :1] + 3
    rest = GLMClassifier(validation_fraction=0.1).fit(X[:, 1:], y, offset=f)
    assert rest.coef_ == pytest.approx(whole.coef_[:, 1:], abs=0.02)
    assert rest.intercept_ == pytest.approx(whole.intercept_ - 3, abs=0.02)
    assert rest.decision_function(X[:, 1:], offset=f) == pytest.approx(whole.decision_function(X), abs=0.1)
    assert rest.score(X[:, 1:], y, offset=f) == pytest.approx(whole.score(X, y), abs=0.002)
    save_model(rest, tmp_path / "a.model")
    found = load_model(tmp_path / "a.model").predict_proba(X[:, 1:], offset=f)
    assert np.array_equal(found, rest.predict_proba(X[:, 1:], offset=f))


def test_metadata_routing():
    rng, X, score = table(300)
    e = np.exp(rng.normal(size=score.size))
    y = rng.poisson(e * np.exp(score)).astype(float)
    with sklearn.config_context(enable_metadata_routing=True):
        model = GLMRegressor(loss="poisson", epochs=3)
        for request in (model.set_fit_request, model.set_predict_request, model.set_score_request):
            request(exposure=True)
        pipeline = make_pipeline(StandardScaler(), model)
        scores = cross_val_score(pipeline, X, y, cv=3, params={"exposure": e})
        search = GridSearchCV(model, {"precision": [4, 8]}, cv=3).fit(X, y, exposure=e)
        assert search.score(X, y, exposure=e) > 0
        assert (scores > 0.3).all()


@pytest.mark.parametrize(
    ("estimator", "given", "message"),
    [
        (GLMRegressor(loss="poisson"), {"exposure": [1.0, -2.0]}, "exposure of sample 2 is -2: .*above 0"),
        (GLMRegressor(), {"exposure": [1.0, 2.0]}, "not for the loss squared: .*loss='poisson' or loss='gamma' or"),
        (GLMRegressor(), {"offset": ["a", "b"]}, "offset holds texts"),
        (GLMRegressor(), {"offset": [1.0, np.nan]}, "offset contains NaN"),
        (GLMRegressor(), {"offset": [[1.0, 2.0]] * 2}, r"^offset must be one number of each sample, not of shape"),
        (GLMRegressor(), {"offset": [1.0] * 3}, "inconsistent numbers of samples"),
        (GLMRegressor(loss="gamma"), {"offset": [0, 1], "exposure": [1, 1]}, "add the logarithm"),
        (GLMRegressor(loss="gamma"), {"offset": [0, 301]}, "offset of sample 2 is 301: it must be -300 to 300"),
        (GLMClassifier(), {"offset": [0, 60]}, "offset of sample 1 is 0: they may be at most 32 apart"),
        (GLMClassifier(bias=False), {"offset": [5, 17]}, "offset of sample 2 is 17: it must be -16 to 16"),
    ],
)
def test_offsets_that_do_not_suit(estimator, given, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit([[1.0], [2.0]], [1, 2], **given)


def test_models_and_samples_without_each_others_offsets():
    X, y = [[1.0], [2.0], [4.0]], [1.0, 2.0, 3.0]
    with_offsets, without = GLMRegressor(epochs=1).fit(X, y, offset=y), GLMRegressor(epochs=1).fit(X, y)
    with pytest.raises(ValueError, match="trained with an offset of every sample: give offset"):
        with_offsets.predict(X)
    with pytest.raises(ValueError, match=r"exposures are for predictions of e\^z: give an offset"):
        with_offsets.predict(X, exposure=y)
    with pytest.raises(ValueError, match="with offsets, which partial_fit does not take: fit with warm_start"):
        with_offsets.partial_fit(X, y)
    with pytest.raises(ValueError, match="trained without offsets: leave them out"):
        without.predict(X, offset=y)
    with pytest.raises(ValueError, match="offsets are for two classes, here are 3"):
        GLMClassifier().fit(X, y, offset=y)
