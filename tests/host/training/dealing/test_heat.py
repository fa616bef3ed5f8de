"""Columns by heat, and their split between dense and sparse workers."""

import contextlib
import dataclasses
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from p4sgd.host.data import Scaling
from p4sgd.host.errors import UserError
from p4sgd.host.image import Shard
from p4sgd.host.image.contents import Values
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.dealing.columns import deal_columns
from p4sgd.host.training.dealing.costs import ENTRY_NS, PACKETS_NS
from p4sgd.host.training.dealing.units import partition, take_turns, units_held
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.timing import BOARDS_NETWORK, mini_batch_cycles

TINY, SPARSE = WorkerConfig.tiny(), WorkerConfig.sparse_worker()
SAMPLES = 1000


def shards_of(configs, features, unit=8):
    return partition(features, configs, bias=True, unit=unit)


def deal_by_heat(shards, heat, samples, options, network=False):
    """Shards and split for boards that read all lines, unless zeros are always skipped."""
    scaling = Scaling("none", np.zeros(heat.size), np.ones(heat.size), signed=True, heat=heat)
    nothing = Values(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8))
    if options.skip_zeros != "always":
        options = dataclasses.replace(options, skip_zeros="never")
    dealt = deal_columns(shards, scaling, options, samples=samples, values=lambda count: nothing, network=network)
    return dealt.shards, dealt.split


@settings(max_examples=50)
@given(
    seed=st.integers(0, 1 << 30),
    features=st.integers(60, 300),
    sparse=st.lists(st.booleans(), min_size=1, max_size=6),
    split=st.sampled_from(["auto", "none"]),
)
def test_every_column_is_dealt_once(seed, features, sparse, split):
    """In the order of heat, equal ones in their own order, the bias last: the first units to dense workers."""
    heat = np.random.default_rng(seed).integers(0, SAMPLES, features)
    configs = [SPARSE if each else WorkerConfig.small() for each in sparse]
    options = TrainingOptions(unit=8, precision=4, split=split, workers=len(configs))
    dealt, found = deal_by_heat(shards_of(configs, features), heat, SAMPLES, options)
    assert [shard.config for shard in dealt] == configs
    in_order = sorted(dealt, key=lambda shard: shard.units[0])
    expected = [*sorted(range(features), key=lambda column: (-heat[column], column)), features]
    assert np.concatenate([shard.placed for shard in in_order]).tolist() == expected
    assert [shard.config.sparse for shard in in_order] == sorted(sparse)
    assert (found is None) == (len(set(sparse)) == 1)


DENSE_KINDS = [TINY, WorkerConfig.small(), WorkerConfig(engines=3, lanes=16, chunks=4)]
SPARSE_KINDS = [SPARSE, WorkerConfig(engines=3, lanes=8, chunks=16, sparse=True)]


def time_of(shard, nonzeros, samples, options, network):
    """Predicted ns of a worker for a sample, from what it was dealt."""
    if shard.config.sparse:
        return nonzeros[shard.columns].sum() / samples * ENTRY_NS + (PACKETS_NS if network else 0)
    stale, chunks = bool(options.staleness), shard.layout(options.batch, options.precision).chunks
    cycles = mini_batch_cycles(shard.config, options.batch, chunks, options.precision, BOARDS_NETWORK, stale=stale)
    return cycles * CLOCK_NS / options.batch


