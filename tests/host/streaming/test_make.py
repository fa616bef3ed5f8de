"""Folders of prepared data: the same bytes as in memory, in whatever buckets, or nothing."""

import dataclasses
import os
import re
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
from support.data_files import FORMATS, WITHOUT_TEXTS, make_samples, use_small_blocks, write_data

from p4sgd.host.data import Dataset, FeatureSpace, read_dataset
from p4sgd.host.data.dataset import LabelledSamples
from p4sgd.host.data.formats.source import Scan
from p4sgd.host.data.quantization import steps
from p4sgd.host.data.read import open_source
from p4sgd.host.data.synth import make_table, write_dataset, write_table
from p4sgd.host.devices import open_device
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.image import open_image
from p4sgd.host.streaming import Step, make
from p4sgd.host.streaming.folder import PreparedFolder
from p4sgd.host.streaming.make import make_folder, unfinished_folder
from p4sgd.host.training import TrainingOptions, train
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.preparation import encode_table, prepare
from p4sgd.host.training.prepared import Placement
from p4sgd.hw.spec.config import PRESETS, WorkerConfig

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=8, line_fifo_depth=64, slots=4)
SPARSE = dataclasses.replace(CONFIG, sparse=True)


def use_tiny_budget(patch, rows=16):
    """Blocks of a few samples, and buckets of ``rows``."""
    use_small_blocks(patch)
    patch.setattr(make, "bucket_rows", lambda found, memory, **more: rows)
    patch.setattr(os, "fsync", lambda handle: None)  # which takes its time, and no test cuts the power


@pytest.fixture
def tiny(monkeypatch):
    use_tiny_budget(monkeypatch)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def build(path, folder, options, config=CONFIG, **more):
    return make_folder(open_source(path, missing=options.missing), options, config, folder, **more)


def check_is_what_is_prepared_in_memory(path, options, config, rows):
    """Images byte for byte, and what training takes from a folder."""
    folder = path.parent
    (folder / "expected").mkdir()
    read = read_dataset(path, missing=options.missing)
    data = encode_table(read, options)
    shards = deal_units(data.feature_count, options, [config] * options.workers)
    expected = prepare(data, options, Placement(shards, folder / "expected"))
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_budget(patch, rows)
        manifest = build(path, folder / "made", options, config)
    for worker in range(options.workers):
        image = f"worker{worker}.p4sgd"
        assert (folder / "made" / image).read_bytes() == (folder / "expected" / image).read_bytes()
    loaded = PreparedFolder(folder / "made").load(options, Placement(shards))
    for part in ("features", "remarks", "mean_square", "samples", "space"):
        assert getattr(loaded, part) == getattr(expected, part), part
    assert loaded.targets.coding == expected.targets.coding
    assert (loaded.scaling.kind, loaded.scaling.reason) == (expected.scaling.kind, expected.scaling.reason)
    for found, wanted in (
        *zip(loaded.map, expected.map, strict=True),
        (loaded.targets.labels, expected.targets.labels),
        (loaded.targets.weights, expected.targets.weights),
        (loaded.targets.validation_weights, expected.targets.validation_weights),
    ):
        assert found is wanted is None or found.tobytes() == wanted.tobytes()
    if expected.sums is not None:
        assert loaded.means().tobytes() == expected.means().tobytes()
    assert (manifest.source.samples, manifest.sparse) == (read.samples, data.sparse)
    assert (loaded.validation is None) == (options.validation_fraction == 0)
    if loaded.validation is not None:
        held, kept = expected.validation, loaded.validation
        assert (kept.rows(slice(None)) == held.rows(slice(None))).all()
        assert (kept.features.dtype, kept.sparse, kept.space) == (held.features.dtype, held.sparse, held.space)
        assert (kept.labels == held.labels).all()
    return loaded, expected


COMMON = {
    "workers": st.integers(1, 2),
    "precision": st.integers(1, 8),
    "precondition": st.sampled_from(["none", "none", "block"]),
    "validation_fraction": st.sampled_from([0.0, 0.3]),
    "seed": st.integers(0, 3),
}


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
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
            **COMMON,
            "loss": st.sampled_from(["logistic", "squared"]),
            "class_weight": st.sampled_from([None, "balanced"]),
            "batch": st.sampled_from([8, 24]),
            "scaling": st.sampled_from(["auto", "standard", "robust", "minmax", "maxabs", "none"]),
            "skip_zeros": st.sampled_from(["auto", "never", "always"]),
            "bias": st.booleans(),
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
    path = write_data(tmp_path_factory.mktemp("prepared"), name, *make_samples(seed, samples, features, texts=texts))
    loaded, expected = check_is_what_is_prepared_in_memory(path, TrainingOptions(**options), config, rows)
    assert loaded.targets.weights is not None or name != "packed.npz"
    slope, offset, mixing = expected.map
    values = expected.train.rows(slice(None)) * slope[:features] + offset[:features]
    if mixing is not None:
        values = values @ mixing[:, :features].T + mixing[:, -1]
    form = loaded.features
    one = steps(form.stored, form.signed) / 2.0 ** (form.stored - form.signed)
    means = values.clip(-one if form.signed else 0.0, one).mean(axis=0)
    assert loaded.means()[:features] == pytest.approx(means, rel=1e-9, abs=1e-3 if mixing is not None else 1e-9)
    assert loaded.means()[features:].tolist() == offset[features:].tolist()


