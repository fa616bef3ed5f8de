"""The page "Drive a worker yourself": what it tells to type, in a copy of its folder."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).with_name("06_drive_a_worker")
ICARUS = pytest.mark.skipif(
    shutil.which("iverilog") is None, reason="Icarus Verilog is missing: apt-get install iverilog"
)
COMMANDS = (
    "p4sgd generate --config tiny --ports 2 --out verilog",
    "p4sgd data prepare samples.csv --loss squared --precision 4 --scaling none --no-bias --batch 16 --unit 8 "
    "--workers 2 --config tiny --out images",
    "p4sgd train images --loss squared --lr 0.25 --schedule constant --epochs 1 --out samples.model",
)


def typed(command, folder, **variables):
    """Give a command of this environment in a folder; returns its status and what it says."""
    program, *words = shlex.split(command)
    command = [Path(sys.executable).with_name(program), *words]
    env = os.environ | {"COCOTB_LOG_LEVEL": "WARNING"} | variables
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    copy = tmp_path_factory.mktemp("worker") / EXAMPLE.name
    shutil.copytree(EXAMPLE, copy)
    for command in COMMANDS:
        code, says = typed(command, copy)
        assert code == 0, says
    return copy


def changed(folder, name, **texts):
    """A copy of the bench with other values of ``name=value``; returns what to type."""
    text = (folder / "bench.py").read_text()
    for key, value in texts.items():
        text, count = re.subn(rf"\b{key}=\w+", f"{key}={value}", text)
        assert count
    (folder / f"{name}.py").write_text(text)
    return f"python3 {name}.py"


@ICARUS
def test_the_bench_trains_to_the_weights_of_the_command(folder):
    """In SystemVerilog of 2012, as cocotb has it. Memories on chip are x at first."""
    code, says = typed("python3 bench.py", folder)
    assert code == 0, says
    assert (folder / "sim_build/bench.fst").stat().st_size > 10_000


@ICARUS
def test_the_bench_trains_by_the_oldest_standard(folder):
    """Without waveforms, for which cocotb writes SystemVerilog."""
    command = changed(folder, "standard", build_args='["-g2005"]', waves=False)
    code, says = typed(command, folder)
    assert code == 0, says


@ICARUS
@pytest.mark.slow
def test_another_rate_leads_to_other_weights(folder):
    code, says = typed(changed(folder, "other", mantissa=127), folder)
    assert code, says
    assert 'assert b"".join(memory.read' in says


@pytest.mark.slow
@pytest.mark.rtl
def test_it_runs_in_verilator_too(folder):
    """By what the README of the Verilog has one export."""
    (exports,) = re.findall(r"^`(export .*)`$", (folder / "verilog" / "README.md").read_text(), re.MULTILINE)
    faster = 'export MAKEFLAGS="$MAKEFLAGS OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0"'  # a third of the time
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["sh", "-e", "-c", f"{exports}; {faster}; SIM=verilator python3 bench.py"]
    env = os.environ | {"PATH": path}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "sim_build/dump.fst").stat().st_size > 10_000