@settings(max_examples=60)
@given(data=st.data())
def test_the_split_is_the_best_of_all(data):
    """No other number of hot units has a faster slowest worker, and every time is that of what a worker was dealt."""
    features, unit = data.draw(st.integers(60, 700)), data.draw(st.sampled_from([8, 16]))
    kinds = data.draw(st.lists(st.sampled_from(DENSE_KINDS), min_size=1, max_size=3))
    kinds += data.draw(st.lists(st.sampled_from(SPARSE_KINDS), min_size=1, max_size=3))
    kinds = data.draw(st.permutations(kinds))
    network, workers = data.draw(st.booleans()), len(kinds)
    options = TrainingOptions(
        unit=unit,
        precision=data.draw(st.sampled_from([1, 3, 8])),
        batch=data.draw(st.sampled_from([8, 32])),
        staleness=data.draw(st.integers(0, 1)),
        workers=workers,
    )
    stale = bool(options.staleness)
    try:
        shards = partition(
            features,
            kinds,
            bias=True,
            unit=unit,
            precision=options.precision,
            stale=stale,
            shares=data.draw(st.lists(st.sampled_from([1.0, 1.5, 4.0]), min_size=workers, max_size=workers)),
        )
    except UserError:
        assume(False)
    rooms = [units_held(config, unit, options.precision, stale=stale) for config in kinds]
    assume(sum(rooms) >= -(-shards[0].total // unit))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    samples = 20 * SAMPLES
    heat = rng.permutation((rng.zipf(1.3, features) * data.draw(st.integers(0, 300))).clip(0, samples))
    nonzeros = np.append(heat, samples)

    def times(dealt):
        return [time_of(shard, nonzeros, samples, options, network) for shard in dealt]

    def split_at(text):
        dealt, split = deal_by_heat(shards, heat, samples, dataclasses.replace(options, split=text), network=network)
        assert [worker.sample_ns for worker in split.workers] == pytest.approx(times(dealt))
        hot = [shard.units.size for shard in dealt if not shard.config.sparse]
        assert split.columns == min(sum(hot) * unit, shards[0].total)
        shares = [
            (room, shard.units.size) for room, shard in zip(rooms, shards, strict=True) if not shard.config.sparse
        ]
        assert hot == np.bincount(take_turns(sum(hot), *zip(*shares, strict=True))).tolist()
        assert all(shard.units.size <= room for shard, room in zip(dealt, rooms, strict=True))
        return split

    found, best = split_at("auto"), np.inf
    for hot in range(1, -(-shards[0].total // unit) + 1):
        with contextlib.suppress(UserError):
            best = min(best, split_at(str(hot * unit)).sample_ns)
    assert found.sample_ns == best
    # Alone, the workers of a kind would be dealt all columns.
    for sparse, other in ((False, found.all_dense), (True, found.all_sparse)):
        alone = [shard for shard in shards if shard.config.sparse == sparse]
        held = [rooms[shard.worker] for shard in alone]
        assert other.room == sum(held) * unit
        if other.room < shards[0].total:
            assert other.sample_ns is None
            continue
        alone = [dataclasses.replace(shard, worker=worker) for worker, shard in enumerate(alone)]
        dealt, _ = deal_by_heat(alone, heat, samples, options)
        if not sparse:
            turns = take_turns(-(-shards[0].total // unit), held, [shard.units.size for shard in alone])
            dealt = [dataclasses.replace(each, units=np.flatnonzero(turns == n)) for n, each in enumerate(alone)]
        assert other.sample_ns == pytest.approx(max(times(dealt)))


@pytest.mark.parametrize(
    ("heat", "shares", "units"),
    [
        # The first one has a hot unit, the last one the bias, which is in all samples.
        (np.append(np.full(8, 900), np.full(791, 9)), None, [8, 92]),
        # A worker that should have three times as many columns has three times as many nonzeros.
        (np.full(800, 5), [3, 1], [75, 25]),
    ],
)
def test_sparse_workers_share_the_nonzeros(heat, shares, units):
    shards = partition(heat.size, [SPARSE] * 2, bias=shares is None, unit=8, shares=shares)
    dealt, _ = deal_by_heat(shards, heat, SAMPLES, TrainingOptions(unit=8, workers=2))
    assert [shard.units.size for shard in dealt] == units


@pytest.mark.parametrize(("lines", "skip_zeros", "most"), [(128, "auto", 128), (64, "auto", 64), (64, "always", 128)])
def test_a_split_that_the_workers_cannot_hold(lines, skip_zeros, most):
    """Half of what they could, if the line FIFO holds all planes of half of the chunks, unless zeros are skipped."""
    shards = shards_of([dataclasses.replace(TINY, line_fifo_depth=lines), SPARSE], 400)
    options = TrainingOptions(unit=8, precision=8, split="1000", workers=2, skip_zeros=skip_zeros)
    with pytest.raises(UserError, match=f"--split 1000: these workers can have 8 to {most} hot columns"):
        deal_by_heat(shards, np.ones(400, int), SAMPLES, options)
    shards = [Shard(worker, kind, np.arange(1), 8, 1600) for worker, kind in enumerate([TINY, SPARSE_KINDS[1]])]
    says = "cannot share 200 units of columns: 1 dense ones hold 16, 1 sparse ones 48, and each needs one"
    with pytest.raises(UserError, match=says):
        deal_by_heat(shards, np.ones(1600, int), SAMPLES, TrainingOptions(unit=8, workers=2))


def test_a_split_that_does_not_pay_is_told():
    shards = shards_of([WorkerConfig.small(), SPARSE], 400)
    options = TrainingOptions(unit=8, batch=64, precision=8, split="64", workers=2)
    _, split = deal_by_heat(shards, np.arange(400) + 600, SAMPLES, options)
    told = (
        r"^64 hot columns of 401 .*, with 19\.3% of the nonzeros.* predicted 1\.04 µs .*, but 0\.122 on boards alone$"
    )
    assert re.search(told, str(split))
