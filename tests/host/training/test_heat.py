"""Columns by heat, and their split between dense and sparse workers."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.host.data import Dataset
from p4sgd.host.errors import UserError
from p4sgd.host.image import Shard, partition
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.heat import (
    ENTRY_NS,
    PACKETS_NS,
    SPACING_CYCLES,
    SUMS_CYCLES,
    deal_by_heat,
    heat_order,
    split_remarks,
)
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.timing import mini_batch_cycles
from p4sgd.sim.emulator import EmulatedDevice

TINY, SPARSE = WorkerConfig.tiny(), WorkerConfig.sparse_worker()
SAMPLES = 1000


def shards_of(configs, features, unit=8):
    return partition(features, configs, bias=True, unit=unit)


def sparse_data(seed, samples=160, features=400, density=0.02):
    """Random sparse samples, some columns much hotter than others."""
    rng = np.random.default_rng(seed)
    count = int(samples * features * density)
    columns = np.minimum(rng.zipf(1.3, count) - 1, features - 1)
    values = rng.choice([-1.0, 0.5, 2.0], count)
    matrix = scipy.sparse.coo_array((values, (rng.integers(0, samples, count), columns)), shape=(samples, features))
    return Dataset(matrix.tocsr(), rng.choice([-1.0, 1.0], samples), "random")


def test_the_hottest_columns_come_first():
    """Equal ones in their own order, the bias last."""
    assert heat_order(np.array([3, 9, 0, 9]), 5).tolist() == [1, 3, 0, 2, 4]


@settings(max_examples=50)
@given(
    seed=st.integers(0, 1 << 30),
    features=st.integers(60, 300),
    dense=st.integers(0, 3),
    sparse=st.integers(0, 3),
    split=st.sampled_from(["auto", "none"]),
)
def test_every_column_is_dealt_once(seed, features, dense, sparse, split):
    """In the order of heat: the first units to dense workers."""
    if not dense + sparse:
        return
    rng = np.random.default_rng(seed)
    configs = rng.permutation([WorkerConfig.small()] * dense + [SPARSE] * sparse).tolist()
    heat = rng.integers(0, SAMPLES, features)
    options = TrainingOptions(unit=8, precision=4, split=split, workers=len(configs))
    dealt, found = deal_by_heat(shards_of(configs, features), heat, SAMPLES, options)
    assert [shard.config for shard in dealt] == configs
    order = heat_order(heat, features + 1)
    by_place = sorted(dealt, key=lambda shard: shard.units[0])
    np.testing.assert_array_equal(np.concatenate([shard.placed for shard in by_place]), order)
    assert [shard.config.sparse for shard in by_place] == sorted(config.sparse for config in configs)
    assert (found is None) == (not dense or not sparse)


def test_the_split_is_the_best_of_all():
    """No other number of hot units has a faster slowest worker."""
    rng = np.random.default_rng(1)
    heat = np.sort(rng.zipf(1.5, 600).clip(0, SAMPLES))
    configs, unit = [TINY, TINY, SPARSE, SPARSE], 8
    options = TrainingOptions(unit=unit, precision=8, workers=4)
    shards = shards_of(configs, heat.size)
    _, found = deal_by_heat(shards, heat, SAMPLES, options)
    assert found is not None

    def slowest(hot):
        _, split = deal_by_heat(shards, heat, SAMPLES, dataclasses.replace(options, split=str(hot * unit)))
        return max(split.dense_ns, split.sparse_ns)

    rooms = 2 * TINY.chunks
    assert max(found.dense_ns, found.sparse_ns) == min(slowest(hot) for hot in range(2, rooms + 1))
    # By hand: two workers of one engine have half the hot units each, in chunks of 8 lanes; two micro-batches.
    lines = -(-found.columns // unit // 2) * 8
    assert found.dense_ns == (lines + max(lines, SPACING_CYCLES) + 8 + SUMS_CYCLES) * CLOCK_NS / 16
    everything = np.append(heat, SAMPLES)[heat_order(heat, heat.size + 1)]
    assert found.sparse_ns == everything[found.columns :].sum() / SAMPLES / 2 * ENTRY_NS
    assert found.nonzeros == everything[: found.columns].sum() / everything.sum()


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("hot", [64, 640, 64 * 8 * 20])
@pytest.mark.parametrize(("batch", "precision"), [(8, 1), (64, 4), (256, 8)])
def test_times_of_boards_are_those_of_the_hardware(batch, precision, hot, stale):
    """Also where micro-batches have fewer lines than the cycles that they are apart."""
    config = WorkerConfig.u280()
    options = TrainingOptions(
        unit=64, batch=batch, precision=precision, workers=2, split=str(hot), staleness=int(stale)
    )
    _, found = deal_by_heat(shards_of([config, SPARSE], 20_000, 64), np.arange(20_000), 20_000, options)
    chunks = -(-hot // 64 // config.engines)
    cycles = mini_batch_cycles(config, batch, chunks, precision, 50, stale=stale)
    assert found.dense_ns == pytest.approx(cycles * CLOCK_NS / batch)


def test_packets_of_processes_count():
    """They take a sparse worker more time than its columns, so that dense workers get all that they hold."""
    heat = np.full(600, 5)
    shards, options = shards_of([TINY, SPARSE], 600), TrainingOptions(unit=8, workers=2)
    _, alone = deal_by_heat(shards, heat, SAMPLES, options)
    _, networked = deal_by_heat(shards, heat, SAMPLES, options, network=True)
    assert networked.columns == TINY.features > alone.columns
    assert networked.sparse_ns > PACKETS_NS > alone.sparse_ns


def test_sparse_workers_share_the_nonzeros():
    """The first one has a hot unit, the last one the bias, which is in all samples."""
    heat = np.append(np.full(8, 900), np.full(791, 9))
    dealt, _ = deal_by_heat(shards_of([SPARSE] * 2, 799), heat, SAMPLES, TrainingOptions(unit=8, workers=2))
    first, last = (int(np.append(heat, SAMPLES)[shard.columns].sum()) for shard in dealt)
    assert abs(first - last) <= 2 * 8 * 9
    assert [shard.units.size for shard in dealt] == [8, 92]


def test_shares_of_sparse_workers():
    """A worker that should have three times as many columns has three times as many nonzeros."""
    shards = partition(800, [SPARSE] * 2, bias=False, unit=8, shares=[3, 1])
    dealt, _ = deal_by_heat(shards, np.full(800, 5), SAMPLES, TrainingOptions(unit=8, workers=2))
    assert [shard.units.size for shard in dealt] == [75, 25]


def test_a_split_that_the_workers_cannot_hold():
    """The message says what they can."""
    shards = shards_of([TINY, SPARSE], 400)
    with pytest.raises(UserError, match="--split 1000: these workers can have 8 to 128 hot columns"):
        deal_by_heat(shards, np.ones(400, int), SAMPLES, TrainingOptions(unit=8, split="1000", workers=2))
    with pytest.raises(UserError, match="split must be auto, none or a number of columns, not '-3'"):
        TrainingOptions(split="-3")


def test_the_split_is_told():
    _, found = deal_by_heat(
        shards_of([TINY, SPARSE], 400), np.arange(400), SAMPLES, TrainingOptions(unit=8, split="64", workers=2)
    )
    (text,) = split_remarks(found, 400)
    assert text.startswith("64 hot columns of 400, with 2")
    assert split_remarks(None, 400) == ()


@pytest.mark.parametrize(
    ("configs", "kind"), [([SPARSE], "sparse"), ([WorkerConfig.small()] * 2, "dense"), ([SPARSE, TINY], None)]
)
def test_a_split_without_both_kinds_of_workers_is_told(configs, kind):
    options = TrainingOptions(epochs=1, learning_rate=0.5, split="64", workers=len(configs))
    device = EmulatedDevice(configs[0], len(configs), configs=configs)
    text = f"--split 64 changes nothing: all workers are {kind}"
    assert (text in train(sparse_data(3), options, device).remarks) == (kind is not None)


@pytest.mark.parametrize("more", [{}, {"l2": 1e-3}, {"l1": 1e-4, "staleness": 1}, {"loss": "squared", "bias": False}])
def test_who_has_which_columns_changes_no_weight(more):
    data = sparse_data(3)
    base = TrainingOptions(epochs=2, batch=16, precision=6, learning_rate=0.5, **more)
    kinds = {
        "dense": ([WorkerConfig.small()] * 2, "auto"),
        "sparse": ([SPARSE] * 3, "auto"),
        "split": ([WorkerConfig.small(), SPARSE], "auto"),
        "64": ([SPARSE, WorkerConfig.small(), TINY], "64"),
        "none": ([TINY] * 3 + [SPARSE] * 2, "none"),
    }
    weights, metrics = [], []
    for configs, split in kinds.values():
        options = dataclasses.replace(base, workers=len(configs), split=split)
        result = train(data, options, EmulatedDevice(configs[0], len(configs), configs=configs))
        weights.append(result.model.weights.tolist())
        metrics.append([record.metrics for record in result.history])
        assert sum(result.summary["units"]) == -(-(400 + base.bias) // base.unit_of(400))
    assert weights == weights[:1] * len(kinds)
    assert metrics == metrics[:1] * len(kinds)
    assert any(weights[0])


def test_shards_keep_their_order_when_they_are_stored():
    shard = Shard(0, TINY, np.arange(2), 8, 12).in_order(np.arange(12)[::-1])
    assert shard.placed.tolist() == list(range(11, -1, -1))
    assert shard.in_order(None).columns == slice(0, 12)
