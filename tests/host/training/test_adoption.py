"""Training goes on without workers that are lost, and with those that come, to the same weights."""

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
from p4sgd.host.devices.device import WorkerName, client_of
from p4sgd.host.distributed import SINGLE_PROCESS
from p4sgd.host.distributed.overlap import MergedSums
from p4sgd.host.errors import P4sgdError
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.emulator import EmulatedDevice, RemoteWorkers

CONFIG = WorkerConfig(engines=2, lanes=16, chunks=16)
SPARSE = dataclasses.replace(CONFIG, engines=3, sparse=True)
OPTIONS = {"epochs": 5, "workers": 4, "precision": 3, "staleness": 1, "l2": 1e-3}


def dataset(features=70, density=1.0):
    rng = np.random.default_rng(int(density < 1))
    x = rng.normal(size=(90, features))
    if density == 1:
        return Dataset(x, np.where(x @ rng.normal(size=features) > 0, 1.0, 0.0), "made")
    x[rng.random(x.shape) >= density] = 0
    return Dataset(scipy.sparse.csr_array(x), np.where(x.sum(axis=1) > 0, 1.0, 0.0), "made")


class LosingDevice(EmulatedDevice):
    """An emulator that loses workers in some of its runs, counted from 1; they are ``back`` before that run."""

    def __init__(self, losses=None, back=0, late=(), refused=None, configs=None, workers=4):
        configs = [(configs or {}).get(worker, CONFIG) for worker in range(workers)]
        super().__init__(configs[0], workers, configs=configs)
        self.losses, self.back, self.refused = losses or {}, back, refused
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


def run(device, data=None, on=None, **options):
    return train(data or dataset(), TrainingOptions(**OPTIONS | options), device, events=events(**on or {}))


def whole(data=None, workers=4, **options):
    return run(open_device("emulator", CONFIG, workers), data, **options)


BACK = {"losses": {2: {1}, 6: {0, 3}}, "back": 4}
"""Worker 1 is lost and comes back, as the last; then workers 0 and 3 are lost for good."""


@pytest.mark.parametrize(
    ("how", "left", "told"),
    [
        ({"losses": {1: {0}}}, 3, ["epoch 1 is trained by 3 workers instead of 4: worker {0} is gone"]),
        ({"losses": {3: {1, 3}}}, 2, ["epoch 3 is trained by 2"]),
        (
            {"losses": {2: {3}, 3: {0}, 6: {1}}},  # a lost run is no epoch
            1,
            ["epoch 2 is trained by 3 w", "epoch 2 is trained by 2 w", "epoch 4 is trained by 1 worker instead of 2"],
        ),
        *(
            (
                {**BACK, "configs": dict.fromkeys(sparse, SPARSE)},
                2,
                [
                    "epoch 2 is trained by 3",
                    "epoch 3 is trained by 4 workers, 1 of them new: worker 3",
                    "epoch 5 is tr",
                ],
            )
            for sparse in ((), (1,), (0, 2, 3), (1, 3), (0, 1, 2, 3))
        ),
        (
            {"late": {2, 3}, "back": 3},
            4,
            [
                "training begins with 2 workers; those that are late: worker 2 at unix:2, 3 at unix:3",
                "epoch 3 is trained by 4 workers, 2 of them new: worker 2, 3",
            ],
        ),
        # A sparse one could not begin with features that scaling has centred, but has room for zeros that are none.
        ({"late": {3}, "back": 3, "configs": {3: SPARSE}}, 4, ["training begins with 3", "epoch 3 is trained by 4"]),
        # The first may have room for one unit of 8 features.
        (
            {"late": {2, 3}, "back": 3, "configs": {0: dataclasses.replace(CONFIG, engines=1, lanes=8, chunks=2)}},
            4,
            ["training begins with 2", "epoch 3 is trained by 4"],
        ),
    ],
)
def test_the_result_is_that_of_a_run_that_lost_nobody(how, left, told):
    centred = how.get("late")
    options = {} if centred else {"scaling": "maxabs", "l1": 1e-4}
    device = LosingDevice(**how)
    result = run(device, **options)
    assert_same(result, whole(**options), "remarks")
    assert len(device.workers) == len(result.summary["units"]) == left
    said = [remark for remark in result.remarks if re.match(r"epoch \d is trained by|training begins", remark)]
    assert len(said) == len(told)
    assert all(map(str.startswith, said, told))


def test_workers_that_skip_zeros_get_others_units():
    """The images of those that are left have directories, too, and then the units of all heat."""
    data, device, units = dataset(200, 0.03), LosingDevice({3: {1, 3}}), []

    def note(record):
        worker = device.workers[0]
        assert worker.registers.get(registers.FORMAT, "directory")
        units.append(worker.registers.get(registers.CHUNKS))

    result = run(device, data, unit=16, skip_zeros="always", on={"epoch": note})
    assert units == [2, 2, 4, 4, 4]  # of 13 units, on two engines
    assert_same(result, whole(data, unit=16, skip_zeros="never"), "remarks")


def test_a_dense_worker_that_comes_back_skips_zeros_again():
    """Though meanwhile all images were lists of values."""
    data, options = dataset(200, 0.03), {"workers": 3, "batch": 64, "unit": 16}
    device, skips = LosingDevice({2: {0}}, back=5, configs={1: SPARSE, 2: SPARSE}, workers=3), []

    def note(record):
        dense = [worker for worker in device.workers if not worker.config.sparse]
        skips.append([bool(worker.registers.get(registers.FORMAT, "directory")) for worker in dense])

    result = run(device, data, **options, skip_zeros="always", on={"epoch": note})
    assert skips == [[True], [], [], [True], [True]]
    assert_same(result, whole(data, **options, skip_zeros="never"), "remarks")
    assert sum(remark.startswith("dense workers pass over zeros") for remark in result.remarks) == 1


