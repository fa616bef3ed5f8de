"""Training goes on without workers that are lost, to the same weights."""

import dataclasses
import re

import numpy as np
import pytest
import scipy.sparse
from support.events import events
from support.failing_device import FailingDevice
from support.results import assert_same

from p4sgd.host.data import Dataset
from p4sgd.host.devices import open_device
from p4sgd.host.devices.device import WorkerName
from p4sgd.host.distributed import SINGLE_PROCESS
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.errors import P4sgdError
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.emulator import EmulatedDevice, RemoteWorkers

CONFIG = WorkerConfig(engines=2, lanes=16, chunks=16)
OPTIONS = {"epochs": 5, "workers": 4, "precision": 3, "staleness": 1, "l2": 1e-3}


def dataset():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 70))
    return Dataset(x, np.where(x @ rng.normal(size=70) > 0, 1.0, 0.0), "made")


class LosingDevice(EmulatedDevice):
    """An emulator that loses workers in some of its runs, counted from 1; they are ``back`` before that run."""

    def __init__(self, losses, back=0, late=(), refused=None, configs=(CONFIG,) * OPTIONS["workers"]):
        super().__init__(configs[0], len(configs), configs=configs)
        self.losses, self.back, self.refused = losses, back, refused
        self.runs, self.failed = 0, False
        self.dropped, self.away = [], []
        self.absent = [WorkerName(number, f"unix:{number}") for number in sorted(late)]
        if late:
            self.drop(late)

    def wait(self, timeout_s=None):
        if self.failed:  # the session has aborted the run and waits for the others
            self.failed = False
        else:
            self.runs += 1
            self.failed = self.runs in self.losses
        if self.failed:
            lost = self.losses[self.runs]
            raise P4sgdError(f"worker {lost} is gone", lost_workers=lost)
        super().wait(timeout_s)

    def take_in(self, tell):
        """The workers that were dropped, from the run on that ``back`` names."""
        if self.refused:
            tell(self.refused)
        if not self.away or self.runs < self.back - 1:
            return ()
        came = range(len(self.workers), len(self.workers) + len(self.away))
        self.workers.extend(self.away)
        for index, worker in enumerate(self.workers):
            worker.index = index
        self._remote = RemoteWorkers(0, len(self.workers), MergedSums(SINGLE_PROCESS).start)
        self.away = []
        return came

    def drop(self, lost):
        self.dropped.append(set(lost))
        if self.back:
            self.away += [worker for worker in self.workers if worker.index in lost]
        if self.names:
            self.names = [name for index, name in enumerate(self.names) if index not in lost]
        super().drop(lost)


def sparse_dataset():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 200)) * (rng.random((90, 200)) < 0.03)
    return Dataset(scipy.sparse.csr_array(x), np.where(x.sum(axis=1) > 0, 1.0, 0.0), "made")


def test_workers_that_skip_zeros_get_others_units():
    """The images of those that are left have directories, too, and then the units of all heat."""
    data = sparse_dataset()
    options = TrainingOptions(**OPTIONS, unit=16)
    whole = train(data, dataclasses.replace(options, skip_zeros="never"), open_device("emulator", CONFIG, 4))
    device, units = LosingDevice({3: {1, 3}}), []

    def note(record):
        worker = device.workers[0]
        assert worker.registers.get(registers.FORMAT, "directory")
        units.append(worker.registers.get(registers.CHUNKS))

    result = train(data, dataclasses.replace(options, skip_zeros="always"), device, events=events(epoch=note))
    assert units == [2, 2, 4, 4, 4]  # of 13 units, on two engines
    assert_same(result, whole, "remarks")


