"""Units to workers: by shares, by what workers hold, and by speeds that counters measure."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.devices.device import client_of
from p4sgd.host.distributed.communicator import SINGLE_PROCESS
from p4sgd.host.errors import UserError
from p4sgd.host.image.image import Shard
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.dealing.units import deal_to_device, partition
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.run import UNITS, check_capacity
from p4sgd.sim.emulator import EmulatedDevice
from p4sgd.sim.emulator.worker import Inputs, Run

CONFIG = WorkerConfig(engines=2, lanes=16, chunks=4)  # 8 units of up to 16 features a worker, 2 of 64


@given(features=st.integers(1, 1000), workers=st.integers(1, 32), bias=st.booleans(), unit=st.sampled_from(UNITS))
def test_consecutive_whole_units_and_equal(features, workers, bias, unit):
    def deal():
        return partition(features, [CONFIG] * workers, bias=bias, unit=unit)

    units, room = -(-(features + bias) // unit), {8: 8, 16: 8, 32: 4, 64: 2}[unit]
    if units < workers or -(-units // workers) > room:
        says = f"use at most {units}" if units < workers else rf"more than the workers hold \({room} each"
        with pytest.raises(UserError, match=says):
            deal()
        return
    shards = deal()
    assert [shard.worker for shard in shards] == list(range(workers))
    assert np.concatenate([shard.units for shard in shards]).tolist() == list(range(units))
    counts = [shard.units.size for shard in shards]
    assert max(counts) - min(counts) <= 1
    edges = [0, *itertools.accumulate(shard.features for shard in shards)]
    assert edges[-1] == features + bias
    assert [shard.columns for shard in shards] == [slice(*edge) for edge in itertools.pairwise(edges)]


@given(total=st.integers(1, 300), unit=st.sampled_from(UNITS), data=st.data())
def test_columns_of_any_units(total, unit, data):
    """Against the sentence that defines them, for any deal of units."""
    owners = data.draw(st.lists(st.integers(0, 2), min_size=-(-total // unit), max_size=-(-total // unit)))
    for worker in set(owners):
        units = [i for i, owner in enumerate(owners) if owner == worker]
        shard = Shard(worker, CONFIG, np.array(units), unit, total)
        expected = [j for i in units for j in range(i * unit, min((i + 1) * unit, total))]
        assert np.arange(total)[shard.columns].tolist() == expected
        assert shard.features == len(expected)


LANES = [WorkerConfig(engines=1, lanes=8, chunks=8), WorkerConfig(engines=1, lanes=64, chunks=16)]


@pytest.mark.parametrize(
    ("features", "configs", "unit", "says", "workers"),
    [
        (
            256,
            [CONFIG] * 2,
            16,
            r"17 units of 16, .* \(8 each\): use at least 3 workers or a larger configuration \(small, u280, .* sparse",
            3,
        ),
        (10**8, [CONFIG] * 32, 64, r"more than the workers hold \(2 each\): use for sparse data --config sparse$", 0),
        (2 * 10**7, [WorkerConfig.sparse_worker()], 8, r"\(1,048,576 each\): use at least 3 workers", 3),
        (100, [CONFIG] * 3, 64, "2 units of 64, too few for 3 workers: use at most 2, or a smaller --unit$", 2),
        (199, LANES, 8, r"25 units of 8, .*\(8, 16\): use at least 4 w", 4),
    ],
)
def test_the_advice_is_right(features, configs, unit, says, workers):
    with pytest.raises(UserError, match=says):
        partition(features, configs, bias=True, unit=unit)
    if workers:
        partition(features, configs[:1] * workers, bias=True, unit=unit)


@given(
    units=st.integers(1, 40),
    workers=st.lists(
        st.tuples(st.sampled_from([1, 2, 8]), st.integers(1, 8), st.sampled_from([0.5, 1.0, 1.5, 4.0])),
        min_size=1,
        max_size=4,
    ),
)
def test_no_deal_is_done_earlier(units, workers):
    """Against all deals that give every worker a unit, for workers of different sizes and speeds."""
    configs = [WorkerConfig(engines=engines, lanes=8, chunks=1 << rows.bit_length()) for engines, rows, _ in workers]
    rooms = [config.engines * config.chunks for config in configs]
    speeds = [speed for *_, speed in workers]

    def time(counts):
        engines = (config.engines for config in configs)
        return max(-(-n // each) * each / speed for n, each, speed in zip(counts, engines, speeds, strict=True))

    possible = [
        time((*others, last))
        for others in itertools.product(*(range(1, min(room, units) + 1) for room in rooms[:-1]))
        if 1 <= (last := units - sum(others)) <= rooms[-1]
    ]
    if not possible:
        with pytest.raises(UserError, match=r"too few for|more than the workers hold"):
            partition(8 * units, configs, bias=False, unit=8, speeds=speeds)
        return
    shards = partition(8 * units, configs, bias=False, unit=8, speeds=speeds)
    counts = [shard.units.size for shard in shards]
    assert sum(counts) == units
    assert all(count <= room for count, room in zip(counts, rooms, strict=True))
    assert time(counts) == min(possible)


@pytest.mark.parametrize(("stale", "precision"), [(False, 1), (True, 8)])
def test_planes_and_staleness_take_no_room_of_sparse_workers(stale, precision):
    config = dataclasses.replace(CONFIG, engines=4, sparse=True)
    how = {"bias": False, "unit": 64, "precision": precision, "stale": stale}
    (shard,) = partition(256, [config], **how)
    assert shard.layout(BANKS, 8).chunks == config.chunks
    check_capacity(config, config.chunks, precision, stale=stale)
    with pytest.raises(UserError, match=r"hold \(4 each\)"):
        partition(257, [config], **how)


# -- to the workers of a device ----------------------------------------------------------------------------------------

SAME = WorkerConfig(engines=2, lanes=16, chunks=16)
OPTIONS = TrainingOptions(workers=4, unit=16, bias=False, batch=64, precision=4, shares="auto")


class Paced(EmulatedDevice):
    """Emulated workers that count so many cycles for a line of each engine; their ``configs`` may differ."""

    def __init__(self, cycles, configs=None, shares=None):
        super().__init__(SAME, len(cycles))
        for worker, config in zip(self.workers, configs or [SAME] * len(cycles), strict=True):
            worker.__init__(config, worker.index)
        self.cycles, self.shares, self.runs, self.columns = cycles, shares, 0, []

    def wait(self, timeout_s=None):
        super().wait(timeout_s)
        self.runs += 1
        self.columns = [Run([Inputs(worker)]).features.count for worker in self.workers]
        for worker, cycles in zip(self.workers, self.cycles, strict=True):
            read = client_of(worker).read
            lines = read(registers.CHUNKS)["value"] * read(registers.MICRO_BATCHES)["value"]
            count = lines * read(registers.MINI_BATCHES)["value"] * read(registers.FORMAT)["precision"] * cycles
            worker.registers.set(registers.COUNTERS["CYCLES_BUSY"].registers[0], "value", count)


def units(device, **options):
    chosen = dataclasses.replace(OPTIONS, workers=len(device.workers), **options)
    shards, remark = deal_to_device(device, 16 * 16, 1000, chosen, SINGLE_PROCESS)
    return [shard.units.size for shard in shards], remark


WIDE = dataclasses.replace(SAME, engines=4)


@pytest.mark.parametrize(
    ("cycles", "configs", "options", "expected"),
    [
        ([1, 1, 1, 1], None, {}, [4, 4, 4, 4]),
        ([1, 1, 2, 2], None, {}, [6, 6, 2, 2]),
        ([1, 1], [WIDE, SAME], {}, [11, 5]),  # 16 units on 6 engines, in three rounds
        # A quick worker gets no more than it holds: four chunks an engine, by versions of the weights or by lines.
        ([1, 100, 100], [dataclasses.replace(SAME, chunks=8)] * 3, {"staleness": 1}, [8, 4, 4]),
        ([1, 100, 100], [dataclasses.replace(SAME, line_fifo_depth=16)] * 3, {"precision": 4}, [8, 4, 4]),
    ],
)
def test_all_finish_at_the_same_time(cycles, configs, options, expected):
    dealt, remark = units(Paced(cycles, configs), **options)
    assert dealt == expected
    if configs is None:
        unit = OPTIONS.batch // BANKS * OPTIONS.precision / 1000 * 4  # µs on an engine of the quick ones
        slowest, equal, ideal = (3, 4, 8 / 3) if cycles[-1] == 2 else (2, 2, 2)
        assert (
            f"works for {slowest * unit:.3g} µs in a mini-batch, with shares that are equal for {equal * unit:.3g}"
            in remark
        )
        assert remark.endswith(f"divided for {ideal * unit:.3g} µs")


@pytest.mark.parametrize(
    ("shares", "engines", "expected"),
    [([2, 2, 2, 1], 2, [5, 5, 4, 2]), ([1.1, 1], 8, [8, 8]), ([3, 1], 8, [12, 4])],  # not rounded to engines
)
def test_shares_of_the_device(shares, engines, expected):
    configs = [dataclasses.replace(SAME, engines=engines)] * len(shares)
    device = Paced([1] * len(shares), configs, shares=shares)
    assert units(device, shares="fixed") == (expected, None)
    assert device.runs == 0, "nothing is measured"


def test_a_worker_computes_with_all_its_columns_where_it_is_measured():
    """Emulated ones pass over columns that are 0 in all samples."""
    device = Paced([1, 1, 1, 1])
    units(device)
    assert device.columns == [4 * 16] * 4


def test_a_device_that_does_not_count():
    dealt, remark = units(EmulatedDevice(SAME, 4))
    assert dealt == [4, 4, 4, 4]
    assert "does not measure" in remark
