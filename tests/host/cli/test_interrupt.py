"""Ctrl-C, SIGTERM or SIGHUP: training keeps the best model so far and says so, or leaves nothing; servers just end."""

import fcntl
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import termios
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.command_line import PROGRAM, heed_interrupts, run
from support.loopback import loopback

from p4sgd.host import training
from p4sgd.host.training.model_file import load_model
from p4sgd.sim.emulator import EmulatedDevice

EPOCHS = 1_000_000


def interrupt(folder, *words, by):
    """Train on a terminal until a few epochs are done, then press Ctrl-C; returns status, stdout and terminal."""
    terminal, end = pty.openpty()
    data = folder / "data.npz"
    np.savez(data, X=np.random.default_rng(0).normal(size=(200, 30)), y=np.arange(200) % 2)
    command = [PROGRAM, "train", data, "--epochs", str(EPOCHS), "--patience", str(EPOCHS), *words]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "50"}
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=end, env=environment, preexec_fn=heed_interrupts
    )
    os.close(end)
    seen = b""
    interrupted = False
    try:
        while True:
            try:
                block = os.read(terminal, 1 << 16)
            except OSError:  # Linux' way to say that the other end is closed
                break
            if not block:
                break
            seen += block
            if not interrupted and re.search(rb"\D([3-9]|\d{2,})/%d" % EPOCHS, seen):
                process.send_signal(by)
                interrupted = True
        stdout = process.communicate(timeout=60)[0].decode()
    finally:
        process.kill()
        os.close(terminal)
    return process.returncode, stdout, seen.decode(errors="replace")


@pytest.mark.parametrize(
    ("by", "words"),
    [(signal.SIGINT, ("--out", "model")), (signal.SIGTERM, ("--out", "model")), (signal.SIGINT, ("--json",))],
)
def test_the_best_model_is_kept_or_described(tmp_path, by, words):
    status, stdout, terminal = interrupt(tmp_path, *words, by=by)
    assert status == 130, terminal
    assert "Traceback" not in terminal
    (said,) = re.findall(r"p4sgd train: (interrupted.*)\r\n", terminal)
    kept = r"kept in model" if "--out" in words else "not kept: --out MODEL keeps it"
    match = re.fullmatch(rf"interrupted after epoch (\d+); best so far: epoch (\d+), objective \S+; {kept}", said)
    assert match, said
    assert sorted(os.listdir(tmp_path)) == ["data.npz", *(["model"] if "--out" in words else [])]
    if "--out" in words:
        assert load_model(tmp_path / "model").training["epoch"] == int(match[2])
        rows = [line.split()[0] for line in stdout.splitlines() if line.strip()[:1].isdigit()]
        assert rows[-1].replace(",", "") == match[1], "the table has every epoch"
    else:
        document = json.loads(stdout)
        assert (document["stopped"], len(document["epochs"])) == ("interrupted", int(match[1]))


def wait_for(path):
    end = time.monotonic() + 60
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert path.exists()


@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_is_closed(tmp_path, nohup):
    """Nothing can be printed any more, but the best model is kept, unless training is to go on."""
    command = [PROGRAM, "train", "breast_cancer", "--epochs", EPOCHS, "--patience", EPOCHS, "--out", "model"]
    terminal, end = pty.openpty()

    def own_terminal():
        heed_interrupts()
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
        os.setsid()
        fcntl.ioctl(end, termios.TIOCSCTTY, 0)

    with open(tmp_path / "nohup.out", "wb") as out:
        shown = {"stdin": end, "stdout": out if nohup else end, "stderr": out if nohup else end}
        process = subprocess.Popen(
            [*map(str, command), "--checkpoint", "state"], cwd=tmp_path, preexec_fn=own_terminal, **shown
        )
    os.close(end)
    try:
        wait_for(tmp_path / "state")
        os.close(terminal)
        if nohup:
            (tmp_path / "state").unlink()
            wait_for(tmp_path / "state")  # it goes on
            process.terminate()
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    assert load_model(tmp_path / "model").training["stopped"] == "interrupted"


