"""Features are dealt to workers by their speeds, as the workers' counters have them."""

import dataclasses

import pytest

from p4sgd.host.devices.device import WorkerName, client_of
from p4sgd.host.distributed.communicator import SINGLE_PROCESS
from p4sgd.host.errors import UserError
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.dealing.units import deal_to_device
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.sim.emulator import EmulatedDevice

CONFIG = WorkerConfig(engines=2, lanes=16, chunks=16)
UNITS = 16
OPTIONS = TrainingOptions(workers=4, unit=16, bias=False, batch=64, precision=4, shares="auto")


class Paced(EmulatedDevice):
    """Emulated workers that count so many cycles for a line of each engine; their ``configs`` may differ."""

    def __init__(self, cycles, configs=None, shares=None):
        super().__init__(CONFIG, len(cycles))
        for worker, config in zip(self.workers, configs or [CONFIG] * len(cycles), strict=True):
            worker.__init__(config, worker.index)
        self.cycles, self.shares = cycles, shares
        self.runs = 0

    def wait(self, timeout_s=None):
        super().wait(timeout_s)
        self.runs += 1
        for worker, cycles in zip(self.workers, self.cycles, strict=True):
            read = client_of(worker).read
            lines = read(registers.CHUNKS)["value"] * read(registers.MICRO_BATCHES)["value"]
            count = lines * read(registers.MINI_BATCHES)["value"] * read(registers.FORMAT)["precision"] * cycles
            worker.registers.set(registers.COUNTERS["CYCLES_BUSY"].registers[0], "value", count)


def units(device, options=OPTIONS):
    shards, remark = deal_to_device(device, UNITS * 16, 1000, options, SINGLE_PROCESS)
    return [shard.units.size for shard in shards], remark


WIDE = dataclasses.replace(CONFIG, engines=4)
FULL = {"staleness": 1}, dataclasses.replace(CONFIG, chunks=8)
LINES = {"precision": 4}, dataclasses.replace(CONFIG, line_fifo_depth=16)


@pytest.mark.parametrize(
    ("cycles", "configs", "options", "expected"),
    [
        ([1, 1, 1, 1], None, {}, [4, 4, 4, 4]),
        ([1, 1, 2, 2], None, {}, [6, 6, 2, 2]),
        ([1, 1], [WIDE, CONFIG], {}, [11, 5]),  # 16 units on 6 engines, in three rounds
        # A quick worker gets no more than it holds: four chunks an engine, by versions of the weights or by lines.
        ([1, 100, 100], [FULL[1]] * 3, FULL[0], [8, 4, 4]),
        ([1, 100, 100], [LINES[1]] * 3, LINES[0], [8, 4, 4]),
    ],
)
def test_all_finish_at_the_same_time(cycles, configs, options, expected):
    dealt, remark = units(Paced(cycles, configs), dataclasses.replace(OPTIONS, workers=len(cycles), **options))
    assert dealt == expected
    if cycles == [1, 1, 2, 2]:
        unit = OPTIONS.batch // BANKS * OPTIONS.precision * 4 / 1000  # µs on an engine of the quick ones
        assert f"should work for {3 * unit:.3g} µs in a mini-batch, instead of {4 * unit:.3g} µs (if units" in remark
    elif len(set(cycles)) == 1 and configs is None:
        assert "shares by measured speed would change nothing (if units" in remark


@pytest.mark.parametrize(
    ("shares", "configs", "expected"),
    [
        ([2, 2, 2, 1], None, [5, 5, 4, 2]),
        # Shares are not rounded to engines.
        ([1.1, 1], [dataclasses.replace(CONFIG, engines=8)] * 2, [8, 8]),
        ([3, 1], [dataclasses.replace(CONFIG, engines=8)] * 2, [12, 4]),
    ],
)
def test_shares_of_the_device(shares, configs, expected):
    device = Paced([1] * len(shares), configs, shares=shares)
    assert units(device, dataclasses.replace(OPTIONS, shares="fixed", workers=len(shares))) == (expected, None)
    assert device.runs == 0, "nothing is measured"


def test_a_device_that_does_not_count():
    dealt, remark = units(EmulatedDevice(CONFIG, 4))
    assert dealt == [4, 4, 4, 4]
    assert "does not measure" in remark


def test_workers_have_the_names_of_the_cluster_file():
    device = Paced([1, 2], shares=[1, 1])
    device.names = [WorkerName(0, "unix:a"), WorkerName(3, "unix:d")]
    two = dataclasses.replace(OPTIONS, workers=2)
    assert units(device, two)[1].startswith("by measured speed workers 0, 3 have ")
    device.workers[1].__init__(dataclasses.replace(CONFIG, table_segments=16), 1)
    with pytest.raises(UserError, match="loss table of worker 3 at unix:d has 16 segments"):
        units(device, two)
    device.workers[1].__init__(dataclasses.replace(CONFIG, chunks=2), 1)
    with pytest.raises(UserError, match="worker 3 at unix:d: 4"):
        deal_to_device(device, 10_000, 1000, two, SINGLE_PROCESS)
