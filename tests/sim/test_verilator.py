"""Building simulators."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from p4sgd.sim import verilator
from p4sgd.sim.verilator import Build, MissingToolError, SimulationError, _Runner, build

MODULE = "module {name} (input a, output b); assign b = ~a; endmodule"


@pytest.mark.rtl
@pytest.mark.slow
def test_the_library_is_compiled_once_but_for_waves(tmp_path, monkeypatch):
    """All of it without a command `python`, which Debian and Ubuntu have only while a virtual environment is active."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 127\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path / "cache"))
    logs = [(build(MODULE.format(name=name), name).directory / "build.log").read_text() for name in ("first", "second")]
    (library,) = (tmp_path / "cache" / "verilated").glob("library-*")
    assert "-o verilated.o" in (library / "build.log").read_text()
    for log in logs:
        assert "-o verilated" not in log
        assert f"-include ../{library.name}/prelude.h" in log
        assert "-o Vtop__ALL.o" in log
    build(MODULE.format(name="first"), "first", waves=True)
    assert len([*(tmp_path / "cache" / "verilated").glob("library-*")]) == 2


def test_folders_that_make_refuses_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path / "my cache"))
    with pytest.raises(SimulationError, match=r"space in its name, .*/my cache: set P4SGD_CACHE"):
        build(MODULE.format(name="inverter"), "inverter")
    assert not (tmp_path / "my cache").exists()
    package = tmp_path / "my environment" / "verilator"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    with pytest.raises(MissingToolError, match=r"space in its name, .*/my environment/verilator: make the virtual"):
        verilator.environment()


def test_programs_tell_how_far_they_are(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(verilator, "_STEP_SECONDS", 0.1)
    caplog.set_level("INFO", logger="p4sgd.sim")
    (tmp_path / "build.log").write_text("of another program -c -o\n")
    program = ["sh", "-c", "for i in 1 2; do echo g++ -c -o $i.o; sleep 0.5; done; exit 3"]
    with pytest.raises(SimulationError, match="sh ended with 3"):
        verilator._run(tmp_path, program, lambda text: f"file {text.count('-c -o')} of 2")
    assert {"file 1 of 2", "file 2 of 2"} <= set(caplog.messages) <= {"file 0 of 2", "file 1 of 2", "file 2 of 2"}


BUSY = ["sh", "-c", "exec 9>pipe; sleep 600 & sleep 600 & echo $$ started; wait"]
"""A program that starts two others. All hold a named pipe open."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", ["Ctrl-C", "the program is killed", "this process is killed"])
def test_nothing_is_left_running(tmp_path, monkeypatch, end):
    monkeypatch.setattr(verilator, "_STEP_SECONDS", 0.05)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)  # so that it need not wait for a writer
    os.set_blocking(reader, True)

    def step(text):
        if "started" in text:
            if end == "Ctrl-C":
                raise KeyboardInterrupt
            os.kill(int(text.split()[0]), signal.SIGKILL)
        return ""

    if end == "this process is killed":
        code = f"""if True:
            import os, pathlib
            from p4sgd.sim import verilator
            verilator._run(pathlib.Path(), {BUSY}, lambda text: os.kill(os.getpid(), 9 if "started" in text else 0))"""
        assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == -signal.SIGKILL
    else:
        with pytest.raises(KeyboardInterrupt if end == "Ctrl-C" else SimulationError):
            verilator._run(tmp_path, BUSY, step)
    assert os.read(reader, 1) == b"", "nobody holds the pipe"
    os.close(reader)


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ('<testsuites><testsuite tests="3" failures="1" errors="1"/></testsuites>', "2 of 3 tests of bench failed"),
        (None, "the simulator failed .*not found"),
    ],
    ids=["failures", "no results"],
)
def test_what_the_runner_leaves_to_its_caller(tmp_path, monkeypatch, results, says):
    """Outside pytest the runner returns as if nothing were wrong, as this stand-in does."""

    def run(self, *, results_xml, **_):
        path = Path(results_xml)
        if results is not None:
            path.write_text(results)
        return path

    monkeypatch.setattr(_Runner, "test", run)
    with pytest.raises(SimulationError, match=says):
        Build(tmp_path, "top", waves=False).run("bench", tmp_path)