def test_rows_after_the_loss_are_trained_by_those_that_are_left():
    """And by those that come back, whichever row is under way. Warnings come at once, unlike other remarks on rows."""
    data = dataset()
    data = Dataset(data.features, np.digitize(data.features @ np.ones(70), [-4, 4]), "made")
    device, told, warned = LosingDevice({2: {3}, 7: {0, 1}}, back=13), [], []

    def begin(row, names):
        device.refused = "worker 3 has 8 slots" if row else None

    result = run(device, data, on={"remark": told.append, "warning": warned.append, "row": begin})
    assert [re.sub(r"s? instead of.*", "", text) for text in warned] == [
        "class 0: epoch 2 is trained by 3 worker",
        "worker 3 has 8 slots",
        "class 1: epoch 1 is trained by 1 worker",
    ]
    assert not [text for text in told if text.endswith(tuple(warned))]
    assert {text for text in warned if text.startswith("class")} < set(result.remarks)
    assert (len(device.workers), device.dropped) == (4, [{3}, {0, 1}])
    assert_same(result, whole(data), "remarks")


def test_the_split_is_shown_whenever_workers_change():
    device = LosingDevice({2: {1}}, back=4, configs={1: SPARSE, 3: SPARSE})
    shown = []
    result = run(device, dataset(70, 0.04), scaling="maxabs", on={"split": lambda *given: shown.append(given)})
    assert [[worker.sparse for worker in split.workers] for split, _ in shown] == [
        [False, True, False, True],
        [False, False, True],
        [False, False, True, True],
    ]
    assert [len(names) for _, names in shown] == [4, 3, 4]
    assert [str(split) in result.remarks for split, _ in shown] == [True] * 3
    assert result.summary["split"] == shown[-1][0].to_json()


def test_workers_that_do_not_suit_are_left_out_and_told_once():
    refused = "worker 3 at unix:3 has 8 slots"
    device = LosingDevice(
        back=2, late={3}, refused=refused, configs={3: dataclasses.replace(CONFIG, table_segments=16)}
    )
    remarks = run(device).remarks
    assert (len(device.workers), device.runs, remarks.count(refused)) == (3, OPTIONS["epochs"], 1)
    told = "epoch 2: worker 3 has come and cannot take part: the loss table of worker 3 has 16"
    assert any(remark.startswith(told) for remark in remarks)  # it comes again in each epoch, as no real one does


def test_a_worker_that_is_lost_when_speeds_are_measured():
    device, warned = LosingDevice({1: {3}}), []
    result = run(device, shares="auto", on={"warning": warned.append})
    assert warned == ["training begins with 3 workers instead of 4: worker {3} is gone"]
    assert_same(result, whole(), "remarks")


def test_the_result_names_workers_as_the_cluster_file_does():
    device = LosingDevice({2: {1}})
    device.names = [WorkerName(number) for number in (0, 1, 2, 5)]
    assert run(device).summary["workers"] == [0, 2, 5]


def test_a_worker_that_always_fails_does_not_stop_the_others():
    """It is back at once, each time: an epoch is begun with it once."""
    device = LosingDevice({2 * run + 1: {3} for run in range(5)}, back=1)
    assert len(run(device).history) == OPTIONS["epochs"]
    assert device.runs <= 2 * OPTIONS["epochs"]


def test_the_run_ends():
    """If going on is not wanted, nobody is to blame or left; or the others are as good as full: a note says so."""
    for lost, options in (({2}, {"on_loss": "stop"}), (set(), {}), ({0, 1, 2, 3}, {})):
        with pytest.raises(P4sgdError, match=r"^a failure$"):
            run(FailingDevice(CONFIG, 4, 2, P4sgdError("a failure", lost_workers=lost)), **options)
    config = WorkerConfig(engines=1, lanes=8, chunks=8, line_fifo_depth=16, slots=4)
    device = FailingDevice(config, 3, 2, P4sgdError("worker 2 is gone", lost_workers={2}))
    with pytest.raises(P4sgdError, match="worker 2 is gone") as caught:
        run(device, workers=3, staleness=0, precision=4)
    (note,) = caught.value.__notes__
    assert note.startswith("the other workers could not go on: ")
    assert "the line FIFO holds 16" in note


class ChangingDevice(EmulatedDevice):
    """An emulator whose workers count cycles; from some run on worker 0 takes three times as many."""

    def __init__(self, run):
        super().__init__(CONFIG, 4)
        self.run = run

    def wait(self, timeout_s=None):
        super().wait(timeout_s)
        self.run -= 1
        for worker in self.workers:
            read = client_of(worker).read
            pace = 3000 if worker.index == 0 and self.run < 0 else 1000
            count = read(registers.CHUNKS)["value"] * read(registers.MINI_BATCHES)["value"] * pace
            worker.registers.set(registers.COUNTERS["CYCLES_BUSY"].registers[0], "value", count)


def test_measured_shares_follow_speeds():
    """Once two epochs have shown that they differ; the weights stay the same."""
    options = {"shares": "auto", "unit": 8, "epochs": 8, "tolerance": 0.0}
    data = dataset(features=256)
    result = run(ChangingDevice(run=9 + 2), data, **options)  # nine runs measure speeds
    assert_same(result, run(open_device("emulator", CONFIG, 4), data, **options | {"shares": "fixed"}), "remarks")
    (said,) = [remark for remark in result.remarks if "speeds of workers have changed" in remark]
    assert said.startswith("epoch 5:")
    assert result.summary["units"][0] < min(result.summary["units"][1:])
