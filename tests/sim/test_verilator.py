"""Building simulators."""

import pytest

from p4sgd.sim.verilator import build

MODULE = "module {name} (input a, output b); assign b = ~a; endmodule"


@pytest.mark.rtl
def test_the_library_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path))
    logs = [(build(MODULE.format(name=name), name).directory / "build.log").read_text() for name in ("first", "second")]
    assert ["-o verilated.o" in log for log in logs] == [True, False]
    assert all("-o Vtop__ALL.o" in log for log in logs)


@pytest.mark.rtl
def test_a_model_with_waves_has_a_library_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path))
    for waves in (False, True):
        built = build(MODULE.format(name="inverter"), "inverter", waves=waves)
        assert "-o verilated.o" in (built.directory / "build.log").read_text()
