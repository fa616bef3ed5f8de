"""Training on whitened features: preconditioned SGD on the data, in one process, in several and from a folder."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.prepared import features_read, prepare_for

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.losses import LOSSES
from p4sgd.host.precondition import BLOCK, fold_weights
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.epoch_metrics import quantised_activations
from p4sgd.host.training.model_file import load_model, save_model
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import WEIGHT

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=16, line_fifo_depth=128, slots=4)


def dataset(samples=120, features=BLOCK + 11, seed=1, regression=False):
    rng = np.random.default_rng(seed)
    x = np.cumsum(rng.normal(size=(samples, features)), axis=1) + 40
    x[:, 3] = 7.0  # constant
    z = x @ rng.normal(size=features) / 4
    z -= np.median(z)
    return Dataset(x, z if regression else (z > 0).astype(float), "made")


def whitened(data, **options):
    return prepare_for(data, TrainingOptions(precondition="block", **options), CONFIG)


@settings(max_examples=4)
@given(seed=st.integers(0, 2**32), rate=st.floats(0.05, 1.0), workers=st.integers(1, 2))
def test_weights_are_those_of_preconditioned_sgd(seed, rate, workers):
    """Every update in float64, on data that fold to what the device reads, with (L·Lᵀ)⁻¹ before the gradient."""
    data = dataset(seed=seed, regression=True)
    options = {"loss": "squared", "epochs": 2, "batch": 16, "learning_rate": rate, "damping": 0.05, "workers": workers}
    prepared = whitened(data, **options)
    read = features_read(prepared) / 2.0**prepared.features.fraction
    batches, known = read.reshape(-1, 16, read.shape[1]), data.feature_count
    mixing = np.zeros((known, known))
    for first in range(0, known, BLOCK):
        columns = slice(first, min(first + BLOCK, known))
        mixing[columns, columns] = prepared.map.mixing[columns, : columns.stop - first]
    mixing[3, 3] = 1.0  # the constant column, which is read as 0
    unfolded = np.linalg.solve(mixing, read[:, :known].T).T.reshape(*batches.shape[:2], known)
    preconditioner = mixing.T @ mixing
    y = np.zeros(len(read))
    y[: data.samples] = prepared.targets.coding.real(prepared.targets.labels)
    result = train(data, TrainingOptions(precondition="block", **options), open_device("emulator", CONFIG, workers))
    actual = result.history[0].learning_rate
    weights, bias = np.zeros(known), 0.0
    ends = []
    for _ in range(2):
        for x, whole, target in zip(unfolded, batches, y.reshape(-1, 16), strict=True):
            gradient = x @ weights + whole[:, known] * bias - target
            weights -= actual / 16 * preconditioner @ (gradient @ x)
            bias -= actual / 16 * gradient @ whole[:, known]
        ends.append((weights.copy(), bias))
    weights, bias = ends[result.best_epoch - 1]
    trained = WEIGHT.to_real(result.model.weights.astype(np.int64))
    folded, constant = fold_weights(prepared.map.mixing, trained[:known])
    assert constant == 0
    scale = np.abs(weights).max() + 1
    assert np.abs(folded - weights).max() < 2e-3 * scale
    assert trained[known] == pytest.approx(bias, abs=2e-3)


@pytest.mark.parametrize("stored", [1, 2, 4, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_predictions_on_raw_data_are_the_activations_but_for_quantisation(stored, bias, tmp_path):
    data = dataset()
    prepared = whitened(data, precision=stored, bias=bias, workers=2)
    weights = np.random.default_rng(3).integers(-(1 << 23), 1 << 23, data.feature_count + bias)
    z = quantised_activations(prepared.images, prepared.split(weights), prepared.features, data.samples)
    model = prepared.fold(weights, LOSSES["logistic"])
    real = np.abs(WEIGHT.to_real(weights))[: data.feature_count]
    step = 2.0 ** -(stored - (stored > 1))
    error = np.abs(model.decision_function(prepared.train) - z)
    # Half a step of the planes and a little for the grid. At 4 and 8 planes no value of these data is clamped.
    assert stored < 4 or error.max() < (0.5 + 0.02) * step * real.sum()
    assert np.sqrt((error**2).mean()) < 3 * step * np.sqrt((real**2).sum()), "errors of features are independent"
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.mixing.tobytes() == prepared.map.mixing.tobytes()
    assert np.array_equal(loaded.decision_function(data), model.decision_function(data))
