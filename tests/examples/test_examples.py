"""The examples work: commands of their pages run as written, and what they show is held against the golden model."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.command_line import run
from support.jobs import SMALL, random_job, run_on

from p4sgd.build.generate.boards import BOARDS
from p4sgd.host.losses import LOSSES, get_loss
from p4sgd.host.losses.loss import table_error
from p4sgd.hw.spec.registry import PLUGINS
from p4sgd.sim.emulator import EmulatedDevice

HERE = Path(__file__).parent
LOSS, BOARD = HERE / "04_loss" / "log_cosh.py", HERE / "05_board" / "quiet.py"
SLOW = {"05_board"}
"""Folders whose commands generate Verilog."""
TESTED_APART = {"06_drive_a_worker"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=[pytest.mark.slow] * (path.name in SLOW))
        for path in sorted(HERE.glob("[0-9]*"))
        if path.name not in TESTED_APART
    ],
)
def test_the_commands_of_a_page_work(name, tmp_path):
    """In a copy of its folder; what a page says that a program prints, it prints."""
    text = (HERE / name / "README.md").read_text()
    assert len(text.splitlines()) <= 40
    assert f"[{name}]({name}/README.md)" in (HERE / "README.md").read_text()
    folder = shutil.copytree(HERE / name, tmp_path / name)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        done = subprocess.run(
            ["sh", "-e", "-c", block],
            cwd=folder,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    for shown in re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        written = [each.read_text() for each in folder.rglob("manifest.json")]
        assert any(shown.strip() in each for each in [done.stdout, *written])


@pytest.fixture
def plugins(monkeypatch):
    """This process, too, knows the loss and the board."""

    def forget():
        for registry in (LOSSES, BOARDS):
            vars(registry).pop("_others", None)  # what was found once

    forget()
    monkeypatch.setenv(PLUGINS, os.pathsep.join([str(LOSS), str(BOARD)]))
    yield forget
    forget()


def test_a_loss_of_ones_own_is_exact_on_devices(plugins):
    """Its table has the error that it states, and its residuals are those of the golden model."""
    loss = get_loss("log_cosh")
    assert table_error(loss.table(), loss.psi) <= loss.largest_error
    z, y, step = np.linspace(-9, 9, 101), np.full(101, 0.5), 1e-5
    slope = (loss.value(z + step, y) - loss.value(z - step, y)) / (2 * step)
    assert loss.residual(z, y) == pytest.approx(slope, abs=1e-8)
    for seed in range(3):
        job = random_job(SMALL, 2, seed=seed, loss="log_cosh")
        weights, _, _ = run_on(EmulatedDevice(SMALL, 2), job)
        assert [each.tolist() for each in weights] == [each.tolist() for each in job.golden().weights]


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ("return x / np.abs(x)", "psi of log_cosh gives NaN for 0"),
        ("return 1.0", "psi of log_cosh gives no array of real numbers of the shape"),
        ("return x[:1]", "psi of log_cosh gives no array of real numbers of the shape"),
        ("return x[9999]", "psi of log_cosh raises IndexError: index 9999"),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused(plugins, tmp_path, monkeypatch, after, says):
    file = tmp_path / "other.py"
    file.write_text(LOSS.read_text().replace("return np.tanh(x)", after))
    monkeypatch.setenv(PLUGINS, str(file))
    stderr = run("train", "diabetes", "--loss", "log_cosh", status=2).stderr
    assert f"P4SGD_PLUGINS: {file}: ValueError: {says}" in stderr
    assert stderr.count("\n") == 1


def test_a_model_says_what_it_lacks(plugins, monkeypatch, own_folder):
    """The weights are those of any workers; without the file, predictions name it."""
    words = ["train", "diabetes", "--loss", "log_cosh", "--epochs", "2", "--json"]

    def weights(*more):
        return json.loads(run(*words, *more).stdout)["weights_sha256"]

    assert weights("--out", "model") == weights("--workers", "2", "--config", "tiny")
    run("predict", "model", "diabetes")
    monkeypatch.delenv(PLUGINS)
    plugins()
    said = run("predict", "model", "diabetes", status=2).stderr
    assert f"model: its loss log_cosh is of the file {LOSS}, which is not here: install" in said
    assert "there is no loss 'log_cosh': choose one of logistic, " in run(*words, status=2).stderr


def test_the_board_is_one_of_ours_with_less_power(plugins):
    quiet = BOARDS["u50_quiet"]
    assert (quiet.watts, quiet.part) == (45, BOARDS["u50"].part)
    found = json.loads(run("info", "--json").stdout)["plugins"]
    sources = {"log_cosh": ("loss", f"file {LOSS}"), "u50_quiet": ("board", f"file {BOARD}")}
    assert {each["plugin"]: (each["kind"], each["source"]) for each in found} == sources
