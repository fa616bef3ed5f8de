"""Building simulators."""

import time
from pathlib import Path

import pytest

from p4sgd.sim import verilator
from p4sgd.sim.verilator import Build, SimulationError, _Runner, build

MODULE = "module {name} (input a, output b); assign b = ~a; endmodule"


@pytest.mark.rtl
@pytest.mark.slow
def test_the_library_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path))
    logs = [(build(MODULE.format(name=name), name).directory / "build.log").read_text() for name in ("first", "second")]
    (library,) = (tmp_path / "verilated").glob("library-*")
    assert "-o verilated.o" in (library / "build.log").read_text()
    for log in logs:
        assert "-o verilated" not in log
        assert f"-include ../{library.name}/prelude.h" in log
        assert "-o Vtop__ALL.o" in log


@pytest.mark.rtl
@pytest.mark.slow
def test_a_model_with_waves_has_a_library_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path))
    for libraries, waves in enumerate((False, True), start=1):
        build(MODULE.format(name="inverter"), "inverter", waves=waves)
        assert len([*(tmp_path / "verilated").glob("library-*")]) == libraries


def test_programs_tell_how_far_they_are(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(verilator, "_STEP_SECONDS", 0.1)
    caplog.set_level("INFO", logger="p4sgd.sim")
    (tmp_path / "build.log").write_text("of another program -c -o\n")
    program = ["sh", "-c", "for i in 1 2; do echo g++ -c -o $i.o; sleep 0.5; done; exit 3"]
    with pytest.raises(SimulationError, match="sh ended with 3"):
        verilator._run(tmp_path, program, lambda text: f"file {text.count('-c -o')} of 2")
    assert {"file 1 of 2", "file 2 of 2"} <= set(caplog.messages) <= {"file 0 of 2", "file 1 of 2", "file 2 of 2"}


def test_a_program_ends_with_us(tmp_path, monkeypatch):
    def interrupt(text):
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        verilator._run(tmp_path, ["sleep", "60"], interrupt)
    assert time.monotonic() - begun < 30


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
