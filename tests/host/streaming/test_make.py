"""Folders of prepared data: the same bytes as in memory, in whatever buckets, and after whatever interruption."""

import dataclasses
import json
import mmap
import os
import random
import shutil
import signal
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bench import default_seed
from support.data_files import FORMATS, WITHOUT_TEXTS, make_samples, use_small_blocks, write_data
from support.tensor_file import rewrite

from p4sgd.host.data import Dataset, FeatureSpace, read_dataset
from p4sgd.host.data.quantization import steps
from p4sgd.host.data.read import open_source
from p4sgd.host.data.synth import write_dataset
from p4sgd.host.devices import open_device
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.image import open_image
from p4sgd.host.streaming import plan
from p4sgd.host.streaming import steps as making
from p4sgd.host.streaming.folder import is_prepared, open_prepared
from p4sgd.host.streaming.make import make_folder, unfinished_folder
from p4sgd.host.streaming.state import STATE, FirstPass, Step
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.dealing.shares import deal_units
from p4sgd.host.training.preparation import prepare
from p4sgd.host.training.prepared import Placement
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=8, line_fifo_depth=64, slots=4)
SPARSE = dataclasses.replace(CONFIG, sparse=True)


@pytest.fixture
def tiny(monkeypatch):
    use_tiny_budget(monkeypatch)


def use_tiny_budget(patch, rows=16):
    """Blocks of a few samples, buckets of ``rows``, and a state after every block."""
    use_small_blocks(patch)
    patch.setattr(plan, "bucket_rows", lambda first_pass, memory, **more: rows)
    patch.setattr(making, "_KEPT_BYTES", 0)
    patch.setattr(os, "fsync", lambda handle: None)  # which takes its time, and no test cuts the power


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def build(path, folder, options, config=CONFIG, **more):
    return make_folder(open_source(path), options, config, folder, **more)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(FORMATS),
    seed=st.integers(0, 1 << 30),
    samples=st.integers(12, 90),
    features=st.integers(16, 40),
    rows=st.sampled_from([8, 16, 40, 400]),
    texts=st.booleans(),
    config=st.sampled_from([CONFIG, SPARSE]),
    options=st.fixed_dictionaries(
        {
            "loss": st.sampled_from(["logistic", "squared"]),
            "class_weight": st.sampled_from([None, "balanced"]),
            "workers": st.integers(1, 2),
            "precision": st.integers(1, 8),
            "batch": st.sampled_from([8, 24]),
            "scaling": st.sampled_from(["auto", "standard", "robust", "minmax", "maxabs", "none"]),
            "precondition": st.sampled_from(["none", "block"]),
            "skip_zeros": st.sampled_from(["auto", "never", "always"]),
            "bias": st.booleans(),
            "validation_fraction": st.sampled_from([0.0, 0.3]),
            "seed": st.integers(0, 3),
        }
    ),
)
def test_is_what_is_prepared_in_memory(tmp_path_factory, name, seed, samples, features, rows, texts, config, options):
    texts = texts and options["loss"] == "logistic" and name not in WITHOUT_TEXTS
    if options["precondition"] == "block":
        options["scaling"] = "auto"
    if config.sparse and options["skip_zeros"] == "always":
        options["skip_zeros"] = "auto"
    if config.sparse or options["skip_zeros"] == "always":
        options["scaling"], options["precondition"] = "none" if options["scaling"] == "none" else "maxabs", "none"
    if options["loss"] != "logistic":
        options["class_weight"] = None
    options = TrainingOptions(**options)
    folder = tmp_path_factory.mktemp("prepared")
    path = write_data(folder, name, *make_samples(seed, samples, features, texts=texts))
    (folder / "expected").mkdir()
    shards = deal_units(features, options, [config] * options.workers)
    expected = prepare(read_dataset(path), options, Placement(shards, folder / "expected"))
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_budget(patch, rows)
        manifest = build(path, folder / "made", options, config)
    for worker in range(options.workers):
        image = f"worker{worker}.p4sgd"
        assert (folder / "made" / image).read_bytes() == (folder / "expected" / image).read_bytes()
    loaded = open_prepared(folder / "made").load(options, Placement(shards))
    assert [image.path for image in loaded.images] == [
        folder / "made" / f"worker{worker}.p4sgd" for worker in range(options.workers)
    ]
    for part in ("coding", "features", "scaling", "reason", "remarks", "mean_square", "samples", "space"):
        assert getattr(loaded, part) == getattr(expected, part), part
    for part in ("slope", "offset", "train_labels"):
        assert getattr(loaded, part).tobytes() == getattr(expected, part).tobytes(), part
    for part in ("train_weights", "validation_weights"):
        found, wanted = getattr(loaded, part), getattr(expected, part)
        assert found is wanted is None or found.tobytes() == wanted.tobytes(), part
    assert loaded.train_weights is not None or name != "packed.npz"
    values = expected.train.rows(slice(None)) * expected.slope[:features] + expected.offset[:features]
    assert (loaded.mixing is None) == (expected.mixing is None)
    if loaded.mixing is not None:
        assert loaded.mixing.tobytes() == expected.mixing.tobytes()
        values = values @ expected.mixing[:, :features].T + expected.mixing[:, -1]
    form = loaded.features
    one = steps(form.stored, form.signed) / 2.0 ** (form.stored - form.signed)
    values = values.clip(-one if form.signed else 0.0, one)
    assert loaded.means()[:features] == pytest.approx(
        values.mean(axis=0), rel=1e-9, abs=1e-3 if loaded.mixing is not None else 1e-9
    )
    assert loaded.means()[features:].tolist() == expected.offset[features:].tolist()
    if expected.means is not None:
        assert loaded.means().tobytes() == expected.means().tobytes()
    assert manifest.source.samples == samples
    if options.validation_fraction:
        held, kept = expected.validation, loaded.validation
        assert (kept.rows(slice(None)) == held.rows(slice(None))).all()
        assert kept.features.dtype == held.features.dtype
        assert kept.sparse == held.sparse
        assert (kept.labels == held.labels).all()
        assert kept.label_names == (held.label_names if texts else ())
        assert kept.space == held.space
    else:
        assert loaded.validation is None


