"""Folders of tables with texts and gaps: the same as in memory, also after an interruption."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.data_files import make_samples, use_small_blocks, write_data

from p4sgd.host.data import read_dataset
from p4sgd.host.data.read import open_source
from p4sgd.host.data.synth_table import make_table, write_table
from p4sgd.host.errors import UserError
from p4sgd.host.streaming import plan
from p4sgd.host.streaming import steps as making
from p4sgd.host.streaming.folder import open_prepared
from p4sgd.host.streaming.make import make_folder
from p4sgd.host.training import TrainingOptions
from p4sgd.host.training.dealing.shares import deal_units
from p4sgd.host.training.preparation import encode_table, prepare
from p4sgd.host.training.prepared import Placement
from p4sgd.hw.spec.config import PRESETS, WorkerConfig

CONFIG = PRESETS["small"]()


def use_tiny_budget(patch):
    """Blocks and buckets of a few samples, and a state after every block."""
    use_small_blocks(patch)
    patch.setattr(plan, "bucket_rows", lambda first_pass, memory, **more: 16)
    patch.setattr(making, "_KEPT_BYTES", 0)
    patch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def tiny(monkeypatch):
    use_tiny_budget(monkeypatch)


def build(path, folder, options, config=CONFIG, **more):
    return make_folder(open_source(path, missing=options.missing), options, config, folder, **more)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def wide(path, rows, seed):
    """A table that is sparse: a column of 150 texts, one of them in few rows, and numbers with gaps."""
    rng = np.random.default_rng(seed)
    towns = rng.integers(0, 150, rows)
    lines = [f"{town % 7 or ''},t{town},{x:.2f},{town % 2}\n" for town, x in zip(towns, rng.random(rows), strict=True)]
    path.write_text("a,town,b,label\n" + "".join(lines))
    return path


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 20),
    samples=st.integers(60, 110),
    kind=st.sampled_from(["csv", "parquet", "wide"]),
    options=st.fixed_dictionaries(
        {
            "missing": st.sampled_from(["mean", "indicator"]),
            "workers": st.integers(1, 2),
            "precision": st.integers(1, 8),
            "scaling": st.sampled_from(["auto", "minmax", "maxabs", "none"]),
            "precondition": st.sampled_from(["none", "none", "block"]),
            "validation_fraction": st.sampled_from([0.0, 0.3]),
            "seed": st.integers(0, 3),
        }
    ),
)
def test_is_what_is_prepared_in_memory(tmp_path_factory, seed, samples, kind, options):
    if options["precondition"] == "block":
        options["scaling"], kind = "auto", "csv"
    options = TrainingOptions(**options)
    folder = tmp_path_factory.mktemp("prepared")
    path = folder / f"data.{'csv' if kind == 'wide' else kind}"
    if kind == "wide":
        wide(path, 200 + samples, seed)
    else:
        write_table(make_table("titanic", seed=seed, samples=samples), path)
    (folder / "expected").mkdir()
    data = encode_table(read_dataset(path, missing=options.missing), options)
    config = CONFIG if kind != "wide" or options.scaling == "minmax" else WorkerConfig.sparse_worker()
    shards = deal_units(data.feature_count, options, [config] * options.workers)
    expected = prepare(data, options, Placement(shards, folder / "expected"))
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_budget(patch)
        manifest = build(path, folder / "made", options, config)
    for worker in range(options.workers):
        image = f"worker{worker}.p4sgd"
        assert (folder / "made" / image).read_bytes() == (folder / "expected" / image).read_bytes()
    loaded = open_prepared(folder / "made").load(options, Placement(shards))
    assert loaded.space == data.space
    assert manifest.sparse == data.sparse == (kind == "wide")
    for part in ("coding", "features", "scaling", "reason", "remarks", "mean_square", "samples", "space"):
        assert getattr(loaded, part) == getattr(expected, part), part
    for part in ("slope", "offset", "train_labels"):
        assert getattr(loaded, part).tobytes() == getattr(expected, part).tobytes(), part
    if options.validation_fraction:
        assert (loaded.validation.rows(slice(None)) == expected.validation.rows(slice(None))).all()
        assert loaded.validation.space == expected.validation.space


@pytest.mark.parametrize("kind", ["titanic", "wide"])
def test_the_configuration_is_that_of_training_from_the_file(tmp_path, kind):
    path = tmp_path / "data.csv"
    if kind == "wide":
        wide(path, 400, 0)
    else:
        write_table(make_table("titanic", samples=100), path)
    manifest = build(path, tmp_path / "made", TrainingOptions(missing="mean"), None)
    assert manifest.config.sparse == (kind == "wide")


@pytest.mark.parametrize("step", ["READ", "SORT", "ENCODE", "SCALE", "PACK"])
def test_goes_on_after_an_interruption(tmp_path, tiny, step):
    path = tmp_path / "titanic.csv"
    write_table(make_table("titanic", samples=120), path)
    options = TrainingOptions(missing="indicator", validation_fraction=0.2, workers=2)
    build(path, tmp_path / "whole", options)
    seen = []

    def stop(told, done, total):
        assert 0 <= done <= total
        seen.append(told.name)
        if seen.count(step) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(path, tmp_path / "made", options, on_progress=stop)
    build(path, tmp_path / "made", options)
    assert contents(tmp_path / "made") == contents(tmp_path / "whole")


def test_mistakes_are_told(tmp_path, tiny):
    path = tmp_path / "titanic.csv"
    write_table(make_table("titanic", samples=120), path)
    with pytest.raises(UserError, match=f"^{path}, line 2, column 7 .deck.: the value is missing: .* --missing mean"):
        build(path, tmp_path / "made", TrainingOptions())
    other = write_data(tmp_path, "data.libsvm", *make_samples(1))
    with pytest.raises(UserError, match=f"^{other}: --missing mean is for CSV and Parquet files"):
        build(other, tmp_path / "made", TrainingOptions(missing="mean"))
    assert contents(tmp_path).keys() == {"titanic.csv", "data.libsvm"}


def test_memory_is_that_of_the_most_features(tmp_path, monkeypatch):
    """Texts of the whole file count, because what is held out is not known yet."""
    found = []
    monkeypatch.setattr(plan, "bucket_rows", lambda first_pass, memory, **more: found.append(first_pass) or 16)
    wide(tmp_path / "data.csv", 400, 0)
    build(tmp_path / "data.csv", tmp_path / "made", TrainingOptions(missing="indicator", validation_fraction=0.5))
    (widest,) = found
    made = open_prepared(tmp_path / "made").space
    assert widest.space.count >= made.count > 100
    assert widest.stored == 400 * (4 if widest.sparse else widest.space.count)
