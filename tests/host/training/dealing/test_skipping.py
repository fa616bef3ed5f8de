"""Workers that pass over zeros: which jobs do, who has which units, and what is predicted."""

import re
from dataclasses import replace
from functools import partial

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
from p4sgd.host.image import Shard, prepare_images
from p4sgd.host.image.contents import Values
from p4sgd.host.image.repartition import first_values
from p4sgd.host.training import TrainingOptions, preparation, train
from p4sgd.host.training.dealing.columns import deal_columns
from p4sgd.host.training.dealing.costs import ListedLines
from p4sgd.host.training.dealing.units import deal_units, partition
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.timing import BOARDS_NETWORK, chaining_cycles, round_trip_cycles

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=64)
SPARSE = WorkerConfig(engines=3, lanes=8, chunks=64, sparse=True)


def sparse_data(samples=400, columns=600, density=0.002, seed=None):
    """Columns of a power law: the first ones have most values."""
    rng = np.random.default_rng(default_seed() if seed is None else seed)
    chance = density * columns / (1 + np.arange(columns))
    x = (rng.random((samples, columns)) < np.minimum(chance, 0.9)) * rng.integers(1, 5, (samples, columns))
    labels = np.where(rng.random(samples) < 0.5, -1.0, 1.0)
    return Dataset(scipy.sparse.csr_array(x.astype(float)), labels, "made")


def skip(data, configs=(CONFIG, CONFIG), **options):
    """The workers of a run with these options."""
    return skipping(data, configs, **options)[0]


def run(data, config, **options):
    return train(data, TrainingOptions(**options), open_device("emulator", config, 1))


def skipping(data, configs, *, may_read_zeros=False, network=False, asked=None, **options):
    chosen = TrainingOptions(**{"batch": 64, "workers": len(configs), **options})
    scaling = Scaling.fit(data.features, chosen.scaling, planes=chosen.stored)
    shards = deal_units(data.feature_count, chosen, configs)
    values = partial(preparation.quantized_rows, data, scaling, chosen)

    def note(count):
        asked.append(count)
        return values(count)

    how = {"values": values if asked is None else note, "may_read_zeros": may_read_zeros, "network": network}
    return deal_columns(shards, scaling, chosen, samples=data.samples, **how), scaling, chosen


def skips(found):
    return [shard.directory for shard in found.shards]


def quantised(data, scaling, options):
    """S-bit integers of all samples, int64 (samples, features), with the bias."""
    bias = np.full(data.samples, bias_integer(options.stored, scaling.signed))
    return np.column_stack((quantize(scaling.apply(data.features), options.stored, scaling.signed), bias)).astype(int)


def boards_ns(shards, q, options):
    """Time of boards for a sample, in ns, by the schedule to which the RTL is held."""
    listed = []
    for shard in shards:
        listed += listed_chunks(shard.layout(q.shape[0], options.precision), q[:, shard.columns])
    chunks = max(shard.layout(8, options.precision).chunks for shard in shards)
    step = options.batch // 8
    begins = schedule(listed, step, chunks, shards[0].config, BOARDS_NETWORK).forward_begin[0, ::step]
    return np.diff(begins).mean() * CLOCK_NS / options.batch


def test_sparse_data_are_skipped_if_that_is_faster():
    """Dense data only if that is asked for."""
    data, few = sparse_data(), sparse_data(columns=20)  # of few columns the way of the sums takes all the time
    dense = Dataset(sparse_data(density=0.1).features.toarray(), data.labels, "made")
    told = r"dense workers pass over zeros: predicted \S+ µs a sample on boards, \S+ µs if they read all lines"
    for samples, options, expected in (
        (data, {}, True),
        (data, {"skip_zeros": "never"}, False),
        (few, {}, False),
        (few, {"skip_zeros": "always"}, True),
        (dense, {}, False),
        (dense, {"scaling": "maxabs", "skip_zeros": "always"}, True),
    ):
        found = skip(samples, **options)
        assert skips(found) == [expected] * 2
        assert bool(found.remark and re.fullmatch(told, found.remark)) == expected
    mixed = skip(dense, (CONFIG, CONFIG, SPARSE), scaling="maxabs", skip_zeros="always")
    assert skips(mixed) == [True, True, False]


