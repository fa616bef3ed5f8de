"""`p4sgd data prepare`, and `p4sgd train` on what it makes."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from support.bench import default_seed
from support.command_line import PROGRAM, run
from support.data_files import write_data
from support.disk import small_disk

from p4sgd.host.image import file, open_image
from p4sgd.host.training.model_file import load_model

PEAK = """
import atexit, pathlib, sys
from p4sgd.host.cli.app import main
atexit.register(lambda: sys.stderr.write(pathlib.Path("/proc/self/status").read_text()))
main()
"""
"""The program, which says at its end how much memory it had at the most."""

OPTIONS = ("--workers", "2", "--precision", "4", "--batch", "24", "--seed", "3", "--config", "tiny")


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    rng = np.random.default_rng(8)
    features = rng.normal(size=(150, 20))
    labels = np.where(features @ rng.normal(size=20) > 0, 1, -1)
    return write_data(tmp_path, "data.csv", features, labels)


@pytest.fixture
def folder(tmp_path, data):
    run("data", "prepare", data, "--out", tmp_path / "prepared", *OPTIONS)
    return tmp_path / "prepared"


def train(*words):
    return json.loads(run("train", *words, "--json").stdout)


def test_document(tmp_path, data):
    out = tmp_path / "prepared"
    done = run("data", "prepare", data, "--out", out, *OPTIONS, "--validation-fraction", 0.2, "--json")
    document = json.loads(done.stdout)
    assert document["out"] == str(out)
    assert (document["samples"], document["validation_samples"]) == (120, 30)
    assert document["images_bytes"] == sum(path.stat().st_size for path in out.glob("worker*.p4sgd"))
    assert document["source"]["name"] == "data.csv"
    assert "reading labels" in done.stderr.splitlines()
    again = run("data", "prepare", data, "--out", out, *OPTIONS, "--validation-fraction", 0.2)
    assert "120 samples and 30 held out, 20 features, 4 planes; images for 2 workers" in again.stdout
    assert "reading labels" not in again.stderr.splitlines(), "it is there already"


def test_a_folder_suits_every_loss_for_the_same_labels(tmp_path):
    source = write_data(tmp_path, "data.csv", np.random.default_rng(3).normal(size=(40, 4)), np.arange(40) % 3)
    for loss in ("tweedie", "poisson", "squared"):
        run("data", "prepare", source, "--out", tmp_path / loss, "--loss", loss)
    for folder, *words, says in (
        ("tweedie", "poisson", "prepared for the loss tweedie, labels are others for poisson"),
        ("poisson", "tweedie", "prepared for the loss poisson, labels are others for tweedie"),
        ("tweedie", "tweedie", "--tweedie-power", 1.2, "tweedie-power"),
        ("poisson", "quantile", "was prepared for a regression"),
    ):
        done = run("train", tmp_path / folder, "--loss", *words, status=2)
        assert says in " ".join(done.stderr.split())
    file, folder = (train(each, "--loss", "huber", "--epsilon", 3) for each in (source, tmp_path / "squared"))
    assert (file["weights_sha256"], measured(file)) == (folder["weights_sha256"], measured(folder))


@pytest.mark.parametrize("prepared", ["auto", "never"])
def test_zeros_that_are_skipped(tmp_path, prepared):
    """Images leave out zeros if that should be faster, and are used as they are; with other options training makes
    others. That weights are the same is in the matrix."""
    rng = np.random.default_rng(2)
    features = rng.integers(1, 4, (120, 700)) * (rng.random((120, 700)) < 0.004)
    source = write_data(tmp_path, "data.libsvm", features, np.where(features.sum(axis=1) > 5, 1, -1))
    options, made = ["--precision", 5, "--batch", 64, "--config", "small"], tmp_path / "made"
    told = run("data", "prepare", source, "--out", made, "--workers", 2, *options, "--skip-zeros", prepared).output
    images = [open_image(path) for path in sorted(made.glob("worker*.p4sgd"))]
    assert [image.shard.directory for image in images] == [prepared != "never"] * 2
    assert ("images without lines of zeros for 2 workers" in told) == (prepared != "never")
    assert not list(made.glob("lines*"))
    assert train(made, "--epochs", 1)["skips_zeros"] == (prepared != "never")
    run("train", made, "--epochs", 1, "--skip-zeros", "always" if prepared == "never" else "never")
    for words in (["--precision", 2], ["--config", "sparse"]):
        assert "choose --skip-zeros never" in run("train", made, *words, "--skip-zeros", "always", status=2).stderr


@pytest.mark.parametrize("config", ["tiny", "sparse"])
def test_damage_is_told_wherever_it_is(tmp_path, config):
    """Also by what reads images before all of them are compared with their checksums."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = np.random.default_rng(seed)
    features = rng.integers(1, 4, (120, 200)) * (rng.random((120, 200)) < 0.02)
    source, made = write_data(tmp_path, "data.libsvm", features, rng.choice([-1, 1], 120)), tmp_path / "made"
    skipping = ["--skip-zeros", "always"] if config == "tiny" else []
    run("data", "prepare", source, "--out", made, "--workers", 2, "--config", config, "--precision", 4, *skipping)
    for _ in range(20):
        path = made / f"worker{rng.integers(2)}.p4sgd"
        good = path.read_bytes()
        place, size = rng.integers(4096, len(good)), rng.choice([1, 64, 4096])
        bad = bytearray(good)
        bad[place : place + size] = (each ^ rng.integers(1, 256) for each in good[place : place + size])
        path.write_bytes(bad)
        words = ("train", made, "--config", "tiny", "--workers", rng.integers(2, 4), "--epochs", 1)
        *progress, told = run(*words, status=2).stderr.splitlines()
        assert progress in ([], ["checking files"])
        assert re.fullmatch(f"p4sgd train: {path}: .*damaged.*: prepare the data again", told)
        path.write_bytes(good)


