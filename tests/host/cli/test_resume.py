"""`p4sgd train --checkpoint` and `--resume`: whatever stops a run, it goes on to the same document and model."""

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from support import command_line
from support.command_line import PROGRAM
from support.failing_device import FailingDevice
from support.tensor_file import rewrite

from p4sgd.host import devices
from p4sgd.host.data import read_dataset
from p4sgd.host.training import load_checkpoint
from p4sgd.host.training.model_file import load_model

RUN = ["breast_cancer", "--epochs", "5", "--batch", "32", "--test", "breast_cancer"]


pytestmark = pytest.mark.usefixtures("own_folder")


run = functools.partial(command_line.run, "train")


def document(*words):
    """What `--json` says, but for times, counters, packets and the names of files."""
    found = json.loads(run(*words, "--json").stdout)
    for epoch in found["epochs"]:
        for name in ("seconds", "samples_per_second", "counters"):
            del epoch[name]
    for name in ("out", "checkpoint"):
        del found[name]
    found.pop("packets", None)  # The emulator sends none.
    return found


def fail(monkeypatch, epoch, *words, error=None):
    """A run whose device fails in an epoch; returns what is said on standard error."""
    with monkeypatch.context() as patch:
        patch.setattr(
            devices, "open_device", lambda name, config, workers: FailingDevice(config, workers, epoch, error)
        )
        done = run(*words, status=1 if error is None else 130)
    assert "Traceback" not in done.output
    return done.stderr.splitlines()


def hint(line):
    """What a line says about resuming: the checkpoint's file, its epoch, the words of the command."""
    found = re.fullmatch(r"p4sgd train: (.+) has the state after epoch (\d+); .*?: (p4sgd train .*)", line)
    assert found, line
    return found[1], int(found[2]), shlex.split(found[3])


def resuming(file, epoch, *more):
    return file, epoch, ["p4sgd", "train", "--resume", file, *more]


