"""Training on sparse workers: the same as on dense ones, whatever the data and the options."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.events import events
from support.results import assert_same
from support.targets import targets

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim import parallel

SPARSE = WorkerConfig(engines=3, lanes=16, chunks=32, sparse=True)
DENSE = [WorkerConfig(lanes=8), WorkerConfig.small(), WorkerConfig(engines=4, lanes=64, chunks=16)]


def make_data(rng, samples, columns, density, *, negative, task, dense=False, scale=1.0):
    """Samples with some empty rows and columns, zeros that are stored, and columns of different sizes."""
    x = rng.normal(size=(samples, columns)) * scale ** rng.random(columns)
    x[rng.random(x.shape) >= density] = 0
    x[rng.random(samples) < 0.1] = 0
    x[:, rng.random(columns) < 0.2] = 0
    x[0, 0] = 1.0
    z = x @ rng.normal(size=columns) + 0.3 * rng.normal(size=samples)
    labels = targets(task, z - np.median(z))
    labels[:2] = (0, 1) if task is Task.CLASSIFICATION else labels[:2]
    matrix = scipy.sparse.csr_array(x if negative else np.abs(x))
    matrix.data[1:][rng.random(matrix.data.size - 1) < 0.1] = 0
    return Dataset(matrix.toarray() if dense else matrix, labels, "made")


def run(data, options, config):
    return train(data, options, open_device("emulator", config, options.workers))


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    dense=st.sampled_from(DENSE),
    workers=st.integers(1, 4),
    seed=st.integers(0, 1 << 30),
    samples=st.integers(20, 90),
    columns=st.integers(12, 120),
    density=st.sampled_from([0.0, 0.03, 0.2, 1.0]),
    negative=st.booleans(),
    stored_zeros=st.booleans(),
    threads=st.sampled_from([1, 3]),
    options=st.fixed_dictionaries(
        {
            "loss": st.sampled_from(list(LOSSES)),
            "batch": st.sampled_from([8, 16, 40]),
            "precision": st.integers(1, 8),
            "l2": st.sampled_from([0.0, 1e-3, 0.01]),
            "l1": st.sampled_from([0.0, 1e-4, 1e-3]),
            "staleness": st.integers(0, 1),
            "bias": st.booleans(),
            "unit": st.sampled_from([None, 8, 16, 32, 64]),
            "scaling": st.sampled_from(["maxabs", "none"]),
            "learning_rate": st.sampled_from([None, 0.1, 1.0]),
            "schedule": st.sampled_from(["adaptive", "invscaling"]),
            "validation_fraction": st.sampled_from([0.0, 0.3]),
        }
    ),
)
def test_the_same_as_on_dense_workers(
    dense, workers, seed, samples, columns, density, negative, stored_zeros, threads, options
):
    rng = np.random.default_rng(seed)
    task = LOSSES[options["loss"]].task
    data = make_data(rng, samples, columns, density, negative=negative, task=task, dense=not stored_zeros, scale=30.0)
    workers = min(workers, -(-(columns + options["bias"]) // (options["unit"] or 8)))
    chosen = TrainingOptions(**options, epochs=3, workers=workers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "THREADS", threads)
        patch.setattr("p4sgd.sim.sparse.model._THREAD_ENTRIES", 1)
        patch.setattr("p4sgd.sim.sparse.model._PART", 1 << 10)
        expected = run(data, chosen, SPARSE)
        assert_same(run(data, dataclasses.replace(chosen, skip_zeros="never"), dense), expected)
        skipping = run(data, dataclasses.replace(chosen, skip_zeros="always"), dense)
        assert_same(skipping, expected, "remarks")
        assert any("dense workers pass over zeros" in remark for remark in skipping.remarks)


@pytest.mark.parametrize(
    ("scaling", "l2", "first", "others"), [("none", 0.0, 24, 20), ("none", 1e-4, 24, 20), ("maxabs", 0.0, 40, 44)]
)
def test_arrays_of_a_million_columns(scaling, l2, first, others):
    """Bytes a column up to the end of the first epoch, and after that, with no room for another array of 4 bytes.

    To fit `none` takes smallest and largest values (16) and counts (4). A run has the order of columns, the weights
    before it, and the new ones twice while they are dealt to engines or measured (16); with L2 counts of penalties, but
    not then. At the end there are order, weights and coefficients (16), and no images. `maxabs` has the scales besides,
    those of the image, and the slopes of the model (24).
    """
    columns, samples = 1 << 20, 64
    places = np.random.default_rng(3).permutation(columns)[:samples]
    x = scipy.sparse.csr_array((np.linspace(0.5, 1, samples), (np.arange(samples), places)), shape=(samples, columns))
    data = Dataset(x, np.arange(samples) % 2.0, "made")
    options = TrainingOptions(epochs=3, batch=8, scaling=scaling, l2=l2)
    device = open_device("emulator", WorkerConfig.sparse_worker(), 1)
    train(data, options, device)  # loads and compiles everything
    assert device.workers[0].memory_bytes == 0
    peaks = []

    def note(_=None):
        peaks.append(tracemalloc.get_traced_memory()[1] / columns)
        tracemalloc.reset_peak()

    tracemalloc.start()
    try:
        train(data, options, device, events=events(epoch=note))
        note()
    finally:
        tracemalloc.stop()
    print(peaks)
    assert peaks[0] < first
    assert max(peaks[1:]) < others
