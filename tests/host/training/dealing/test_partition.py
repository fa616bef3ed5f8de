"""Units to workers."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.errors import UserError
from p4sgd.host.image.image import Shard
from p4sgd.host.training.dealing.partition import partition
from p4sgd.hw.spec.config import BANKS, CONFIGURATIONS, PRESETS, WorkerConfig
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
        with pytest.raises(UserError, match=f"this configuration holds {room}: use "):
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


def test_the_advice_is_right():
    def deal(features, workers, config=CONFIG, bias=True, unit=16):
        return partition(features, [config] * workers, bias=bias, unit=unit)

    with pytest.raises(UserError, match=r"units of 16 .* holds 8: use at least 3 workers"):
        deal(256, 2)
    deal(256, 3)
    deal(256, 2, bias=False)
    with pytest.raises(UserError, match=r"holds 8: use a larger configuration \(small, u280"):
        deal(128 * 32, 32)
    with pytest.raises(UserError, match=r"^3,000 .* configuration \(u280.* or for sparse data --config sparse$"):
        deal(3000, 1, PRESETS["small"](), unit=64)
    deal(3000, 1, CONFIGURATIONS["sparse"](), unit=64)
    with pytest.raises(UserError, match=r"^3,001 features over 1 worker are .* configuration \(u280"):
        deal(3001, 1, PRESETS["small"](), bias=False, unit=64)
    with pytest.raises(UserError, match=r"^10,000,000 features .* up to 1,250,001 units of 8 a worker, .* 32,768: use"):
        deal(10_000_000, 1, unit=8, config=PRESETS["u280_deep"]())
    with pytest.raises(UserError, match=r"up to 13 units of 8 a worker, .* holds 8: use .* or --unit 16 or "):
        deal(100, 1, unit=8)
    deal(100, 1, unit=16)
    with pytest.raises(
        UserError, match=r"up to 33 units of 8 a worker, .* holds 8: use at least 5 workers or a larger"
    ):
        deal(260, 1, unit=8)
    with pytest.raises(UserError, match=r"use fewer features or for sparse data --config sparse$"):
        deal(10**8, 32, unit=64)
    with pytest.raises(UserError, match=r"2 units of 64, too few for 3 workers: use at most 2 workers or --unit 32"):
        deal(100, 3, unit=64)
    deal(100, 3, unit=32)


@pytest.mark.parametrize("workers", [0, 33])
def test_workers_out_of_range(workers):
    with pytest.raises(UserError, match="workers must be 1 to 32"):
        partition(1000, [CONFIG] * workers, bias=True, unit=8)


def test_a_worker_too_small_for_a_unit():
    config = WorkerConfig(engines=1, lanes=8, chunks=4)
    with pytest.raises(UserError, match=r"79 units of 64 .* this configuration holds 0: use a larger configuration"):
        partition(5000, [config], bias=True, unit=64)


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
        with pytest.raises(UserError, match=r"too few for|holds?"):
            partition(8 * units, configs, bias=False, unit=8, speeds=speeds)
        return
    shards = partition(8 * units, configs, bias=False, unit=8, speeds=speeds)
    counts = [shard.units.size for shard in shards]
    assert sum(counts) == units
    assert all(count <= room for count, room in zip(counts, rooms, strict=True))
    assert time(counts) == min(possible)


def test_workers_of_different_sizes_are_named():
    configs = [WorkerConfig(engines=1, lanes=8, chunks=4), WorkerConfig(engines=2, lanes=8, chunks=4)]
    with pytest.raises(UserError, match=r"13 units of 8, more than all workers hold \(worker 0: 4, worker 1: 8\)"):
        partition(100, configs, bias=True, unit=8)


def test_a_unit_that_suits_workers_of_different_lanes_is_advised():
    """As many lanes as the first worker has may be too few, or too many for the others."""
    lanes = [WorkerConfig(engines=1, lanes=8, chunks=8), WorkerConfig(engines=1, lanes=64, chunks=16)]
    with pytest.raises(UserError, match=r"25 units of 8, more than all .*: use more or larger workers or --unit 16"):
        partition(200, lanes, bias=False, unit=8)
    with pytest.raises(UserError, match=r"holds? .*: use more or larger workers$"):
        partition(2000, lanes, bias=False, unit=8)
    partition(200, lanes, bias=False, unit=16)
    small = WorkerConfig(engines=2, lanes=8, chunks=4)
    with pytest.raises(UserError, match=r"worker 1 cannot hold a unit of 64 features: .* in its place or --unit 32$"):
        partition(200, [lanes[1], small], bias=False, unit=64)
    partition(200, [lanes[1], small], bias=False, unit=32)


@pytest.mark.parametrize(("stale", "precision"), [(False, 1), (True, 8)])
def test_planes_and_staleness_take_no_room_of_sparse_workers(stale, precision):
    config = dataclasses.replace(CONFIG, engines=4, sparse=True)
    (shard,) = partition(256, [config], bias=False, unit=64, precision=precision, stale=stale)
    assert shard.layout(BANKS, 8).chunks == config.chunks
    check_capacity(config, config.chunks, precision, stale=stale)
    with pytest.raises(UserError, match="holds 4"):
        partition(257, [config], bias=False, unit=64, precision=precision, stale=stale)
