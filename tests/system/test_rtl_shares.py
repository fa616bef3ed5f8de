"""Shares by measured speed on simulated Verilog: boards of different sizes in one job."""

import contextlib

import numpy as np
import pytest
from support.jobs import SMALL
from support.packet_cluster import PacketCluster

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.devices.device import NetworkSettings
from p4sgd.host.serve import simulated_worker
from p4sgd.host.serve.simulated_worker import SimulatedWorker
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import WorkerConfig

SIZES = (SMALL, WorkerConfig.tiny())
"""Two engines and one. Other tests simulate the latter too: to build a model takes longer than to train on it."""

UNITS, BATCH, PRECISION, EPOCHS = 12, 32, 4, 2


class Boards(PacketCluster):
    """Simulated workers as a device. There is nothing to tell its aggregator."""

    aggregator = None
    network_settings = NetworkSettings(resend_cycles=1 << 30, doublings=0)  # nothing is lost

    def __init__(self, opened):
        def make(config, send):
            return opened.enter_context(contextlib.closing(SimulatedWorker(config, send)))

        super().__init__(SIZES, make=make)

    def take_in(self, tell):
        return ()

    def clear(self):
        pass


@pytest.mark.rtl
@pytest.mark.slow
def test_a_board_with_twice_the_engines_of_the_other(monkeypatch):
    monkeypatch.setattr(simulated_worker, "_RUN_CYCLES", 50)  # at a time, most of which a worker waits for a frame
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 8 * UNITS))
    data = Dataset(x, (x[:, 0] > 0).astype(float), "made")
    options = {"batch": BATCH, "precision": PRECISION, "epochs": EPOCHS, "bias": False, "unit": 8}
    expected = train(data, TrainingOptions(**options), open_device("emulator", WorkerConfig.u280(), 1))
    found = {}
    for shares in ("fixed", "auto"):
        with contextlib.ExitStack() as opened:
            result = train(data, TrainingOptions(**options, workers=2, shares=shares), Boards(opened))
        assert result.model.weights.tolist() == expected.model.weights.tolist()
        epoch = result.history[-1].counters
        mini_batches = data.samples // BATCH
        found[shares] = result.summary["units"], [each["CYCLES_BUSY"] / mini_batches for each in epoch]
        cycles = [each["CYCLES"] / mini_batches for each in epoch]
        print(shares, *found[shares], cycles, *result.remarks)
    lines = BATCH // 8 * PRECISION  # of a unit
    assert found["fixed"] == ([6, 6], [3 * lines, 6 * lines])
    assert found["auto"] == ([8, 4], [4 * lines, 4 * lines])
