"""Building simulators."""

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.waves import TICKS, read_changes, skip_without_headers

from p4sgd.sim import verilator
from p4sgd.sim.verilator import Build, MissingToolError, SimulationError, build

MODULE = "module {name} (input a, output b); assign b = ~a; endmodule"


@pytest.mark.rtl
@pytest.mark.slow
def test_the_library_is_compiled_once(tmp_path, monkeypatch):
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
    assert [*(tmp_path / "cache" / "verilated").glob("library-*")] == [library]


def test_what_waveforms_lack_is_named(tmp_path, monkeypatch):
    (tmp_path / "lz4.h").write_text("#error no such file\n")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path))  # which comes before the folders of the system
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingToolError, match=r"lz4\.h:1:2: error: .* apt-get install liblz4-dev zlib1g-dev"):
        build(MODULE.format(name="inverter"), "inverter", waves=True)


def xorshift(x):
    x ^= x << 13 & 0xFFFFFFFF
    x ^= x >> 17
    return x ^ x << 5 & 0xFFFFFFFF


@pytest.mark.rtl
@pytest.mark.slow
def test_a_bench_leaves_a_waveform_of_its_internal_signals(tmp_path):
    skip_without_headers()
    waves = tmp_path / "noise.fst"
    bench = Path(__file__).with_name("cluster") / "test_noise.py"
    done = {
        test: subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
            env=os.environ | {"P4SGD_WAVES": str(waves)},
            capture_output=True,
            text=True,
            check=False,
        )
        for test in (str(bench), f"{bench}::test_xorshift_has_the_whole_period", f"{bench}::test_noise")
    }
    several, other, one = done.values()
    assert "P4SGD_WAVES is a file for one test, not for 2" in several.stderr
    assert "no waveform: no bench ran" in other.stdout
    assert f"waveform in {waves}" in one.stdout
    for number in range(8):
        values = read_changes(waves)[f"generators.noise{number}.value"]
        following = [
            (before, after)
            for (since, before), (at, after) in pairwise(values)
            if at - since == TICKS and before and after  # 0 and a seed are not made from the value before
        ]
        assert len(following) > 1000
        assert all(after == xorshift(before) for before, after in following)


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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", ["INT $PPID", "KILL $$", "KILL $PPID"], ids=["Ctrl-C", "it is killed", "we are killed"])
def test_a_program_that_ends_early_is_an_error_and_nothing_is_left_running(tmp_path, end):
    """It starts two others. All hold a named pipe open."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)  # so that it need not wait for a writer
    os.set_blocking(reader, True)
    busy = ["sh", "-c", f"exec 9>pipe; sleep 600 & sleep 600 & echo begun; kill -{end}; wait"]
    if end == "KILL $PPID":
        code = f"import pathlib; from p4sgd.sim import verilator; verilator._run(pathlib.Path(), {busy}, '')"
        assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == -signal.SIGKILL
    else:
        error = SimulationError if "KILL" in end else KeyboardInterrupt
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which background jobs of shells ignore
        try:
            with pytest.raises(error, match="sh ended with -9:\nbegun" if "KILL" in end else None):
                verilator._run(tmp_path, busy, "")
        finally:
            signal.signal(signal.SIGINT, before)
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

    monkeypatch.setattr(verilator.Verilator, "test", run)
    with pytest.raises(SimulationError, match=says):
        Build(tmp_path, "top", waves=False).run("bench", tmp_path)