@pytest.fixture
def job(tmp_path):
    path = write_data(tmp_path, "data.libsvm", *make_samples(3, 120, 20))
    return path, tmp_path / "made", TrainingOptions(workers=2, precision=4, validation_fraction=0.2)


def in_child(work):
    """Do something in a process of its own that may be killed; returns its wait status."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize(
    ("name", "precondition", "config", "skip_zeros"),
    [
        pytest.param("data.libsvm", "none", CONFIG, "auto", marks=pytest.mark.slow),
        ("data.libsvm", "none", CONFIG, "always"),  # which writes all that the one before does, and more
        pytest.param("data.libsvm", "none", SPARSE, "auto", marks=pytest.mark.slow),
        pytest.param("data.csv", "block", CONFIG, "auto", marks=pytest.mark.slow),
    ],
    ids=["dense", "directories", "sparse", "whitened"],
)
def test_goes_on_wherever_it_was_killed(tmp_path, tiny, name, precondition, config, skip_zeros):
    """A process that dies before a call that changes the disk, each time at another one, and then goes on."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = random.Random(seed)
    path = write_data(tmp_path, name, *make_samples(seed, 120, 20))
    scaling = "maxabs" if config.sparse or skip_zeros == "always" else "auto"
    options = TrainingOptions(
        workers=2,
        precision=4,
        validation_fraction=0.2,
        precondition=precondition,
        scaling=scaling,
        skip_zeros=skip_zeros,
    )
    build(path, tmp_path / "whole", options, config)
    expected = contents(tmp_path / "whole")
    deaths = 0
    for _ in range(3):
        while True:
            calls = rng.randrange(1, 120)
            status = in_child(lambda calls=calls: dying(calls, lambda: build(path, tmp_path / "made", options, config)))
            if status == 0:
                break
            assert os.WIFSIGNALED(status), "it ended with an error"
            deaths += 1
            assert not (tmp_path / "made").exists() or is_prepared(tmp_path / "made")
        build(path, tmp_path / "made", options, config)
        made = contents(tmp_path / "made")
        assert made == expected
        shutil.rmtree(tmp_path / "made")
    assert deaths > 5


