"""Weights of sparse workers during a run: saturation, and which columns are hot."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.host.data import Dataset
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import WEIGHT
from p4sgd.hw.spec.image import entry_words, split_words
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, LossTable, RunSettings
from p4sgd.sim import golden
from p4sgd.sim.emulator import EmulatedDevice
from p4sgd.sim.model import Targets
from p4sgd.sim.sparse import model as sparse_model
from p4sgd.sim.sparse import penalties
from p4sgd.sim.sparse.entries import Entries
from p4sgd.sim.sparse.model import SparseFeatures, SparseModel


@pytest.mark.parametrize(("second", "saturated"), [(1 << 30, False), (0, True)])
def test_a_weight_saturates_by_the_gradient_of_all_samples(second, saturated):
    form = FeatureFormat(8, 8, False)
    # Two samples of a micro-batch have the same feature: keys 0 and 1.
    keys, values = np.array([0, 1], np.uint32), np.array([200, 200], np.uint8)
    entries = Entries(np.array([0, 2]), keys, values, form, 64, (1, 64))
    run = RunSettings(form, 1, 1, 1, LabelMode(), 1, 20, unit=64)
    weights = np.full((1, 64), WEIGHT.maximum - 10, np.int32)
    targets = Targets(np.zeros(8, np.int64), np.zeros(0, np.int64), LossTable(0, *np.zeros((2, 16), np.int64)))
    model = SparseModel(SparseFeatures([entries]), [weights], run, targets, np.array([1 << 40]), [None])
    model._backward(slice(0, 8), np.array([-(1 << 30), second, 0, 0, 0, 0, 0, 0]))
    assert model.saturated.tolist() == [saturated]
    assert model.values()[0][0, 0] == WEIGHT.maximum - (0 if saturated else 10)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 1 << 30),
    mini_batches=st.integers(1, 60),
    changes=st.integers(0, 60),
    exponent=st.integers(0, 10),
    signed=st.booleans(),
    residual=st.integers(1, 1 << 12),
)
def test_weights_that_come_near_a_limit_saturate(seed, mini_batches, changes, exponent, signed, residual):
    """Updates are not checked while no weight can saturate; after more entries than weights all weights are looked at.

    All samples have the same residual, and some weights are about as many mini-batches from a limit as there are.
    """
    rng = np.random.default_rng(seed)
    form, samples, columns = FeatureFormat(8, 8, signed), 16 * mini_batches, 64
    q = rng.integers(-128 if signed else 0, 128 if signed else 256, (samples, columns))
    q[rng.random(q.shape) < 0.8] = 0
    table = LossTable(0, np.zeros(16, np.int64), np.full(16, rng.choice([-residual, residual])))
    run = RunSettings(form, 1, 2, mini_batches, LabelMode(), 255, exponent, unit=64)
    distance = changes * int(np.abs(q[:16]).sum(axis=0).max()) * residual * run.rate_mantissa >> run.gradient_shift
    weights = rng.integers(-1000, 1000, columns)
    weights[rng.integers(columns, size=4)] = max(WEIGHT.maximum - distance, 0)
    weights[rng.integers(columns, size=4)] = min(WEIGHT.minimum + distance, 0)

    rows, places = np.nonzero(q)
    words = np.sort(entry_words(rows, places, q[rows, places].astype(np.uint8)))
    counts, keys, values = split_words(words, samples // 8)
    entries = Entries(np.append(0, np.cumsum(counts)), keys, values, form, 64, (1, 64))
    labels = np.zeros(samples, np.int64)
    targets, first = Targets(labels, labels[:0], table), [[weights.astype(np.int32)]]
    model = SparseModel(SparseFeatures([entries]), first, run, targets, np.array([1 << 60]), [None])
    model.train(slice(0, samples))
    wanted = golden.train([q], labels, [weights], table, run)
    np.testing.assert_array_equal(model.values()[0][0], wanted.weights[0])
    assert model.saturated.tolist() == [wanted.flags[0].weight_saturated]


@pytest.mark.parametrize(
    ("more", "changes"), [({}, True), ({"l1": 1e-4, "bias": False}, True), ({"staleness": 1}, False)]
)
def test_columns_that_turn_out_hot_change_no_weight(monkeypatch, more, changes):
    """Weights that are all 0 at first do not tell which columns are hot, so that is chosen again in the first run."""
    monkeypatch.setattr(penalties, "_CATCH_UP_TIME", 0.0)
    monkeypatch.setattr(sparse_model, "_FIRST_CHOICE", 3)
    hot, choose = [], SparseModel._choose

    def chosen(model):
        choose(model)
        hot.append(int((model._hot[:, 1] - model._hot[:, 0]).clip(0).sum()))

    monkeypatch.setattr(SparseModel, "_choose", chosen)
    rng = np.random.default_rng(4)
    features = scipy.sparse.random_array((240, 300), density=0.03, rng=rng, format="csr")
    data = Dataset(features, rng.choice([-1.0, 1.0], 240), "random")
    options = TrainingOptions(epochs=2, batch=16, learning_rate=2.0, l2=0.02, workers=2, skip_zeros="never", **more)
    found = [
        train(data, options, EmulatedDevice(config, 2)).model.weights.tolist()
        for config in (WorkerConfig.sparse_worker(), WorkerConfig.small())
    ]
    assert found[0] == found[1]
    assert any(found[0])
    # After 3, 6 and 12 of 15 mini-batches; the second run begins with weights that tell.
    assert [count > 0 for count in hot] == ([False, True, True, True, True] if changes else [False, False])
