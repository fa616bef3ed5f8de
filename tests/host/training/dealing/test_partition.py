"""Units to workers."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.errors import UserError
from p4sgd.host.image.image import Shard
from p4sgd.host.training.dealing.units import partition
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.run import UNITS, check_capacity

CONFIG = WorkerConfig(engines=2, lanes=16, chunks=4)  # 8 units of up to 16 features a worker, 2 of 64


@given(features=st.integers(1, 1000), workers=st.integers(1, 32), bias=st.booleans(), unit=st.sampled_from(UNITS))
def test_consecutive_whole_units_and_equal(features, workers, bias, unit):
    def deal():
        return partition(features, [CONFIG] * workers, bias=bias, unit=unit)

    units, room = -(-(features + bias) // unit), {8: 8, 16: 8, 32: 4, 64: 2}[unit]
    if units < workers:
        with pytest.raises(UserError, match=f"use at most {units}"):
            deal()
        return
    if -(-units // workers) > room:
        with pytest.raises(UserError, match=rf"more than the workers hold \({room}"):
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
SMALL = WorkerConfig(engines=2, lanes=8, chunks=4)


@pytest.mark.parametrize(
    ("features", "configs", "unit", "says", "fits"),
    [
        (256, [CONFIG] * 2, 16, r"17 units of 16, more .* hold \(8 each\): use at least 3 workers", {"configs": 3}),
        (128 * 32, [CONFIG] * 32, 16, r"use fewer features, or a larger configuration \(small, u280", {}),
        (3000, [WorkerConfig.small()], 64, r"larger configuration \(u280.*, or for sparse data --config sparse$", {}),
        (10**8, [CONFIG] * 32, 64, "use fewer features, or for sparse data --config sparse$", {}),
        (10**8, [WorkerConfig.sparse_worker()], 8, r"\(1,048,576 each\): use at least 12 workers$", {"configs": 12}),
        (100, [CONFIG], 8, r"\(8 each\): use at least 2 workers or --unit 16, or ", {"unit": 16, "configs": 1}),
        (260, [CONFIG], 8, r"\(8 each\): use at least 5 workers, or a larger", {"configs": 5}),
        (100, [CONFIG] * 3, 64, "2 units of 64, too few for 3 workers: use at most 2 w.* or --unit 32", {"unit": 32}),
        (4, [CONFIG] * 2, 8, "are 1 unit of 8, too few for 2 workers: use at most 1 worker$", {"configs": 1}),
        (5000, [WorkerConfig(engines=1, lanes=8, chunks=4)], 64, r"79 units of 64, .*\(0 each\): use fewer feat", {}),
        (199, LANES, 8, r"25 units of 8, .*\(worker 0: 8, worker 1: 16\): use at least 4 w.* --unit 16", {"unit": 16}),
        (199, [LANES[1], SMALL], 64, r"worker 0: 16, worker 1: 0\): use fewer features or --unit 32", {"unit": 32}),
    ],
)
def test_the_advice_is_right(features, configs, unit, says, fits):
    with pytest.raises(UserError, match=says):
        partition(features, configs, bias=True, unit=unit)
    if fits:
        partition(features, configs[:1] * fits.get("configs", 0) or configs, bias=True, unit=fits.get("unit", unit))


@pytest.mark.parametrize("workers", [0, 33])
def test_workers_out_of_range(workers):
    with pytest.raises(UserError, match="workers must be 1 to 32"):
        partition(1000, [CONFIG] * workers, bias=True, unit=8)


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