@pytest.mark.parametrize("older", [True, False])
def test_before_the_first_epoch_ends_nothing_is_written(tmp_path, monkeypatch, older):
    out = tmp_path / "model"
    if older:
        run("train", "iris:1", "--epochs", 1, "--out", out)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def train(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", train)
    done = run("train", "breast_cancer", "--out", out, "--overwrite", status=130)
    assert (done.stdout, done.stderr.strip()) == ("", "p4sgd train: interrupted")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.fixture
def interrupted_run(monkeypatch):
    """Press Ctrl-C in a certain run of the emulator, which is an epoch of a row."""

    def begin(number):
        runs, wait = itertools.count(1), EmulatedDevice.wait

        def wait_or_stop(self, timeout_s=None):
            if next(runs) == number:
                raise KeyboardInterrupt
            wait(self, timeout_s)

        monkeypatch.setattr(EmulatedDevice, "wait", wait_or_stop)

    return begin


def test_what_is_done_of_several_rows_is_told(tmp_path, monkeypatch, interrupted_run):
    monkeypatch.chdir(tmp_path)
    words = ["train", "iris", "--epochs", "3"]
    interrupted_run(6)
    assert run(*words, "--checkpoint", "c", status=130).stderr.splitlines()[-3:] == [
        "p4sgd train: interrupted",
        "p4sgd train: 1 of 3 rows of the model are finished, and 2 epochs of versicolor",
        "p4sgd train: c has the state after epoch 2 of row 2 of 3; to resume: p4sgd train --resume c",
    ]
    interrupted_run(1)
    told = run(*words, status=130).stderr
    assert "0 of 3 rows of the model are finished, and 0 epochs of setosa; nothing is kept: --checkpoint" in told
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    resumed, whole = (json.loads(run("train", *each, "--json").stdout) for each in (["--resume", "c"], words[1:]))
    assert resumed["weights_sha256"] == whole["weights_sha256"]


FEW_TRIALS = ["--precision", "8", "--batch", "16", "--l2", "1e-4,0.001", "--splits", "1", "--epochs", "2"]


@pytest.mark.parametrize(("number", "finished"), [(1, 0), (6, 2), (7, 3)], ids=["first", "third", "the chosen model"])
def test_runs_of_tune_that_are_done_are_shown(tmp_path, interrupted_run, number, finished):
    interrupted_run(number)
    words = [*FEW_TRIALS, "--out", str(tmp_path / "model")]
    done = run("tune", "iris:1", *words, status=130)
    shown = [line.split() for line in done.stdout.splitlines() if " 16 " in line]
    assert [line[-4] for line in shown] == ["default", "0.0001", "0.001"][:finished]
    assert not (tmp_path / "model").exists()
    assert done.stderr.splitlines()[-1] == f"p4sgd tune: {finished} of 3 runs are finished; no model is kept"


def test_the_chosen_model_that_is_interrupted_is_kept_and_told(tmp_path, interrupted_run):
    interrupted_run(8)  # after its first epoch
    words = [*FEW_TRIALS, "--lr", "0.02"]  # so that the second epoch is better
    done = run("tune", "iris:1", *words, "--out", tmp_path / "model", "--quiet", status=130)
    assert done.stderr == f"p4sgd tune: interrupted; its best model so far is kept in {tmp_path}/model\n"
    assert load_model(tmp_path / "model").training["stopped"] == "interrupted"


def test_ctrl_c_again_while_the_device_is_closed(tmp_path, monkeypatch):
    """A simulator takes up to half a minute to end."""

    def close(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(EmulatedDevice, "close", close)
    done = run("train", "iris:1", "--epochs", 2, "--out", tmp_path / "model", status=130)
    assert done.stderr.strip() == "p4sgd train: interrupted"
    assert load_model(tmp_path / "model").training["stopped"] == "epochs"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM], ids=lambda by: by.name)
@pytest.mark.parametrize("words", [("switch", "serve"), ("worker", "--config", "tiny")], ids=lambda words: words[0])
def test_servers_end_while_they_compile(tmp_path, words, by):
    """Numba calls Python from C, where KeyboardInterrupt would be lost or become another error."""
    command = [PROGRAM, *words, "--interface", f"udp:{loopback(120)}", "--control", f"unix:{tmp_path}/control"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stderr=pipe, text=True, env=environment, preexec_fn=heed_interrupts) as process:
        said = process.stderr.readline()
        assert said.startswith("compiling the "), said
        process.send_signal(by)
        assert process.stderr.read() == ""
        assert process.wait(60) == 0
    assert not (tmp_path / "control").exists()


def test_commands_run_in_any_thread():
    """Python lets the main thread alone handle signals; notebooks and benches call commands from others."""
    with ThreadPoolExecutor(1) as pool:
        assert "p4sgd" in pool.submit(run, "info").result().stdout