def test_a_dense_worker_that_comes_back_skips_zeros_again():
    """Though meanwhile all images were lists of values."""
    data, sparse = sparse_dataset(), dataclasses.replace(CONFIG, engines=3, sparse=True)
    options = TrainingOptions(**OPTIONS | {"workers": 3, "batch": 64}, unit=16, skip_zeros="always")
    whole = train(data, dataclasses.replace(options, skip_zeros="never"), open_device("emulator", CONFIG, 3))
    device, skips = LosingDevice({2: {0}}, back=5, configs=(CONFIG, sparse, sparse)), []

    def note(record):
        dense = [worker for worker in device.workers if not worker.config.sparse]
        skips.append([bool(worker.registers.get(registers.FORMAT, "directory")) for worker in dense])

    result = train(data, options, device, events=events(epoch=note))
    assert skips == [[True], [], [], [True], [True]]
    assert_same(result, whole, "remarks")
    assert sum(remark.startswith("dense workers pass over zeros") for remark in result.remarks) == 1


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
    assert_same(result, whole, "remarks")
    epochs = [losses_before - index for index, losses_before in enumerate(losses)]  # a lost run is no epoch
    told = [remark for remark in result.remarks if "is gone" in remark]
    assert len(told) == len(left)
    for remark, epoch, workers in zip(told, epochs, left, strict=True):
        assert remark.startswith(f"epoch {epoch} is trained by {workers} worker")


def test_rows_after_the_loss_are_trained_by_those_that_are_left():
    """And by those that come back, whichever row is under way."""
    data = dataset()
    data = Dataset(data.features, np.digitize(data.features @ np.ones(70), [-4, 4]), "made")
    options = TrainingOptions(**OPTIONS)
    whole = train(data, options, open_device("emulator", CONFIG, OPTIONS["workers"]))
    device, told, warned = LosingDevice({2: {3}, 7: {0, 1}}, back=13), [], []

    def begin(row, names):
        device.refused = "worker 3 has 8 slots" if row else None

    result = train(data, options, device, events=events(remark=told.append, warning=warned.append, row=begin))
    assert [re.sub(r"s? instead of.*", "", text) for text in warned] == [
        "class 0: epoch 2 is trained by 3 worker",
        "worker 3 has 8 slots",
        "class 1: epoch 1 is trained by 1 worker",
    ], "at once, not with the other remarks on rows in the end"
    assert not [text for text in told if text.endswith(tuple(warned))]
    assert {text for text in warned if text.startswith("class")} < set(result.remarks)
    assert len(device.workers) == 4
    assert device.dropped == [{3}, {0, 1}]
    assert_same(result, whole, "remarks")


def test_a_worker_that_is_lost_when_speeds_are_measured():
    whole = run(open_device("emulator", CONFIG, OPTIONS["workers"]))
    device, warned = LosingDevice({1: {3}}), []
    result = train(dataset(), TrainingOptions(**OPTIONS, shares="auto"), device, events=events(warning=warned.append))
    assert warned == ["training begins with 3 workers instead of 4: worker {3} is gone"]
    assert device.dropped == [{3}]
    assert_same(result, whole, "remarks")


def make_sparse(device, *workers):
    """Have some workers of an emulator be sparse."""
    for index in workers:
        device.workers[index].__init__(dataclasses.replace(CONFIG, engines=3, sparse=True), index)
    return device


@pytest.mark.parametrize("sparse", [(), (1,), (0, 2, 3), (1, 3), (0, 1, 2, 3)], ids=str)
def test_dense_and_sparse_workers_take_over_from_each_other(sparse):
    """Worker 1 is lost and comes back, as the last; then workers 0 and 3 are lost for good."""
    whole = run(open_device("emulator", CONFIG, OPTIONS["workers"]), scaling="maxabs", l1=1e-4)
    device = make_sparse(LosingDevice({2: {1}, 6: {0, 3}}, back=4), *sparse)
    result = run(device, scaling="maxabs", l1=1e-4)
    assert len(result.summary["units"]) == len(device.workers) == 2
    assert_same(result, whole, "remarks")
    assert "epoch 3 is trained by 4 workers, 1 of them new: worker 3" in result.remarks


