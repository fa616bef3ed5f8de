"""Workers that pass over zeros: which jobs do, who has which units, and what is predicted."""

import dataclasses
import re

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from support.bench import default_seed
from support.directory_cycles import listed_chunks, schedule

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.quantization import quantize
from p4sgd.host.data.scaling import bias_integer
from p4sgd.host.devices import open_device
from p4sgd.host.errors import UserError
from p4sgd.host.image import partition
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.heat import Alternative, Split, WorkerShare, deal_by_heat
from p4sgd.host.training.shares import deal
from p4sgd.host.training.skipping import deal_in_turn, skip_zeros
from p4sgd.hw.spec.config import CLOCK_NS, PRESETS, WorkerConfig
from p4sgd.hw.spec.timing import BOARDS_NETWORK

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=64)
SPARSE = WorkerConfig(engines=3, lanes=8, chunks=64, sparse=True)


def sparse_data(samples=400, columns=600, density=0.002, seed=None):
    """Columns of a power law: the first ones have most values."""
    rng = np.random.default_rng(default_seed() if seed is None else seed)
    chance = density * columns / (1 + np.arange(columns))
    x = (rng.random((samples, columns)) < np.minimum(chance, 0.9)) * rng.integers(1, 5, (samples, columns))
    labels = np.where(rng.random(samples) < 0.5, -1.0, 1.0)
    return Dataset(scipy.sparse.csr_array(x.astype(float)), labels, "made")


def dealt(data, options, configs):
    scaling = Scaling.fit(data.features, options.scaling, planes=options.stored)
    shards = deal(data.feature_count, options, configs)
    if scaling.heat is None:
        return shards, None, scaling
    return *deal_by_heat(shards, scaling.heat, data.samples, options), scaling


def skip(data, configs=(CONFIG, CONFIG), **options):
    chosen = TrainingOptions(**{"batch": 64, "workers": len(configs), **options})
    shards, split, scaling = dealt(data, chosen, configs)
    return skip_zeros(shards, data, scaling, chosen, split)


def skips(found):
    return [shard.directory for shard in found.shards]


def test_sparse_data_are_skipped_if_that_is_faster():
    data = sparse_data()
    assert skips(skip(data)) == [True, True]
    assert skips(skip(data, skip_zeros="never")) == [False, False]
    (remark,) = skip(data).remarks
    assert re.fullmatch(r"dense workers pass over zeros: predicted \S+ instead of \S+ µs a sample on boards", remark)
    assert not skip(data, skip_zeros="never").remarks


def test_where_nothing_is_gained_auto_reads_all_lines():
    """With few columns, the way of the sums takes all the time."""
    data = sparse_data(columns=20)
    assert skips(skip(data)) == [False, False]
    assert skips(skip(data, skip_zeros="always")) == [True, True]


def test_dense_data_are_skipped_only_if_asked():
    data = sparse_data(density=0.1)
    data = Dataset(data.features.toarray(), data.labels, "made")
    assert skips(skip(data)) == [False, False]
    assert skips(skip(data, scaling="maxabs", skip_zeros="always")) == [True, True]


@pytest.mark.parametrize(
    ("configs", "options", "message"),
    [
        (
            [SPARSE],
            {},
            "all workers are sparse, .*: leave --skip-zeros always out, or choose dense ones, such as --config u280",
        ),
        ([CONFIG], {"precision": 4, "planes": 8}, "all 8 stored planes are read, not 4: leave --planes out, or"),
    ],
)
def test_what_cannot_skip(configs, options, message):
    assert not any(skips(skip(sparse_data(), configs, **options)))
    with pytest.raises(UserError, match=message):
        skip(sparse_data(), configs, **options, skip_zeros="always")


def test_scalings_that_change_zeros_cannot_skip():
    data = sparse_data()
    dense = Dataset(data.features.toarray() - 1, data.labels, "made")
    with pytest.raises(UserError, match="scaling standard makes zeros other numbers, so none can be skipped: use the"):
        train(dense, TrainingOptions(epochs=1, skip_zeros="always"), open_device("emulator", PRESETS["u280"](), 1))


def test_there_is_no_other_choice():
    with pytest.raises(UserError, match="there is no skip-zeros 'maybe': choose one of auto, never, always"):
        TrainingOptions(skip_zeros="maybe")


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    sparse=st.integers(0, 2),
    seed=st.integers(0, 1 << 30),
)
def test_every_worker_has_units_of_all_heat(sizes, sparse, seed):
    """As many as before, evenly among those of all dense workers; sparse workers keep theirs."""
    units, total = np.cumsum([0, *sizes]), sum(sizes) * 8 + sparse * 16
    configs = [CONFIG] * len(sizes) + [SPARSE] * sparse
    shards = [
        dataclasses.replace(shard, units=np.arange(*units[[worker, worker + 1]]))
        if worker < len(sizes)
        else dataclasses.replace(shard, units=units[-1] + 2 * (worker - len(sizes)) + np.arange(2))
        for worker, shard in enumerate(partition(total, configs, bias=False, unit=8))
    ]
    heat = np.random.default_rng(seed).integers(0, 100, total)
    found = deal_in_turn(shards, heat)
    assert [shard.units.size for shard in found] == [shard.units.size for shard in shards]
    assert sorted(np.concatenate([shard.units for shard in found]).tolist()) == list(range(units[-1] + 2 * sparse))
    order = np.argsort(-heat, kind="stable")
    for shard, before in zip(found[: len(sizes)], shards, strict=False):
        assert shard.directory
        assert (np.diff(shard.units) > 0).all()
        # Of the first n units of all, a worker has its share; as all round, it may be off by half a unit of each.
        expected = np.arange(1, units[-1] + 1) * before.units.size / units[-1]
        assert (np.abs(np.cumsum(np.isin(np.arange(units[-1]), shard.units)) - expected) <= (1 + len(sizes)) / 2).all()
        own = (shard.units[:, np.newaxis] * 8 + np.arange(8)).reshape(-1)
        assert shard.columns.tolist() == order[own].tolist()
    assert not any(shard.directory for shard in found[len(sizes) :])