def wide(path, rows, seed):
    """A table that is sparse: a column of 150 texts, one of them in few rows, and numbers with gaps."""
    rng = np.random.default_rng(seed)
    towns = rng.integers(0, 150, rows)
    lines = [f"{town % 7 or ''},t{town},{x:.2f},{town % 2}\n" for town, x in zip(towns, rng.random(rows), strict=True)]
    path.write_text("a,town,b,label\n" + "".join(lines))
    return path


def titanic(path, samples, seed=0):
    write_table(make_table("titanic", seed=seed, samples=samples), path)
    return path


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 20),
    samples=st.integers(60, 110),
    kind=st.sampled_from(["csv", "parquet", "wide"]),
    options=st.fixed_dictionaries(
        {
            **COMMON,
            "missing": st.sampled_from(["mean", "indicator"]),
            "scaling": st.sampled_from(["auto", "minmax", "maxabs", "none"]),
        }
    ),
)
def test_a_table_is_what_is_prepared_in_memory(tmp_path_factory, seed, samples, kind, options):
    if options["precondition"] == "block":
        options["scaling"], kind = "auto", "csv"
    folder, options = tmp_path_factory.mktemp("prepared"), TrainingOptions(**options)
    config = PRESETS["small"]()
    if kind == "wide":
        path = wide(folder / "data.csv", 200 + samples, seed)
        config = config if options.scaling == "minmax" else WorkerConfig.sparse_worker()
    else:
        path = titanic(folder / f"data.{kind}", samples, seed)
    check_is_what_is_prepared_in_memory(path, options, config, 16)


@pytest.mark.parametrize("kind", [titanic, wide])
def test_the_configuration_is_that_of_training_from_the_file(tmp_path, kind):
    path = kind(tmp_path / "data.csv", 400, 0)
    manifest = build(path, tmp_path / "made", TrainingOptions(missing="mean"), None)
    assert manifest.config.sparse == (kind is wide)


@pytest.fixture
def job(tmp_path):
    path = write_data(tmp_path, "data.libsvm", *make_samples(3, 120, 20))
    return path, tmp_path / "made", TrainingOptions(workers=2, precision=4, validation_fraction=0.2)


@pytest.mark.parametrize(
    ("step", "end"),
    [(Step.READ, "SIGINT"), (Step.SORT, "SIGKILL"), (Step.PACK, "SIGINT"), (Step.CHECK, "SIGKILL")],
)
def test_an_interrupted_preparation_starts_anew(job, tiny, step, end):
    """After Ctrl-C nothing is left, after a kill an unfinished folder, which the next attempt empties."""
    path, folder, options = job
    build(path, folder, options)
    whole = contents(folder)
    shutil.rmtree(folder)

    def on_progress(told, done, total):
        assert 0 <= done <= total
        if told is step:
            if end == "SIGINT":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            build(path, folder, options, on_progress=on_progress)
        except KeyboardInterrupt:
            os._exit(3)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) if end == "SIGKILL" else os.waitstatus_to_exitcode(status) == 3
    assert not folder.exists()
    assert unfinished_folder(folder).exists() == (end == "SIGKILL")
    build(path, folder, options)
    assert contents(folder) == whole
    assert not unfinished_folder(folder).exists()


