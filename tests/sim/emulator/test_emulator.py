"""The emulated device against the golden model, register by register and bit by bit."""

import dataclasses
import threading
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.jobs import SMALL, collect, configure, deal, random_job, run_on, start
from support.run_limits import ORDINARY, ROOMS, cases

from p4sgd.host.devices.device import client_of
from p4sgd.host.losses import LOSSES
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import IMPORTANCE
from p4sgd.hw.spec.image import ImageLayout, pack_labels
from p4sgd.hw.spec.run import UNITS, FeatureFormat, LossTable
from p4sgd.sim import dense, features, parallel
from p4sgd.sim.dense import KEPT_BYTES, DenseFeatures
from p4sgd.sim.emulator import EmulatedDevice, EmulatorError
from p4sgd.sim.emulator.worker import read_settings
from p4sgd.sim.features import shared_features
from p4sgd.sim.lines import Lines
from p4sgd.sim.sparse import model as sparse_model
from p4sgd.sim.sparse import penalties
from p4sgd.sim.sparse.model import SparseFeatures

configs = st.builds(
    WorkerConfig,
    engines=st.integers(1, 3),
    ports=st.integers(1, 2),
    lanes=st.sampled_from([8, 16, 64]),
    chunks=st.just(16),
    line_fifo_depth=st.just(128),
    table_segments=st.sampled_from([16, 256]),
)


@settings(max_examples=80)
@given(
    config=configs,
    workers=st.integers(1, 5),
    seed=st.integers(0, 1 << 30),
    wild=st.booleans(),
    runs=st.integers(1, 2),
    stale=st.booleans(),
    zeros=st.sampled_from([0.0, 0.0, 0.3, 0.9]),
    kept=st.sampled_from([KEPT_BYTES, 0]),
    part=st.sampled_from([1 << 26, 1]),
    threads=st.sampled_from([1, 2, 3, 7]),
    kind=st.sampled_from(["lines", "lines of zeros", "entries", "directories"]),
    step_time=st.sampled_from([0.0, 2.0, 6.0, 1e9]),
)
def test_bit_identical_to_golden(config, workers, seed, wild, runs, stale, zeros, kept, part, threads, kind, step_time):
    """Also with features that are 0 in all samples, if no decoded features are kept, in several parts and threads.

    Lines of mostly zeros become entries, of which all columns, some or none catch up with penalties.
    """
    if kind == "entries":
        config = dataclasses.replace(config, engines=3, sparse=True)
    precision = seed % 8 + 1 if kind == "directories" else None  # with directories all planes are read
    job = random_job(config, workers, seed=seed, wild=wild, stale=stale, precision=precision, stored=precision)
    job.directories = frozenset(range(workers) if kind == "directories" else ())
    rng = np.random.default_rng(seed)
    for stored in job.stored:
        stored[:, rng.random(stored.shape[1]) < zeros] = 0
        if kind not in ("lines", "directories"):
            stored[rng.random(stored.shape) < (0.8 if kind == "entries" else 0.98)] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "KEPT_BYTES", kept)
        patch.setattr(dense, "_PART", part)
        patch.setattr(sparse_model, "_PART", part)
        patch.setattr(sparse_model, "_THREAD_ENTRIES", 1)
        patch.setattr(penalties, "_STEP_TIME", step_time)
        patch.setattr(features, "_LEAST", 1)
        patch.setattr(features, "_SAMPLED", 100)
        patch.setattr(parallel, "THREADS", threads)
        patch.setattr(dense, "_THREAD_FEATURES", 1)
        weights, status, _ = run_on(EmulatedDevice(config, workers), job, runs=runs)
    expected = job.golden(runs)
    for got, wanted in zip(weights, expected.weights, strict=True):
        np.testing.assert_array_equal(got, wanted)
    for got, wanted in zip(status, expected.flags, strict=True):
        assert {name: bool(got[name]) for name in vars(wanted)} == vars(wanted)


def test_weights_of_samples_are_at_most_1():
    """A larger one would not fit the hardware's factor."""
    for weight in (-1, IMPORTANCE.one + 1):
        job = random_job(WorkerConfig.tiny(), 1, seed=4, weighted=True)
        job.importances[3] = weight
        with pytest.raises(EmulatorError, match=r"worker 0: a weight of a sample is not in 0\.\.1"):
            run_on(EmulatedDevice(job.config, 1), job)