def dying(calls, work):
    """Do something, but die before the n-th call of a function that writes, syncs, renames or deletes."""
    left = [calls]

    def counted(function):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name in ("fsync", "replace", "rename", "unlink", "truncate", "mkdir", "posix_fallocate"):
        setattr(os, name, counted(getattr(os, name)))
    making.Buckets.add = counted(making.Buckets.add)
    making.ImageWriter.append = counted(making.ImageWriter.append)
    work()


def test_goes_on_whenever_it_was_killed(tmp_path, tiny):
    """The same at moments of time, so also within calls."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = random.Random(seed)
    path = write_data(tmp_path, "data.npy", *make_samples(seed, 200, 20))
    options = TrainingOptions(workers=2, precision=4)
    build(path, tmp_path / "whole", options)
    deaths = gone_on = 0
    for _ in range(12):
        gone_on += (tmp_path / "made.unfinished").exists()

        def work(seconds=rng.uniform(0.001, 0.15)):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process at once
            signal.setitimer(signal.ITIMER_REAL, seconds)
            build(path, tmp_path / "made", options)

        status = in_child(work)
        if status == 0:
            break
        assert os.WIFSIGNALED(status)
        deaths += 1
    assert deaths
    assert gone_on or (tmp_path / "made.unfinished").exists()
    build(path, tmp_path / "made", options)
    assert contents(tmp_path / "made") == contents(tmp_path / "whole")


def stop_at(step, count=1):
    """A callback that stops the work as Ctrl-C does, when a step is told for the n-th time."""
    seen = []

    def on_progress(told, done, total):
        assert 0 <= done <= total
        seen.append(told)
        if told.name == step and seen.count(told) == count:
            raise KeyboardInterrupt

    return on_progress


def stop(job, step="PACK"):
    path, folder, options = job
    with pytest.raises(KeyboardInterrupt):
        build(path, folder, options, on_progress=stop_at(step, 3))
    assert not folder.exists()


def test_finished_parts_are_not_done_again(job, tiny):
    stop(job)
    path, folder, options = job
    told = []
    build(path, folder, options, on_progress=lambda step, done, total: told.append((step.name, done, total)))
    names = {name for name, _, _ in told}
    assert names == {"PACK", "CHECK"}, "the data are not read again"
    assert min(done for name, done, _ in told if name == "PACK") > 32, "buckets are not packed again"
    assert max(done for name, done, _ in told if name == "PACK") == 120


def test_a_mistake_before_anything_was_done_leaves_nothing(tmp_path, tiny):
    path = tmp_path / "data.libsvm"
    path.write_text("1 1:2\n-1 1:x\n")
    with pytest.raises(UserError, match="line 2"):
        build(path, tmp_path / "made", TrainingOptions())
    assert contents(tmp_path).keys() == {"data.libsvm"}


def test_labels_of_two_kinds_are_told(tmp_path, tiny):
    """Each block of the file has labels of one kind only."""
    path = write_data(tmp_path, "data.parquet", np.ones((60, 7)), ["1"] * 30 + ["ham"] * 30)
    with pytest.raises(UserError, match=r"data\.parquet: some labels are numbers and others are not"):
        build(path, tmp_path / "made", TrainingOptions())


@pytest.mark.parametrize("options", [{"precondition": "block"}, {"scaling": "standard"}])
def test_sparse_data_are_not_sorted_to_be_centred(tmp_path, tiny, options):
    path = tmp_path / "sparse.libsvm"
    path.write_text("".join(f"{row % 2} {row + 1}:{row + 1}\n" for row in range(40)))
    options = TrainingOptions(validation_fraction=0.2, **options)
    steps_taken = []
    with pytest.raises(UserError, match=r"sparse.* (leave|choose) "):
        build(path, tmp_path / "made", options, on_progress=lambda step, *_: steps_taken.append(step))
    assert Step.READ in steps_taken
    assert Step.SORT not in steps_taken
    build(path, tmp_path / "made", dataclasses.replace(options, precondition="none", scaling="auto"))


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (SPARSE, {}, "all workers are sparse"),
        (CONFIG, {"precondition": "block"}, "whitening makes zeros other numbers"),
    ],
)
def test_zeros_that_cannot_be_skipped_are_told_at_once(job, tiny, config, options, words):
    path, folder, before = job
    steps_taken = []
    with pytest.raises(UserError, match=words):
        build(
            path,
            folder,
            dataclasses.replace(before, skip_zeros="always", **options),
            config,
            on_progress=lambda step, *_: steps_taken.append(step),
        )
    assert Step.SORT not in steps_taken


def test_options_may_change_while_only_labels_were_read(job, tiny):
    path, folder, options = job
    with pytest.raises(KeyboardInterrupt):
        build(path, folder, dataclasses.replace(options, seed=7), on_progress=stop_at("SORT"))
    with pytest.raises(UserError, match="use at most"):
        build(path, folder, TrainingOptions(workers=9))
    build(path, folder, options, on_progress=stop_at("READ"))  # which is not done again


def test_a_refusal_leaves_nothing(job, tiny):
    """Unless an earlier attempt has begun, as above; of the options, or of data that change meanwhile."""
    path, folder, options = job
    with pytest.raises(UserError, match="use at most"):
        build(path, folder, TrainingOptions(workers=9))
    assert not unfinished_folder(folder).exists()

    def grow(step, done, total):
        if step.name == "SORT":
            path.write_text(path.read_text() + "1 1:2\n")

    with pytest.raises(UserError, match="changed while it was read"):
        build(path, folder, options, on_progress=grow)
    assert contents(path.parent).keys() == {path.name}


def test_too_small_a_disk_is_found_before_sorting(job, tiny, monkeypatch):
    """It is no refusal: with more space the same command goes on without reading the labels again."""
    path, folder, options = job
    with monkeypatch.context() as patch:
        patch.setattr(making.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
        with pytest.raises(UserError, match=r"takes .* MB on the disk, 0.0 MB are free: free some space") as raised:
            build(path, folder, options)
    assert "the same command continues from there" in raised.value.__notes__[0]
    steps_taken = set()
    build(path, folder, options, on_progress=lambda step, *_: steps_taken.add(step))
    assert Step.SORT in steps_taken
    assert Step.READ not in steps_taken


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workers": 1}, "was begun with workers 2, not 1"),
        ({"seed": 1}, "was begun with seed 0, not 1"),
        ({"validation_fraction": 0.0}, "was begun with validation-fraction 0.2, not 0.0"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_other_options_are_refused(job, tiny, change, words, finished):
    path, folder, options = job
    build(path, folder, options) if finished else stop(job)
    with pytest.raises(UserError, match=words):
        build(path, folder, TrainingOptions(**{**{"workers": 2, "precision": 4, "validation_fraction": 0.2}, **change}))


def test_other_circumstances_are_refused(job, tiny, tmp_path):
    stop(job)
    path, folder, options = job
    with pytest.raises(UserError, match="configuration"):
        build(path, folder, options, WorkerConfig.tiny())
    with pytest.raises(UserError, match="another way to read"):
        make_folder(open_source(path, zero_based=True), options, CONFIG, folder)
    other = shutil.copy(path, tmp_path / "other.libsvm")
    with pytest.raises(UserError, match=r"was begun with .*data\.libsvm: name that file"):
        build(other, folder, options)
    build(path, folder, options)
    path.write_text(path.read_text().replace("-1 ", "+1 ", 1))
    with pytest.raises(UserError, match=r"data\.libsvm has changed since this was begun: delete .*made to start again"):
        build(path, folder, options)


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ("memory", "SORT"),
        ("file", "SCALE"),
        ("memory", "PACK"),
        ("file", "CHECK"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("file", "SORT"), ("memory", "SCALE"), ("file", "PACK"), ("memory", "CHECK"))
        ),
    ],
)
def test_what_is_unfinished_is_made_anew_with_other_memory_or_a_file_that_has_changed(
    job, monkeypatch, tmp_path, step, change
):
    """Who was out of memory or disk chooses another limit; and what was made of an older file is of no use."""
    path, folder, options = job
    use_tiny_budget(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        build(path, folder, options, on_progress=stop_at(step, 2))
    assert unfinished_folder(folder).exists()
    if change == "memory":
        use_tiny_budget(monkeypatch, rows=24)
    else:
        path.write_text(path.read_text().replace("-1 ", "+1 ", 1))
    build(path, folder, options, memory=1 << (31 if change == "memory" else 30))
    build(path, tmp_path / "anew", options, memory=1 << 29)
    made, anew = contents(folder), contents(tmp_path / "anew")
    for content in (made, anew):
        del content["job.json"]
    assert made == anew
    build(path, folder, options, memory=1 << 28)


def test_an_unfinished_folder_of_another_version_is_refused(job, tiny):
    stop(job)
    path, folder, options = job
    rewrite(unfinished_folder(folder) / STATE, version="1")
    with pytest.raises(
        UserError, match=r"made\.unfinished/state: .*version 1, .*version 4: delete the folder to begin"
    ):
        build(path, folder, options)


def test_an_option_that_is_missing_is_a_difference(job, tiny):
    stop(job)
    path, folder, options = job
    request = unfinished_folder(folder) / "job.json"
    content = json.loads(request.read_text())
    assert content["options"].pop("unit") is None
    request.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"begun without unit, .*: delete .*unfinished"):
        build(path, folder, options)


def test_a_finished_folder_of_another_version_is_refused(job, tiny):
    path, folder, options = job
    build(path, folder, options)
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 1}))
    with pytest.raises(
        UserError, match=r"manifest\.json: has version 1, .*: delete the folder or choose another name$"
    ):
        build(path, folder, options)
    with pytest.raises(UserError, match=r"manifest\.json: has version 1, .*: prepare the data again$"):
        open_prepared(folder)


def test_a_file_that_changes_between_readings_is_noticed(job, tiny):
    path, folder, options = job

    def grow(step, done, total):
        if step.name == "SORT" and path.stat().st_size == size:
            path.write_text(path.read_text() + "1 1:2\n")

    size = path.stat().st_size
    with pytest.raises(UserError, match="changed while it was read"):
        build(path, folder, options, on_progress=grow)
    assert not folder.exists()


def test_two_at_once_are_refused(job, tiny):
    path, folder, options = job

    def meanwhile(step, done, total):
        with pytest.raises(P4sgdError, match="another p4sgd is at work"):
            build(path, folder, options)
        told.append(step)

    told = []
    build(path, folder, options, on_progress=meanwhile)
    assert told


def test_foreign_folders_are_left_alone(job, tiny):
    path, folder, options = job
    for each in (folder, unfinished_folder(folder)):
        each.mkdir()
        (each / "mine").write_text("kept")
        with pytest.raises(UserError, match="is there already"):
            build(path, folder, options)
        assert (each / "mine").read_text() == "kept"
        shutil.rmtree(each)


def test_damage_is_found(job, tiny):
    path, folder, options = job
    build(path, folder, options)
    shards = deal_units(open_prepared(folder).space.count, options, [CONFIG] * options.workers)
    for name in contents(folder):
        if name == "job.json":
            continue
        whole = (folder / name).read_bytes()
        for damaged in (whole[: len(whole) // 2], whole[:2] + bytes([whole[2] ^ 1]) + whole[3:]):
            (folder / name).write_bytes(damaged)
            with pytest.raises(UserError, match=f"{name}.*again"):
                open_prepared(folder).verify(shards)
        (folder / name).unlink()
        with pytest.raises(UserError, match=f"{name}: cannot read: .*prepare the data again"):
            open_prepared(folder).verify(shards)
        (folder / name).write_bytes(whole)
    open_prepared(folder).verify(shards)


def test_images_are_opened_once(job, tiny, monkeypatch):
    path, folder, options = job
    build(path, folder, options)
    opened = []
    monkeypatch.setattr(
        "p4sgd.host.streaming.folder.open_image", lambda *a, **b: opened.append(a) or open_image(*a, **b)
    )
    prepared = open_prepared(folder)
    shards = deal_units(prepared.space.count, options, [CONFIG] * options.workers)
    with pytest.raises(UserError, match="leave --images out"):
        prepared.check_images(shards, folder / "other")
    prepared.verify(shards)
    prepared.load(options, Placement(shards))
    assert len(opened) == options.workers


def test_little_memory_is_refused(job):
    path, folder, options = job
    with pytest.raises(UserError, match=r"120 samples of 20 features cannot be prepared .* allow at least \d+M"):
        build(path, folder, options, memory=1 << 20)


def test_sparse_workers_need_less_memory():
    """Blocks for dense workers have all features of their samples."""
    found = FirstPass(1000, FeatureSpace(10_000_000), (), 20_000, True, "<f8", "")
    with pytest.raises(UserError, match="allow at least"):
        plan.bucket_rows(found, 2 << 30)
    assert plan.bucket_rows(found, 2 << 30, sparse_workers=True) >= 1000


def test_images_are_mapped(job, tiny):
    """Opening and uploading copies nothing."""
    from p4sgd.sim.emulator import EmulatedDevice

    path, folder, options = job
    build(path, folder, options)
    device = EmulatedDevice(CONFIG, 2)
    image = open_image(folder / "worker0.p4sgd")
    lines = image.lines(1)
    worker = device.workers[0]
    worker.write_memory(1, 0, lines.reshape(-1))
    assert np.shares_memory(worker.memory(1, registers.lines_address(0, 1), lines.size), lines)
    base = lines
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj, mmap.mmap)


def test_training_on_a_million_columns(tmp_path):
    """For each column a run has the worker's weights, the host's before it, and two copies of the new ones while these
    are read and measured (16), also as real numbers (8). That leaves no room for another array of 4 bytes a column: its
    number is in the mapped image, and one scale for all columns is no array. Nor do pages of the image stay resident
    that only its checksums need.
    """
    columns, samples = 1 << 20, 64
    places = np.random.default_rng(3).permutation(columns)[:samples]
    x = scipy.sparse.csr_array((np.linspace(0.5, 1, samples), (np.arange(samples), places)), shape=(samples, columns))
    write_dataset(Dataset(x, np.arange(samples) % 2.0, "made"), tmp_path / "made.npz")
    options, config = TrainingOptions(epochs=3, batch=8, scaling="none"), WorkerConfig.sparse_worker()
    build(tmp_path / "made.npz", tmp_path / "folder", options, config)

    def resident():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile"))

    before = resident()
    image = open_image(tmp_path / "folder" / "worker0.p4sgd")
    assert resident() - before < columns
    assert image.scale.strides == image.offset.strides == (0,)
    device = open_device("emulator", config, 1)
    train(open_prepared(tmp_path / "folder"), options, device)  # loads and compiles everything
    tracemalloc.start()
    try:
        train(open_prepared(tmp_path / "folder"), options, device)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 26 * columns