def refused(*words):
    """The one line that a refused command says; nothing is changed."""
    before = {path: path.read_bytes() for path in Path().iterdir()}
    done = run(*words, status=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert {path: path.read_bytes() for path in Path().iterdir()} == before
    return line.removeprefix("p4sgd train: ")


def test_the_command_that_is_told_works(monkeypatch):
    said = fail(monkeypatch, 3, *RUN, "--checkpoint", "it's", "--json", "--quiet")
    assert hint(said[-1]) == resuming("it's", 2, "--json", "--quiet")
    done = run(*hint(said[-1])[2][2:])
    assert json.loads(done.stdout)["checkpoint"] == "it's"
    assert done.stderr == ""


def test_a_full_disk(monkeypatch):
    calls = []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        said = run(*RUN, "--checkpoint", "c", status=2).stderr.splitlines()
    assert "c: cannot write: the disk is full" in said[0]
    assert hint(said[1]) == resuming("c", 2)
    assert document("--resume", "c") == document(*RUN)


def test_ctrl_c(monkeypatch):
    whole = document(*RUN)
    said = fail(monkeypatch, 4, *RUN, "--checkpoint", "c", "--out", "model", error=KeyboardInterrupt())
    assert re.match("p4sgd train: interrupted after epoch 3; best so far: .*; kept in model", said[-2])
    assert hint(said[-1]) == resuming("c", 3)
    assert load_model(Path("model")).training["epoch"] == 3
    said = fail(monkeypatch, 1, "--resume", "c", error=KeyboardInterrupt())
    assert "interrupted after epoch 3; best so far" in said[-2], "in the first epoch that is new"
    assert document("--resume", "c") == whole
    assert load_model(Path("model")).training["epoch"] == whole["best_epoch"]


def test_a_killed_program():
    """Killed again and again, wherever it is, until it is done."""
    rng = np.random.default_rng(0)  # a file, because built-in data sets take a program a second to import
    features = rng.normal(size=(150, 6))
    np.savez("data.npz", X=features, y=features @ rng.normal(size=6) + rng.normal(size=150) > 0)
    words = ["data.npz", "--epochs", "90", "--schedule", "constant", "--lr", "0.5", "--batch", "8"]
    whole = document(*words)
    command, done, kills = [PROGRAM, "train", *words, "--checkpoint", "c", "--quiet"], 0, 0
    while done < 90:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            while process.poll() is None and (
                not Path("c").exists() or load_checkpoint(Path("c")).states[0].epoch < done + 40
            ):
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
            error = process.communicate(timeout=60)[1]
        assert process.returncode in (0, -signal.SIGKILL), error
        kills += process.returncode != 0
        done = load_checkpoint(Path("c")).states[0].epoch
        command = [PROGRAM, "train", "--resume", "c", "--quiet"]
    assert kills >= 2
    assert document("--resume", "c", "--out", "model") == whole


def test_the_device_is_that_of_the_checkpoint_or_another(monkeypatch):
    """A stand-in for both: nothing is simulated."""
    fail(monkeypatch, 2, *RUN, "--device", "rtl", "--checkpoint", "c")
    opened = []

    def open_device(name, config, workers):
        opened.append(name)
        return FailingDevice(config, workers, 1)

    monkeypatch.setattr(devices, "open_device", open_device)
    run("--resume", "c", status=1)
    run("--resume", "c", "--device", "emulator", status=1)
    run("--resume", "c", status=1)
    assert opened == ["rtl", "emulator", "emulator"], "the last one given"


def test_data_that_have_moved(monkeypatch):
    rows = np.random.default_rng(1).normal(size=(40, 4))
    text = "".join(f"{'ab'[int(row[0] > 0)]};{';'.join(map(repr, row.tolist()))}\n" for row in rows)
    Path("first").write_text(text)
    words = ["--format", "csv", "--label-column", 1, "--delimiter", ";", "--no-header", "--epochs", 3]
    whole = document("first", "--test", "first", *words)
    fail(monkeypatch, 2, "first", "--test", "first", *words, "--checkpoint", "c")
    Path("first").rename("second.csv")
    assert re.match("c: .*data first .*: p4sgd train --resume c DATA$", refused("--resume", "c"))
    assert refused("--resume", "c", "second.csv").endswith("p4sgd train --resume c --test DATA")
    rewrite(Path("c"), to=Path("library"), origin={})
    assert re.match("library: .*data .*: p4sgd train --resume library DATA$", refused("--resume", "library"))
    resumed = document("--resume", "c", "second.csv", "--test", "second.csv")
    assert (whole.pop("data"), resumed.pop("data")) == ("first", "second.csv")
    assert resumed == whole


def test_a_finished_run():
    whole = document(*RUN, "--checkpoint", "c")
    ended = re.compile(r"c: all 5 epochs are done, nothing is left to do: .*--epochs .*--out MODEL")
    assert ended.match(refused("--resume", "c", "--epochs", 5, "--device", "rtl"))
    assert re.match("c: 5 epochs are done, --epochs 3 is less: .*larger", refused("--resume", "c", "--epochs", 3))
    assert document("--resume", "c", "--out", "model") == whole, "the model may be all that is wanted"
    assert ended.match(refused("--resume", "c"))
    Path("model").unlink()
    run("--resume", "c")
    assert load_model(Path("model")).training["epoch"] == whole["best_epoch"], "it was to be written there"
    assert document("--resume", "c", "--epochs", 7) == document(*RUN, "--epochs", 7)
    run("breast_cancer", "--epochs", 50, "--patience", 2, "--tolerance", 0.01, "--checkpoint", "early")
    says = r"early: this run stopped early after epoch \d+, nothing is left to do: .* --patience 2, --out MODEL"
    assert re.match(says, refused("--resume", "early", "--epochs", 500))


def test_a_resumed_run_replaces_no_model_but_its_own():
    run(*RUN, "--checkpoint", "c", "--out", "model")
    run("iris:1", "--epochs", 1, "--out", "other")
    assert refused(*RUN, "--checkpoint", "c", "--out", "model").startswith("model: already exists: ")
    assert refused("--resume", "c", "--epochs", 6, "--out", "other").endswith("or replace it with --overwrite")
    run("--resume", "c", "--epochs", 6)
    run("--resume", "c", "--epochs", 7, "--out", Path("model").absolute())
    run("--resume", "c", "--epochs", 8, "--out", "other", "--overwrite")
    assert [load_model(Path(name)).training["options"]["epochs"] for name in ("model", "other")] == [7, 8]


def test_data_that_are_others_or_read_in_another_way():
    """The same file may be named as before, so it is not what is wrong. Other contradictions are in test_errors.py."""
    Path("data.libsvm").write_text("".join(f"{row % 2} {row % 37 + 1}:1 100:2\n" for row in range(64)))
    Path("other.libsvm").write_text("1 1:1\n0 2:1\n")
    Path("more.toml").write_text("[train]\nl2 = 0.5\n")
    data = read_dataset("breast_cancer")
    data.features[500, 20] += 1
    np.savez("changed.npz", X=data.features, y=data.labels)
    run("data.libsvm", "--epochs", 1, "--checkpoint", "c")
    run("breast_cancer", "--epochs", 1, "--test", "breast_cancer", "--checkpoint", "kept")
    hashed = r"c: the data of this checkpoint are others: .* 4,096 features, .*: leave --hash-bits out, or"
    for words, says in (
        ("c --hash-bits 12", hashed),
        ("c data.libsvm --hash-bits 12", hashed),
        ("c other.libsvm --hash-bits 12", "other.libsvm .*: name the same"),
        ("kept --options more.toml", "began without --l2, not with --l2 0.5"),
        ("kept changed.npz", "changed.npz .*values or labels .*breast_cancer.*: name the same"),
        ("kept --test changed.npz", "test data .* changed.npz .*values or labels .*breast_cancer"),
    ):
        assert re.search(says, line := refused("--resume", *words.split(), "--epochs", 2)), line
    run("--resume", "c", "--epochs", 2)
