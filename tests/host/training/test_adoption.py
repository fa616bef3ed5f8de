"""Training goes on without workers that are lost, to the same weights."""

import numpy as np
import pytest
from support.failing_device import FailingDevice

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.errors import P4sgdError
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import WorkerConfig

CONFIG = WorkerConfig(engines=2, lanes=16, chunks=16)
OPTIONS = {"epochs": 5, "workers": 4, "precision": 3, "staleness": 1, "l2": 1e-3}


def dataset():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 70))
    return Dataset(x, np.where(x @ rng.normal(size=70) > 0, 1.0, 0.0), "made")


class LosingDevice:
    """An emulator that loses workers in some of its runs, counted from 1."""

    name = "emulator"
    aggregator = network_settings = links = shares = None

    def __init__(self, losses):
        self.device = open_device("emulator", CONFIG, OPTIONS["workers"])
        self.losses = losses
        self.runs = 0
        self.failed = False
        self.dropped = []

    @property
    def workers(self):
        return self.device.workers

    def wait(self, timeout_s=None):
        if self.failed:  # the session has aborted the run and waits for the others
            self.failed = False
        else:
            self.runs += 1
            self.failed = self.runs in self.losses
        if self.failed:
            lost = self.losses[self.runs]
            raise P4sgdError(f"worker {lost} is gone", lost_workers=lost)
        self.device.wait(timeout_s)

    def take_in(self):
        return 0

    def drop(self, lost):
        self.dropped.append(set(lost))
        self.device.drop(lost)

    def close(self):
        self.device.close()


def run(device, **options):
    return train(dataset(), TrainingOptions(**OPTIONS | options), device)


@pytest.mark.parametrize(
    ("losses", "left"),
    [({1: {0}}, [3]), ({3: {1, 3}}, [2]), ({2: {3}, 3: {0}, 6: {1}}, [3, 2, 1])],
    ids=["first epoch", "two at once", "one after another"],
)
def test_the_result_is_that_of_a_run_that_lost_nobody(losses, left):
    whole = run(open_device("emulator", CONFIG, OPTIONS["workers"]))
    device = LosingDevice(losses)
    result = run(device)
    assert device.dropped == list(losses.values())
    assert len(device.workers) == left[-1]
    assert result.model.weights.tolist() == whole.model.weights.tolist()
    assert result.model.intercept == whole.model.intercept
    assert [each.metrics for each in result.history] == [each.metrics for each in whole.history]
    epochs = [losses_before - index for index, losses_before in enumerate(losses)]  # a lost run is no epoch
    told = [remark for remark in result.remarks if "is gone" in remark]
    assert len(told) == len(left)
    for remark, epoch, workers in zip(told, epochs, left, strict=True):
        assert remark.startswith(f"epoch {epoch} is trained by {workers} worker")


@pytest.mark.parametrize(
    ("lost", "options"),
    [({2}, {"on_loss": "stop"}), (set(), {}), ({0, 1, 2, 3}, {})],
    ids=["not wanted", "nobody to blame", "nobody left"],
)
def test_the_run_ends(lost, options):
    error = P4sgdError("a failure", lost_workers=lost)
    with pytest.raises(P4sgdError, match=r"^a failure$"):
        run(FailingDevice(CONFIG, OPTIONS["workers"], 2, error), **options)


def test_the_others_cannot_hold_all_units():
    """They are as good as full: the error is that of the loss, with a note."""
    config = WorkerConfig(engines=1, lanes=8, chunks=8, line_fifo_depth=16, slots=4)
    error = P4sgdError("worker 2 is gone", lost_workers={2})
    device = FailingDevice(config, 3, 2, error)
    with pytest.raises(P4sgdError, match="worker 2 is gone") as caught:
        run(device, workers=3, staleness=0, precision=4)
    (note,) = caught.value.__notes__
    assert note.startswith("the other workers could not go on: ")
    assert "the line FIFO holds 16" in note