@pytest.mark.parametrize(
    ("configs", "options", "message"),
    [
        ([SPARSE], {}, "all workers are sparse, .* --skip-zeros never, or dense workers, such as --config u280"),
        ([CONFIG], {"precision": 4, "planes": 8}, "all 8 stored planes are read then, not 4: .* --skip-zeros never"),
    ],
)
def test_what_cannot_skip(configs, options, message):
    """It is an error only where somebody asks it of these workers."""
    data = sparse_data()
    with pytest.raises(UserError, match=message):
        skip(data, configs, **options, skip_zeros="always")
    for more in ({}, {"may_read_zeros": True, "skip_zeros": "always"}):
        assert not any(skips(skip(data, configs, **options, **more)))
    dense = Dataset(data.features.toarray() - 1, data.labels, "made")
    with pytest.raises(UserError, match="scaling standard makes zeros other numbers, so none can be skipped: use the"):
        skip(dense, [CONFIG], scaling="standard", skip_zeros="always")


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 1 << 30))
def test_every_worker_has_units_of_all_heat(sizes, seed):
    """As many as before, and of the first n units of all those that it would get of n."""
    units, total = np.cumsum([0, *sizes]), sum(sizes) * 8
    shards = [
        replace(shard, units=np.arange(*units[[worker, worker + 1]]))
        for worker, shard in enumerate(partition(total, [CONFIG] * len(sizes), bias=False, unit=8))
    ]
    data = sparse_data(samples=16, columns=total, seed=seed)
    options = TrainingOptions(batch=8, workers=len(sizes), bias=False, skip_zeros="always", scaling="maxabs")
    scaling = Scaling.fit(data.features, "maxabs", planes=8)
    values = partial(preparation.quantized_rows, data, scaling, options)
    found = deal_columns(shards, scaling, options, samples=16, values=values).shards
    assert [shard.units.size for shard in found] == sizes
    assert sorted(np.concatenate([shard.units for shard in found]).tolist()) == list(range(units[-1]))
    assert all(shard.directory and (np.diff(shard.units) > 0).all() for shard in found)
    for count in range(len(sizes), units[-1] + 1):
        held = [int((shard.units < count).sum()) for shard in found]
        # The largest number of units for a share could not be smaller: to give one away would raise another's.
        assert min(held) > 0
        assert max((np.array(held) - 1) / sizes) <= min((np.array(held) + 1) / sizes)