@pytest.mark.parametrize(("batch", "precision", "columns"), [(64, 8, 900), (256, 4, 900), (256, 1, 3000)])
def test_the_prediction_is_that_of_the_hardware(batch, precision, columns):
    """Whose schedule is known to the cycle: that of the same samples, of two boards."""
    config = WorkerConfig(engines=2, lanes=16, chunks=128)
    data = sparse_data(samples=1024, columns=columns)
    data.features.data[:] = 3  # others might be rounded to 0
    options = TrainingOptions(
        precision=precision, batch=batch, workers=2, scaling="maxabs", skip_zeros="always", unit=16
    )
    shards, _, scaling = dealt(data, options, [config] * 2)
    found = skip_zeros(shards, data, scaling, options)
    bias = np.full(data.samples, bias_integer(precision, scaling.signed))
    q = np.column_stack((quantize(scaling.apply(data.features), precision, scaling.signed), bias))
    listed = []
    for shard in found.shards:
        listed += listed_chunks(shard.layout(data.samples, precision), q[:, shard.columns].astype(np.int64))
    chunks = max(shard.layout(8, precision).chunks for shard in found.shards)
    begins = schedule(listed, batch // 8, chunks, config, BOARDS_NETWORK).forward_begin[0, :: batch // 8]
    told = float(found.remarks[0].split("predicted ")[1].split()[0])
    assert told == pytest.approx(np.diff(begins).mean() * CLOCK_NS / batch / 1000, rel=0.05)
    assert told < 0.9 * float(found.remarks[0].split("instead of ")[1].split()[0])


def test_a_split_says_what_workers_have_then():
    data = sparse_data(columns=900)
    configs = CONFIG, CONFIG, SPARSE
    found, before = (skip(data, configs, split=640, skip_zeros=each) for each in ("always", "never"))
    assert skips(found) == [True, True, False]
    assert sum(worker.nonzeros for worker in found.split.workers) == pytest.approx(1)
    assert found.split.nonzeros == pytest.approx(before.split.nonzeros)
    assert found.split.columns == before.split.columns
    first, second, cold = found.split.workers
    assert before.split.workers[1].nonzeros < second.nonzeros < first.nonzeros < before.split.workers[0].nonzeros
    assert first.sample_ns < before.split.workers[0].sample_ns
    assert cold == before.split.workers[2]
    assert (found.split.skips_zeros, before.split.skips_zeros) == (True, False)


def test_a_split_of_prepared_data_says_what_workers_have_too():
    """But not what they take: nothing is known of their lines."""
    data = sparse_data(columns=900)
    options = TrainingOptions(workers=3, scaling="maxabs", split="640", skip_zeros="always")
    shards, split, scaling = dealt(data, options, [CONFIG, CONFIG, SPARSE])
    found = skip_zeros(shards, None, scaling, options, split, samples=data.samples)
    known = skip_zeros(shards, data, scaling, options, split)
    assert [worker.nonzeros for worker in found.split.workers] == [worker.nonzeros for worker in known.split.workers]
    assert [worker.sample_ns for worker in found.split.workers] == [worker.sample_ns for worker in split.workers]
    assert (found.split.skips_zeros, known.split.skips_zeros) == (False, True)
    assert found.remarks == ("dense workers pass over zeros",)


def test_alternatives_of_a_split_are_said_to_read_all_lines():
    """Their times are not comparable with those of workers that pass over zeros."""
    alternatives = Alternative(1000, 20.0), Alternative(1000, 10.0)
    before = Split(64, 100, (WorkerShare(False, 64, 0.5, 30.0), WorkerShare(True, 36, 0.5, 9.0)), *alternatives)
    after = dataclasses.replace(before, skips_zeros=True)
    assert str(before).endswith(" µs a sample, but 0.02 without the sparse workers and 0.01 without the dense workers")
    assert str(after) == str(before).replace("sparse workers and", "sparse workers (all lines read) and")


def test_lines_of_zeros_need_no_room():
    """The line FIFO holds no micro-batch of all lines: refused at once, unless zeros are skipped."""
    data, config = sparse_data(columns=900), dataclasses.replace(CONFIG, line_fifo_depth=256)
    options = TrainingOptions(epochs=2, batch=64, workers=1)
    device = open_device("emulator", config, 1)
    with pytest.raises(UserError, match=r"the line FIFO holds 256: .* or for sparse data --skip-zeros always$"):
        train(data, options, device)
    result = train(data, dataclasses.replace(options, skip_zeros="always"), open_device("emulator", config, 1))
    expected = train(data, options, open_device("emulator", dataclasses.replace(config, line_fifo_depth=1024), 1))
    assert result.model.weights.tolist() == expected.model.weights.tolist()
    small = dataclasses.replace(config, line_fifo_depth=64)
    with pytest.raises(UserError, match=r"a micro-batch has .* lines an engine, the line FIFO holds 64"):
        train(data, dataclasses.replace(options, skip_zeros="always"), open_device("emulator", small, 1))
