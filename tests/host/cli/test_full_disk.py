"""A full disk: one line, exit status 2, and what was there before stays."""

import os
import subprocess

import pytest
from click.testing import CliRunner
from support.command_line import PROGRAM
from support.disk import small_disk

from p4sgd.host.cli.app import main

pytestmark = pytest.mark.usefixtures("own_folder")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Trained without a limit, which also puts the emulator's compiled kernels in their cache."""
    path = tmp_path_factory.mktemp("model") / "model"
    assert CliRunner().invoke(main, ["train", "breast_cancer", "--epochs", "1", "--out", str(path)]).exit_code == 0
    return path


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize(
    ("words", "out", "limit"),
    [
        ("train breast_cancer --epochs 1 --out out --overwrite", "out", 1024),
        ("predict MODEL breast_cancer --probabilities --out out --overwrite", "out", 1024),
        ("data synth rcv1 --scale 0.01 --out out.npz --overwrite", "out.npz", 1024),
        ("data synth gisette --scale 0.02 --out out.libsvm --overwrite", "out.libsvm", 1024),
    ],
)
def test_full_disk(tmp_path, model, words, out, limit, older):
    words = words.replace("MODEL", str(model)).split()
    if older:
        (tmp_path / out).write_bytes(model.read_bytes())  # training replaces nothing but models
    before = contents(tmp_path)
    with small_disk(limit):
        done = CliRunner().invoke(main, words)
    assert done.exit_code == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert f"{out}: cannot write: the disk is full" in line
    assert contents(tmp_path) == before


def test_a_folder_on_a_full_disk(tmp_path):
    with small_disk(1024):
        done = CliRunner().invoke(main, ["switch", "build", "--target", "tofino", "--out", "out"])
    assert done.exit_code == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "out: cannot write: the disk is full: free some space" in line
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("words", ["predict MODEL breast_cancer --probabilities", "data synth rcv1 --scale 0.01"])
def test_full_disk_at_the_end_of_a_program(tmp_path, model, words):
    """Python closes files when it exits, which must not fail once more."""
    command = [PROGRAM, *words.replace("MODEL", str(model)).split(), "--out", "out.npz"]
    with small_disk(1024):
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "out.npz: cannot write: the disk is full" in line
    assert os.listdir(tmp_path) == []