@given(data=st.data())
def test_predictions_count_the_lines_of_the_image(data):
    """By the definition of an image with directories, for units of several chunks and part of one."""
    draw = data.draw
    config = WorkerConfig(engines=draw(st.integers(1, 4)), lanes=draw(st.sampled_from([8, 16])), chunks=64)
    unit, stale, bias = draw(st.sampled_from([8, 16, 32])), draw(st.booleans()), draw(st.booleans())
    columns, stored = draw(st.integers(40, 300)), draw(st.integers(1, 8))
    samples, batch = 8 * draw(st.integers(1, 6)), 16
    options = TrainingOptions(batch=batch, precision=stored, staleness=int(stale), bias=bias, unit=unit)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    total = columns + bias
    q = (rng.random((samples, total)) < rng.random(total) ** 8) * rng.integers(0, 1 << stored, (samples, total))
    order = rng.permutation(total).astype(np.int32)
    count = -(-total // unit)
    own = np.flatnonzero(rng.random(count) < 0.6)
    shard = Shard(0, config, own if own.size else np.arange(1), unit, total, directory=True).in_order(order)
    rows, places = np.nonzero(q)
    values = Values(rows, places, q[rows, places].astype(np.uint8))
    end = Values(np.array([samples - 1]), np.array([0]), np.zeros(1, np.uint8))  # there may be samples without values
    lines = ListedLines(Values.join([values, end]), order, unit, total, options)
    layout, engines = shard.layout(samples, stored), []
    for engine in listed_chunks(layout, q[:, shard.columns]):
        micro_batches, absent = [], [2 * (layout.chunks - len(listed)) for listed in engine]
        for listed in engine:
            directories = -(-len(listed) // layout.line_descriptors)
            forward = sum(count for _, count, _ in listed) + 2 * directories
            micro_batches.append(max(16, forward, sum(max(planes, 2) for _, _, planes in listed)))
        if samples < batch:
            engines.append([2 * micro_batches[0] + absent[0]])
        else:
            pairs = zip(micro_batches[::2], micro_batches[1::2], absent[1::2], strict=False)
            engines.append([sum(pair) for pair in pairs])
    slowest = np.max(engines, axis=0).mean()
    way = round_trip_cycles(config, BOARDS_NETWORK) + chaining_cycles(stored)
    cycles = max(slowest, (slowest + way) / 2) if stale else slowest + way
    assert lines.sample_ns([shard]) == pytest.approx(cycles * CLOCK_NS / batch)


@pytest.mark.parametrize(
    ("batch", "precision", "density"),
    [(64, 8, 0.001), (256, 4, 0.003)],
)
def test_the_split_is_for_boards_that_skip_zeros(batch, precision, density):
    """By the schedule of the hardware, no other number of columns has a slowest worker that is clearly faster."""
    config = WorkerConfig(engines=2, lanes=16, chunks=128)
    sparse = WorkerConfig(engines=3, lanes=16, chunks=512, sparse=True)
    data = sparse_data(samples=1024, columns=3000, density=density)
    options = {"precision": precision, "batch": batch, "scaling": "none", "skip_zeros": "always", "unit": 16}

    def at(split):
        found, scaling, chosen = skipping(data, [config] * 2 + [sparse], **options, split=split)
        dense = boards_ns(found.shards[:2], quantised(data, scaling, chosen), chosen)
        cold = found.split.workers[2].sample_ns
        assert found.split.sample_ns == pytest.approx(max(dense, cold), rel=0.05)
        return max(dense, cold), found.split

    time, _ = at("auto")
    others = np.unique(np.geomspace(32, 3000, 12).astype(int) // 16 * 16)
    assert time <= 1.05 * min(at(str(other))[0] for other in others)
    # Of other data as many columns may be best, or one board always slower.
    data = sparse_data(samples=1024, columns=3000, density=density, seed=5)
    _, chosen = at("auto")
    before = skip(data, [config] * 2 + [sparse], **options | {"skip_zeros": "never"}).split
    assert chosen.columns > before.columns  # there is time for more
    assert chosen.sample_ns < before.sample_ns
    _, most = at(str(others[-2]))
    each = [worker.sample_ns for worker in most.workers]
    assert most.sample_ns > max(each) == max(each[:2])  # now one board is the slowest, now the other


def test_the_split_decides_whether_zeros_are_skipped():
    """If packets are what takes the time of the sparse worker, nothing is gained."""
    data, configs = (
        sparse_data(columns=3000, density=0.0003),
        (replace(CONFIG, chunks=256, line_fifo_depth=2048), SPARSE),
    )
    told = r"dense workers pass over zeros: predicted (\S+) µs a sample with sparse workers, (\S+) µs .*"
    found = skip(data, configs, batch=256)
    assert skips(found) == [True, False]
    assert re.fullmatch(told, found.remark)[1] == f"{found.split.sample_ns / 1000:.3g}"
    assert not any(skips(skip(data, configs, batch=256, network=True)))
    asked = skip(data, configs, batch=256, network=True, skip_zeros="always")
    assert len(set(re.fullmatch(told, asked.remark).groups())) == 1  # packets take all the time


@pytest.mark.parametrize("samples", [5, 200, 600])
@pytest.mark.parametrize("kinds", [(CONFIG,), (SPARSE,), (CONFIG, SPARSE)])
@pytest.mark.parametrize("skip_zeros", ["never", "always"])
def test_plans_of_data_and_of_their_images_see_the_same(kinds, skip_zeros, samples):
    """Values of all samples, or of whole micro-batches, because images have no parts of them."""
    if skip_zeros == "always" and all(kind.sparse for kind in kinds):
        return
    data, asked = sparse_data(samples), []
    found, scaling, options = skipping(data, kinds, skip_zeros=skip_zeros, asked=asked)
    assert asked == [min(samples, 512)] * (skip_zeros == "always")
    images = prepare_images(data, np.zeros(data.samples, np.int64), scaling, found.shards, stored=8, batch=64)
    count = min(samples, 96)

    def listed(values):
        there = values.of((values.rows < count) & (values.values != 0))
        return sorted(zip(there.rows.tolist(), there.columns.tolist(), there.values.tolist(), strict=True))

    assert (
        listed(first_values(images, count)) == listed(preparation.quantized_rows(data, scaling, options, count)) != []
    )


def test_lines_of_zeros_and_directories_need_no_room():
    """The line FIFO holds no micro-batch of all lines: refused at once, unless zeros are skipped. It holds the 128
    lines of 16 chunks, whatever lists them: in a session and in the emulator."""
    data, config, options = sparse_data(columns=900), replace(CONFIG, line_fifo_depth=256), {"epochs": 2, "batch": 64}
    with pytest.raises(UserError, match=r"the line FIFO holds 256: .* or for sparse data --skip-zeros always$"):
        run(data, config, **options)
    expected = run(data, replace(config, line_fifo_depth=1024), **options).model.weights.tolist()
    assert run(data, config, **options, skip_zeros="always").model.weights.tolist() == expected
    config = WorkerConfig(engines=1, lanes=8, chunks=64, line_fifo_depth=128)
    options = {"epochs": 1, "batch": 64, "scaling": "maxabs", "bias": False, "learning_rate": 0.1}

    def samples(chunks):
        features = np.zeros((64, 320))
        features[:, 312 - 16 * np.arange(chunks)] = 1  # in all 8 planes; the last chunk, always listed, has one
        return Dataset(features, np.where(np.arange(64) % 2, -1.0, 1.0), "made")

    with pytest.raises(UserError, match="a micro-batch has 136 lines an engine, the line FIFO holds 128"):
        run(samples(17), config, **options, skip_zeros="always")
    expected = run(samples(16), replace(config, line_fifo_depth=512), **options, skip_zeros="never")
    found = run(samples(16), config, **options, skip_zeros="always")
    assert found.model.weights.tolist() == expected.model.weights.tolist()