def measured(document):
    """The epochs without their times."""
    times = ("seconds", "samples_per_second")
    return [{name: value for name, value in epoch.items() if name not in times} for epoch in document["epochs"]]


@pytest.mark.parametrize("more", [(), ("--no-bias",)], ids=["bias", "no bias"])
def test_models_predict_unrounded_data(tmp_path, more):
    """The intercept takes out what rounding does to the mean, as with the samples at hand; without a bias it is the
    mean shift, which needs the means alone."""
    options = ["--precision", 1, "--config", "tiny", *more]
    run("data", "prepare", "breast_cancer", "--out", tmp_path / "made", *options)
    models, accuracies = [], []
    for source, words in ((tmp_path / "made", ()), ("breast_cancer", options)):
        train(source, *words, "--lr", 4, "--epochs", 5, "--out", tmp_path / "model", "--overwrite")
        models.append(load_model(tmp_path / "model"))
        accuracies.append(json.loads(run("evaluate", tmp_path / "model", "breast_cancer", "--json").stdout)["accuracy"])
    assert models[0].coefficients.tobytes() == models[1].coefficients.tobytes()
    if more:
        assert models[0].intercept == pytest.approx(models[1].intercept, rel=1e-9, abs=1e-9)
    else:
        assert accuracies[0] == pytest.approx(accuracies[1], abs=0.02)
        assert accuracies[0] > 0.9


def test_metrics_that_need_the_samples_are_missing(folder):
    document = train(folder, "--epochs", 2, "--l2", 0.01)
    assert document["monitored"] == "objective"
    best = document["epochs"][document["best_epoch"] - 1]
    assert document["metrics"] == {name: best[name] for name in ("train_loss", "train_accuracy", "objective")}
    assert "without rounding" not in run("train", folder, "--epochs", 1).stdout


def test_a_checkpoint_is_of_one_folder(folder, data, tmp_path):
    state = tmp_path / "state"
    train(folder, "--epochs", 2, "--checkpoint", state)
    words = ["--resume", state, "--epochs", 4]
    run("data", "prepare", data, "--out", tmp_path / "other", *OPTIONS, "--scaling", "maxabs")
    assert "with scaling maxabs, not auto" in run("train", tmp_path / "other", *words, status=2).stderr
    data.write_text("".join(reversed(data.read_text().splitlines(keepends=True))))
    run("data", "prepare", data, "--out", tmp_path / "third", *OPTIONS)
    assert re.search("third has values or labels that", run("train", tmp_path / "third", *words, status=2).stderr)
    assert re.search(
        f"state: .*data of this checkpoint are others: .*{data}", run("train", data, *words, status=2).stderr
    )


def test_images_for_other_workers_may_be_too_large(folder, monkeypatch):
    """What the message proposes must be possible for a folder, whose planes are given."""
    assert "at most the 4 stored planes, not 5" in run("train", folder, "--precision", 5, status=2).stderr
    monkeypatch.setattr(file, "available_memory", lambda: 1)
    stderr = run("train", folder, "--workers", 3, status=2).stderr
    assert "prepare the data for these workers" in stderr
    assert "--precision" not in stderr


@pytest.mark.parametrize("limit", [600, 2_000, 20_000])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path, data, limit):
    """In whatever step it is full."""
    before = {each.name for each in tmp_path.iterdir()}
    with small_disk(limit):
        full = run("data", "prepare", str(data), "--out", str(tmp_path / "made"), *OPTIONS, status=2)
    assert "the disk is full" in full.stderr
    assert {each.name for each in tmp_path.iterdir()} == before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_is_bounded(tmp_path):
    """Three times as many data as memory."""
    samples, features = 500_000, 700
    rng = np.random.default_rng(1)
    header = {"descr": "<f4", "fortran_order": False, "shape": (samples, features + 1)}
    with open(tmp_path / "big.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(0, samples, 10_000):
            block = rng.random((10_000, features + 1), dtype=np.float32)
            block[:, -1] = rng.integers(0, 2, 10_000)
            block.tofile(file)
    memory = 448 << 20
    assert (tmp_path / "big.npy").stat().st_size > 2.9 * memory
    words = [PROGRAM, "data", "prepare", "big.npy", "--memory", str(memory), "--config", "small", "--out"]
    whole = [sys.executable, "-c", PEAK, *words[1:], "whole"]
    done = subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "500,000 samples, 700 features" in done.stdout
    peak = int(re.search(r"VmHWM:\s*(\d+) kB", done.stderr)[1]) * 1024
    print(f"peak {peak >> 20} MiB")
    assert peak < memory
