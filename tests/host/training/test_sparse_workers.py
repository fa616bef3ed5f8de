"""Training on sparse workers: the same as on dense ones, whatever the data and the options."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from support.events import events

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.devices import open_device
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import WorkerConfig


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


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_quantiles_of_a_number_are_those_of_as_many_samples_however_many_texts_there_are(form, monkeypatch):
    monkeypatch.setattr("p4sgd.host.data.statistics._QUANTILE_VALUES", 256)
    rng = np.random.default_rng(8)
    x = np.hstack([rng.lognormal(size=(256, 1)), np.eye(300)[rng.integers(0, 300, 256)]])
    data = Dataset(form(x), (x[:, 0] > 1) * 1.0, "made")
    found = train(
        data, TrainingOptions(epochs=1), open_device("emulator", WorkerConfig.sparse_worker(), 1)
    ).model.scaling
    assert found.scale[0] == Scaling.fit(x[:, :1]).scale