def test_the_split_is_shown_whenever_workers_change():
    whole = dataset()
    few = np.where(np.random.default_rng(1).random(whole.features.shape) < 0.04, whole.features, 0)
    data = dataclasses.replace(whole, features=scipy.sparse.csr_array(few))
    device = make_sparse(LosingDevice({2: {1}}, back=4), 1, 3)
    shown = []
    options = TrainingOptions(**OPTIONS | {"scaling": "maxabs"})
    result = train(data, options, device, events=events(split=lambda *given: shown.append(given)))
    assert [[worker.sparse for worker in split.workers] for split, _ in shown] == [
        [False, True, False, True],
        [False, False, True],
        [False, False, True, True],
    ]
    assert [len(names) for _, names in shown] == [4, 3, 4]
    assert [str(split) in result.remarks for split, _ in shown] == [True] * 3
    assert result.summary["split"] == shown[-1][0].to_json()


@pytest.mark.parametrize(
    ("late", "worker", "change"),
    [({3}, 3, {"engines": 3, "sparse": True}), ({2, 3}, 0, {"engines": 1, "lanes": 8, "chunks": 2})],
    ids=["sparse", "larger than the first"],
)
def test_late_workers_need_not_be_as_the_others(late, worker, change):
    """A sparse one could not begin with features that scaling has centred, but has room for zeros that are none; the
    first may have room for one unit of 8 features."""
    whole = run(open_device("emulator", CONFIG, OPTIONS["workers"]))
    device = LosingDevice({}, back=3, late=late)
    workers = {each.index: each for each in (*device.workers, *device.away)}
    workers[worker].__init__(dataclasses.replace(CONFIG, **change), worker)
    assert_same(run(device), whole, "remarks")
    assert len(device.workers) == 4


def test_workers_that_are_late_take_part_when_they_come():
    whole = run(open_device("emulator", CONFIG, OPTIONS["workers"]))
    device, warned = LosingDevice({}, back=3, late={2, 3}), []
    result = train(dataset(), TrainingOptions(**OPTIONS), device, events=events(warning=warned.append))
    assert_same(result, whole, "remarks")
    begin, came = result.remarks[:2]
    assert begin == "training begins with 2 workers; those that are late: worker 2 at unix:2, 3 at unix:3"
    assert came == "epoch 3 is trained by 4 workers, 2 of them new: worker 2, 3"
    assert warned == [begin]
    assert result.summary["workers"] == [0, 1, 2, 3]


def test_a_worker_that_does_not_suit_is_told_once():
    device = LosingDevice({}, refused="worker 3 at unix:3 has 8 slots")
    assert run(device).remarks.count("worker 3 at unix:3 has 8 slots") == 1
    assert device.runs == OPTIONS["epochs"]


def test_the_result_names_workers_as_the_cluster_file_does():
    device = LosingDevice({2: {1}})
    device.names = [WorkerName(number) for number in (0, 1, 2, 5)]
    assert run(device).summary["workers"] == [0, 2, 5]


def test_a_worker_that_always_fails_does_not_stop_the_others():
    """It is back at once, each time: an epoch is begun with it once."""
    device = LosingDevice({2 * run + 1: {3} for run in range(5)}, back=1)
    result = run(device)
    assert len(result.history) == OPTIONS["epochs"]
    assert device.runs <= 2 * OPTIONS["epochs"]


def test_a_worker_that_comes_and_does_not_suit_is_left_out():
    device = LosingDevice({}, back=2, late={3})
    device.away[0].__init__(dataclasses.replace(CONFIG, table_segments=16), 3)
    result = run(device)
    assert len(device.workers) == 3
    remark = result.remarks[1]  # it comes again in each epoch, as no real one does
    assert remark.startswith("epoch 2: worker 3 has come and cannot take part: the loss table of worker 3 has 16")


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