def test_mistakes_leave_nothing(tmp_path, tiny):
    """Each block of the Parquet file has labels of one kind only."""
    plain = titanic(tmp_path / "titanic.csv", 120)
    lines, other = tmp_path / "bad.libsvm", write_data(tmp_path, "data.libsvm", *make_samples(1))
    lines.write_text("1 1:2\n-1 1:x\n")
    kinds = write_data(tmp_path, "data.parquet", np.ones((60, 7)), ["1"] * 30 + ["ham"] * 30)
    there = contents(tmp_path).keys()
    for path, options, words in (
        (lines, {}, "line 2"),
        (plain, {}, "line 2, column 7 .deck.: .* --missing mean"),
        (other, {"missing": "mean"}, "CSV and Parquet files"),
        (kinds, {}, "row 31, column 8 .label.: the label is .ham., but .1. before"),
    ):
        with pytest.raises(UserError, match=words):
            build(path, tmp_path / "made", TrainingOptions(**options))
        assert contents(tmp_path).keys() == there


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (CONFIG, {"precondition": "block"}, r"sparse.* leave "),
        (CONFIG, {"scaling": "standard"}, r"sparse.* choose "),
        (SPARSE, {"skip_zeros": "always"}, "all workers are sparse"),
        (CONFIG, {"skip_zeros": "always", "precondition": "block"}, "whitening makes zeros other numbers"),
        (CONFIG, {"batch": 16}, r"takes .* MB on the disk, 0.0 MB are free: free some space"),
    ],
)
def test_what_is_refused_before_sorting(tmp_path, tiny, monkeypatch, config, options, words):
    path = tmp_path / "sparse.libsvm"
    path.write_text("".join(f"{row % 2} {row + 1}:{row + 1}\n" for row in range(40)))
    if "batch" in options:
        monkeypatch.setattr(make.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    taken, options = [], TrainingOptions(validation_fraction=0.2, **options)
    with pytest.raises(UserError, match=words):
        build(path, tmp_path / "made", options, config, on_progress=lambda step, *_: taken.append(step))
    assert Step.SORT not in taken


def test_a_folder_of_other_data_or_options_is_left_alone(job, tiny, tmp_path):
    path, folder, options = job
    build(path, folder, options)
    made = contents(folder)
    build(path, folder, options, memory=1 << 29)
    others = "from other data or with other options"
    for source, change, config, how in (
        (open_source(path), {"workers": 1}, CONFIG, f"with workers {options.workers}, not 1"),
        (open_source(path), {"validation_fraction": 0.0}, CONFIG, "with validation-fraction .*, not 0.0"),
        (open_source(path), {}, WorkerConfig.tiny(), others),
        (open_source(path, zero_based=True), {}, CONFIG, others),
        (open_source(shutil.copy(path, tmp_path / "other.libsvm")), {}, CONFIG, others),
    ):
        with pytest.raises(UserError, match=f"made: is there already, made {how}: choose another name or delete it"):
            make_folder(source, dataclasses.replace(options, **change), config, folder)
    path.write_text(path.read_text().replace("-1 ", "+1 ", 1))
    with pytest.raises(UserError, match="is there already"):
        build(path, folder, options)
    assert contents(folder) == made
    for other in (Path("."), Path("/")):
        with pytest.raises(UserError, match="is there already"):
            build(path, other, options)
    (folder / "job.json").write_text("{")
    with pytest.raises(UserError, match="made: is there already"):
        build(path, folder, options)


def test_damage_is_found(job, tiny):
    path, folder, options = job
    build(path, folder, options)
    manifest = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(re.sub(rb'"version": \d+', b'"version": 1', manifest))
    with pytest.raises(UserError, match=r"manifest\.json: .* of version 1, .*: choose another name or delete it$"):
        build(path, folder, options)
    (folder / "manifest.json").write_bytes(manifest)
    for name, whole in contents(folder).items():
        for damaged in (whole[: len(whole) // 2], whole[:2] + bytes([whole[2] ^ 1]) + whole[3:], None):
            (folder / name).unlink()
            if damaged is not None:
                (folder / name).write_bytes(damaged)
            if name != "job.json":
                with pytest.raises(UserError, match=f"{name}.*prepare the data again"):
                    PreparedFolder(folder).verify()
        (folder / name).write_bytes(whole)
    PreparedFolder(folder).verify()


def test_others_meanwhile(job, tiny):
    """Another preparation of the folder is refused, and a file that grows between readings; other folders are kept."""
    path, folder, options = job
    told = []

    def meanwhile(step, done, total):
        with pytest.raises(P4sgdError, match="another p4sgd is at work"):
            build(path, folder, options)
        told.append(step)

    build(path, folder, options, on_progress=meanwhile)
    assert told
    shutil.rmtree(folder)
    for each in (folder, unfinished_folder(folder)):
        each.mkdir()
        (each / "mine").write_text("kept")
        with pytest.raises(UserError, match="is there already"):
            build(path, folder, options)
        assert (each / "mine").read_text() == "kept"
        shutil.rmtree(each)

    def grow(step, done, total):
        if step.name == "SORT" and path.stat().st_size == size:
            path.write_text(path.read_text() + "1 1:2\n")

    size = path.stat().st_size
    with pytest.raises(UserError, match="changed while it was read"):
        build(path, folder, options, on_progress=grow)
    assert not folder.exists()


def test_little_memory_is_refused():
    """Sparse workers need less: blocks for dense ones have all features of their samples."""
    samples = LabelledSamples("data", np.zeros(1000))
    found = Scan(samples, FeatureSpace(10_000_000), 20_000, True, np.dtype("<f8"))
    with pytest.raises(UserError, match=r"1,000 samples of 10,000,000 features cannot be prepared .* at least \d+M"):
        make.bucket_rows(found, 2 << 30)
    assert make.bucket_rows(found, 2 << 30, sparse_workers=True) >= 1000


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
    train(PreparedFolder(tmp_path / "folder"), options, device)  # loads and compiles everything
    tracemalloc.start()
    try:
        train(PreparedFolder(tmp_path / "folder"), options, device)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 26 * columns