def test_workers_may_differ_in_their_settings():
    """As boards may: each uses its own learning rate."""
    job = random_job(WorkerConfig.tiny(), 2, seed=4, mini_batches=1)
    rate = job.settings.rate_mantissa // 2 + 1
    other = dataclasses.replace(job, settings=dataclasses.replace(job.settings, rate_mantissa=rate))
    device = EmulatedDevice(job.config, 2)
    clients = configure(device.workers, job)
    clients[1].write(registers.RATE, mantissa=rate, gradient_shift=job.settings.gradient_shift)
    start(clients, job)
    device.wait()
    weights, _, _ = collect(device.workers, clients, job)
    expected = job.golden().weights[0], other.golden().weights[1]
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in expected]
    assert weights[1].tolist() != job.golden().weights[1].tolist()


@pytest.mark.parametrize("changed", ["rate", "table", "table at once", "labels"])
def test_a_run_sees_what_has_changed_since_the_last(changed):
    """Though a worker keeps what it has read from registers and memory as long as nothing changes."""
    job = random_job(WorkerConfig.tiny(), 1, seed=4, mini_batches=1, weighted=False)
    device = EmulatedDevice(job.config, 1)
    (client,), (worker,), weights = configure(device.workers, job), device.workers, job.weights
    for run in range(4):
        job = dataclasses.replace(job, weights=weights)
        if run == 2 and changed == "rate":
            rate = job.settings.rate_mantissa // 2 + 1
            job.settings = dataclasses.replace(job.settings, rate_mantissa=rate)
            client.write(registers.RATE, mantissa=rate, gradient_shift=job.settings.gradient_shift)
        elif run == 2 and changed == "table at once":
            job.table = LossTable(job.table.shift - 1, job.table.slope // 2, job.table.intercept // 2)
            worker.write_table(job.table)
        elif run == 2 and changed == "table":
            job.table = dataclasses.replace(job.table, intercept=job.table.intercept // 2)
            client.write(registers.TABLE_INDEX, value=0)
            for slope, intercept in zip(job.table.slope.tolist(), job.table.intercept.tolist(), strict=True):
                client.write(registers.TABLE_SLOPE, value=slope)
                client.write(registers.TABLE_INTERCEPT, value=intercept)
        elif run == 2:
            job.labels = job.labels[::-1]
            worker.write_memory(job.config.labels_memory, 0, pack_labels(job.labels, None))
        start([client], job)
        device.wait()
        weights, *_ = collect([worker], [client], job)
        assert [each.tolist() for each in weights] == [each.tolist() for each in job.golden().weights]


def test_decoded_features_are_shared_by_what_they_are():
    """Of the same arrays: others only if fewer planes are read, or with another unit."""
    layout = ImageLayout(WorkerConfig.tiny(), 20, 16, 8)
    q = np.random.default_rng(0).integers(0, 256, (16, 20))
    parts = tuple(layout.pack_lines(q))

    def lines(precision, unit):
        return [Lines(parts, FeatureFormat(8, precision, False), unit)]

    first = shared_features(lines(8, 8))
    assert shared_features(lines(8, 8)) is first
    assert shared_features(lines(8, 16)) is not first
    fewer = shared_features(lines(2, 8))
    assert fewer.rows(slice(0, 16))[0].max() == 3 < first.rows(slice(0, 16))[0].max()
    copied = shared_features([Lines(tuple(part.copy() for part in parts), FeatureFormat(8, 8, False), 8)])
    assert copied is not first


@pytest.mark.parametrize("failing", [0, 1, 2, "start"])
def test_a_thread_that_fails_or_cannot_be_started_does_not_keep_the_others_waiting(monkeypatch, failing):
    job = random_job(WorkerConfig.tiny(), 3, seed=2)
    monkeypatch.setattr(parallel, "THREADS", 3)
    monkeypatch.setattr(dense, "_THREAD_FEATURES", 1)
    compiled, seen, starts = dense.train, [], []

    def train(team, *arguments):
        seen.append(team.thread)
        if team.thread == failing:
            raise MemoryError("no memory left")
        return compiled(team, *arguments)

    class Limited(threading.Thread):
        def start(self):
            starts.append(self)
            if failing == "start" and len(starts) == 3:  # the first one starts the others
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(dense, "train", train)
    monkeypatch.setattr(parallel.threading, "Thread", Limited)
    with pytest.raises(RuntimeError if failing == "start" else MemoryError):
        run_on(EmulatedDevice(job.config, 3), job)
    assert sorted(seen) == ([0, 1] if failing == "start" else [0, 1, 2])


def test_dot_products_beyond_float_precision():
    """Weights and features at their limits: only sums of units are exact in float64."""
    config = WorkerConfig(engines=1, lanes=64, chunks=1024, line_fifo_depth=8192)
    features = 40_000
    layout = ImageLayout(config, features, 8, 8)
    q = np.full((8, features), 255)
    q[1::2] = 254
    weights = np.full(layout.padded_features, (1 << 31) - 1, np.int32)
    weights[features:] = 0
    assert weights.sum(dtype=np.float64) * 255 > 2.0**53
    lines = np.ascontiguousarray(layout.pack_lines(q)[0])
    got = DenseFeatures([Lines((lines,), FeatureFormat(8, 8, False), 64)]).activations([layout.scatter(weights)])
    np.testing.assert_array_equal(got, q.sum(axis=1) * ((1 << 31) - 1))


@settings(max_examples=40)
@given(
    configs,
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(1, 8),
    st.booleans(),
    st.integers(0, 1 << 30),
    st.sampled_from([KEPT_BYTES, 0]),
)
def test_activations_of_any_planes(config, columns, samples, planes, signed, seed, kept):
    rng = np.random.default_rng(seed)
    low, high = (-(1 << planes - 1), 1 << planes - 1) if signed else (0, 1 << planes)
    q = rng.integers(low, high, (samples, columns))
    layout = ImageLayout(config, columns, samples, planes, int(rng.choice(UNITS)))
    lines = layout.pack_lines(q)
    precision = int(rng.integers(1, planes + 1))
    weights = rng.integers(-(1 << 31), 1 << 31, columns)
    scattered = layout.scatter(layout.pad(weights.astype(np.int32)))
    source = Lines(tuple(lines), FeatureFormat(planes, precision, signed), layout.unit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "KEPT_BYTES", kept)
        patch.setattr(dense, "_BLOCK", 1)
        got = DenseFeatures([source]).activations([scattered])
        patch.setattr(features, "_LEAST", 0)
        patch.setattr(features, "_SPARSE", 1)
        patch.setattr(features, "_SAMPLED", 100)
        entries = shared_features([source])
        assert isinstance(entries, SparseFeatures)
        np.testing.assert_array_equal(entries.activations([scattered]), got)
    np.testing.assert_array_equal(got[:samples], (q >> (planes - precision)) @ weights)
    assert not got[samples:].any()


@pytest.mark.parametrize(
    ("register", "fields", "message"),
    [
        (registers.JOB, {"job": 0, "shard": 0, "workers": 3}, "cluster"),
        (registers.JOB, {"job": 0, "shard": 1, "workers": 2}, r"shard.*\[1, 1\]"),
        (registers.MINI_BATCHES, {"value": 1000}, "not written"),
        (registers.LABELS_ADDRESS[0], {"value": 32}, "4096"),
        (registers.FORMAT, {"precision": 4, "stored": 8, "unit_chunks": 1}, "worker 0: 3 chunks are no whole number"),
        (None, {}, r"\[0\] were not started"),
    ],
)
def test_impossible_runs_are_refused(register, fields, message):
    device = EmulatedDevice(WorkerConfig.tiny(), 2)
    run_on(device, random_job(WorkerConfig.tiny(), 2, seed=3))
    clients = [client_of(worker) for worker in device.workers]
    for client in clients if register is registers.MINI_BATCHES else clients[:1] if register else ():
        client.write(register, **fields)
    for client in clients[register is None :]:
        client.write(registers.CTRL, start=1)
    with pytest.raises(EmulatorError, match=message):
        device.wait()
    assert clients[0].read(registers.CTRL)["idle"] == 1


def sparse_worker():
    """A sparse worker with an image, which runs."""
    job = random_job(SMALL, 1, seed=0, micro_batches=2, mini_batches=2)
    job = dataclasses.replace(job, sparse=frozenset([0]))
    device = EmulatedDevice(job.configs[0], 1)
    clients = configure(device.workers, job)
    start(clients, job)
    device.wait()
    return device, clients, job


@pytest.mark.parametrize(
    ("memory", "change", "says"),
    [
        (0, lambda starts: starts.view("<i8")[::-1].copy(), "memory 0 does not say where entries begin"),
        (0, lambda starts: starts.view("<i8") - 1, "memory 0 does not say where entries begin"),
        (0, lambda starts: starts.view("<i8") << 40, "memory 1: bytes .* were not written"),
        (1, lambda keys: keys.view("<u4")[::-1].copy(), "no list of entries"),
        (1, lambda keys: keys.view("<u4") | 1 << 31, "no list of entries"),
        (1, lambda keys: keys.view("<u4") * 0, "no list of entries"),
    ],
)
def test_what_is_no_list_of_entries_is_refused(memory, change, says):
    device, clients, job = sparse_worker()
    (worker,) = device.workers
    worker.write_memory(memory, 0, change(job.memories(0)[memory]).view(np.uint8))
    start(clients, job)
    with pytest.raises(EmulatorError, match=f"worker 0.*{says}"):
        device.wait()
    configure(device.workers, job)
    start(clients, job)
    device.wait()


def directory_worker(config=WorkerConfig.tiny(), *, fewer=0):
    """A worker with an image that has directories; it reads so many mini-batches less than there are."""
    job = random_job(config, 1, seed=5, precision=4, stored=4, chunks=3, mini_batches=4)
    job.directories = frozenset([0])
    job.stored[0][np.random.default_rng(5).random(job.stored[0].shape) < 0.8] = 0
    device = EmulatedDevice(config, 1)
    clients = configure(device.workers, job)
    read = job.settings.mini_batches - fewer
    clients[0].write(registers.MINI_BATCHES, value=read)
    _, starts = job.layout(0).pack_directories(job.stored[0])
    for engine in range(config.engines):
        clients[0].write_pair(registers.lines_count(engine), int(starts[engine, read * job.settings.micro_batches]))
    return device, clients, job


def test_a_run_may_read_the_first_mini_batches_of_an_image_with_directories():
    device, clients, job = directory_worker(SMALL, fewer=2)
    start(clients, job)
    device.wait()
    weights, _, _ = collect(device.workers, clients, job)
    part = dataclasses.replace(job, settings=dataclasses.replace(job.settings, mini_batches=2))
    assert weights[0].tolist() == part.golden().weights[0].tolist()
    assert weights[0].tolist() != job.golden().weights[0].tolist()


def test_what_is_no_directory_is_refused():
    def lines(count):
        return lambda worker, client, image: client.write_pair(registers.lines_count(0), count)

    for change, says in (
        (lines(0), "every engine of a run with directories has lines"),
        (lines(1), "the lines end in the middle"),
        (lines(1 << 39), "bytes .* were not written"),
        (
            lambda worker, client, image: worker.write_memory(0, 0, image ^ 0xFF),
            "engine 0, micro-batch 0: the directory",
        ),
        (
            lambda worker, client, image: client.write(registers.FORMAT, precision=3, stored=4, directory=1),
            "all planes",
        ),
    ):
        device, clients, job = directory_worker()
        change(device.workers[0], clients[0], job.memories(0)[0].reshape(-1))
        start(clients, job)
        with pytest.raises(EmulatorError, match=f"worker 0.*{says}"):
            device.wait()


@pytest.mark.parametrize("make", [sparse_worker, directory_worker])
@given(data=st.data(), seed=st.integers(0, 1 << 30))
def test_whatever_is_in_its_memory_a_worker_survives(make, data, seed):
    device, clients, job = make()
    rng = np.random.default_rng(seed)
    for memory, part in enumerate(job.memories(0)):
        if part.size and data.draw(st.booleans()):
            changed = part.reshape(-1).copy()
            places = rng.integers(0, part.size, data.draw(st.integers(1, 20)))
            changed[places] = rng.integers(0, 256, places.size)
            device.workers[0].write_memory(memory, 0, changed)
    start(clients, job)
    with suppress(EmulatorError):
        device.wait()
    assert clients[0].read(registers.CTRL)["idle"]


@pytest.mark.parametrize("config", [SMALL, WorkerConfig(engines=3, lanes=8, chunks=16, sparse=True)])
def test_a_cleared_device_takes_no_memory_and_can_be_used_again(config):
    job = random_job(config, 2, seed=4)
    device = EmulatedDevice(config, 2)
    expected, *_ = run_on(device, job)
    device.clear()
    assert [worker.memory_bytes for worker in device.workers] == [0, 0]
    with pytest.raises(EmulatorError, match="were not written"):
        device.workers[0].read_memory(0, 0, 1)
    again, *_ = run_on(device, job)
    assert [each.tolist() for each in again] == [each.tolist() for each in expected]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: f"lanes{room.lanes}")
def test_refuses_the_runs_that_the_rtl_refuses(room):
    job = random_job(room, 1, seed=0, signed=False, unit=room.lanes, chunks=1)
    for impossible, case in cases(room.lanes):
        run = ORDINARY | case
        device = EmulatedDevice(room, 1)
        (client,) = configure(device.workers, job)
        client.write(registers.MICRO_BATCHES, value=run["micro"])
        client.write(registers.MINI_BATCHES, value=run["mini"])
        client.write(registers.CHUNKS, value=run["chunks"])
        form = {name: run[name] for name in ("precision", "stored", "unit_chunks", "directory")}
        client.write(registers.FORMAT, **form)
        client.write(registers.RATE, mantissa=1, gradient_shift=10)
        client.write(registers.RUN, stale=run["stale"])
        client.write(registers.PARTIAL_LIMIT, value=run["limit"])
        for engine in range(room.engines):
            client.write_pair(registers.lines_count(engine), run["lines"])
            client.write_pair(registers.model_address(engine), run["misplaced"] << 11)
        with pytest.raises(EmulatorError) if impossible else nullcontext():
            read_settings(device.workers[0])


def test_registers_and_flags_that_stay_until_they_are_cleared():
    job = random_job(WorkerConfig.small(), 1, seed=1, wild=True)
    device = EmulatedDevice(job.config, 1)
    client = client_of(device.workers[0])
    assert client.read(registers.CTRL) == {"start": 0, "done": 0, "idle": 1, "ready": 0}
    assert client.read(registers.GEOMETRY) == {"engines": 2, "lanes": 16, "banks": 8, "ports": 2}
    client.write(registers.MAGIC_WORD, value=0)
    assert client.read(registers.MAGIC_WORD)["value"] == registers.MAGIC, "read only"
    _, status, _ = run_on(device, job)
    assert any(status[0].values()), "this job should saturate something"
    assert client.read(registers.STATUS) == status[0]
    client.write(registers.STATUS, **dict.fromkeys(status[0], 1))
    assert not any(client.read(registers.STATUS).values())


@settings(max_examples=100)
@given(
    seed=st.integers(0, 1 << 30),
    loss=st.sampled_from(sorted(LOSSES)),
    unit=st.sampled_from(UNITS),
    units=st.integers(1, 12),
    workers=st.integers(1, 8),
    engines=st.sampled_from([1, 2, 4]),
    lanes=st.sampled_from([8, 16, 64]),
    stale=st.booleans(),
)
def test_any_deal_trains_to_the_same_weights(seed, loss, unit, units, workers, engines, lanes, stale):
    rng = np.random.default_rng(seed)
    one = random_job(WorkerConfig.tiny(), 1, seed=seed, loss=loss, stale=stale)
    features = units * unit - int(rng.integers(unit))
    columns = rng.integers(0, one.stored[0].shape[1], features)
    one = dataclasses.replace(
        one,
        settings=dataclasses.replace(one.settings, unit=unit),
        stored=[one.stored[0][:, columns]],
        weights=[one.weights[0][columns]],
        exempt=(0, int(rng.integers(features))) if rng.integers(4) else None,
    )
    expected = one.golden()

    config = WorkerConfig(engines=engines, lanes=lanes, chunks=256, table_segments=one.config.table_segments)
    many, shards = deal(one, config, rng.integers(0, workers, units))
    # A job that diverges is clamped, and the limit depends on the number of workers.
    assume(not any(flags.partial_clamped for flags in (*expected.flags, *many.golden().flags)))
    weights, status, _ = run_on(EmulatedDevice(config, len(shards)), many)
    assert not any(flags["partial_clamped"] for flags in status)
    for shard, got in zip(shards, weights, strict=True):
        assert got.tolist() == expected.weights[0][shard.columns].tolist()
