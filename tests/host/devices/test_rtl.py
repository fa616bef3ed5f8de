"""The `rtl` device, on a stand-in for its simulator."""

import contextlib

import numpy as np
import pytest

from p4sgd.host.devices import open_device
from p4sgd.host.devices.faults import simulated_faults
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.cluster import build, process
from p4sgd.sim.cluster.protocol import MemoryTiming
from p4sgd.sim.verilator import SimulationError


class Simulator:
    """A simulator that answers every request with 1. Tests write the files that it would write."""

    def __init__(self, _, settings):
        self.settings = settings
        self.stopped = self.closed = False

    def request(self, do, **_):
        return 1

    def stop(self):
        self.stopped = True

    def close(self):
        self.closed = True


@pytest.fixture
def open_rtl(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "build_cluster", lambda *_, **__: None)
    monkeypatch.setattr(process, "ClusterProcess", Simulator)
    Simulator.directory = tmp_path / "scratch"
    Simulator.directory.mkdir()
    return lambda **options: open_device("rtl", WorkerConfig.tiny(), 1, **options)


def faults_of(device):
    """Inputs that are not 0, but for those of the memories' timing."""
    inputs = device._simulator._process.settings
    return {name: value for name, value in inputs.items() if value and name not in MemoryTiming().inputs}


def test_memories_are_as_fast_as_they_are_to_be(open_rtl):
    inputs = open_rtl(memory=MemoryTiming(latency=75, refresh=True))._simulator._process.settings
    assert {name: value for name, value in inputs.items() if value} == {
        "memory_latency": 75,
        "memory_outstanding": MemoryTiming().outstanding,
        "memory_refresh": 1,
    }


@pytest.mark.parametrize("wrong", [{"latency": 4}, {"latency": 1 << 15}, {"outstanding": 0}, {"outstanding": 257}])
def test_memories_are_not_faster_than_their_model(wrong):
    with pytest.raises(ValueError, match="must be"):
        MemoryTiming(**wrong)


@pytest.mark.parametrize(
    ("chances", "inputs"),
    [
        ({"memory_stall": 0.003, "link_stall": 0.9999}, {"memory_stall": 1, "link_stall": 255}),
        ({"link_loss": 1e-5}, {"up_loss": 1, "down_loss": 1}),
        ({"link_loss": 0.5, "down_loss": 0.25}, {"up_loss": 1 << 15, "down_loss": 1 << 14}),
        ({"up_burst_begin": 0.125, "worker_pause": 2**-16}, {"up_burst_begin": 1 << 13, "worker_pause": 1}),
    ],
)
def test_chances_are_rounded_to_the_nearest(open_rtl, chances, inputs):
    """And a direction may have faults of its own."""
    assert faults_of(open_rtl(**chances)) == inputs


def test_what_is_simulated():
    assert simulated_faults({"memory_stall": 0.003, "link_loss": 0.25}) == {"memory_stall": 2**-8, "link_loss": 0.25}


def test_unknown_faults(open_rtl):
    with pytest.raises(TypeError, match=r"\['link_pause'\]"):
        open_rtl(link_pause=0.1)


@pytest.mark.parametrize(
    ("name", "chance", "says"),
    [
        ("memory_stall", 0.001, "memory stall must be 0 or at least 0.00391, not 0.001"),
        ("link_loss", 1e-6, "link loss must be 0 or at least 1.53e-05, not 1e-06"),
        ("link_stall", 1.0, "link stall must be 0 to below 1, not 1"),
    ],
)
def test_chances_that_cannot_be_simulated(open_rtl, name, chance, says):
    with pytest.raises(UserError, match=says):
        open_rtl(**{name: chance})


def test_a_full_memory(open_rtl):
    with pytest.raises(UserError, match=r"needs 16,777,217 bytes, the simulated memory has 16,777,216: use fewer"):
        open_rtl().workers[0].write_memory(0, 1 << 24, np.zeros(1, np.uint8))


def test_memory_that_cannot_be_written(open_rtl):
    worker = open_rtl().workers[0]
    worker.write_memory(0, 0, np.zeros(64, np.uint8))
    (Simulator.directory / "worker0_bank0.bin").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"worker0_bank0\.bin: cannot write: No space left on device"):
        worker.write_register(registers.CTRL.offset, registers.CTRL.encode(start=1))


def test_memory_that_was_saved_in_part(open_rtl):
    device = open_rtl()
    worker = device.workers[0]
    worker.write_memory(0, 0, np.arange(64, dtype=np.uint8))
    worker.write_register(registers.CTRL.offset, registers.CTRL.encode(start=1))
    assert (Simulator.directory / "worker0_bank0.bin").read_bytes() == bytes(range(64))
    (Simulator.directory / "worker0_bank0.bin.txt").write_text("0 4\n00000000 0000")
    with pytest.raises(UserError, match="the disk may be full"):
        worker.read_memory(0, 0, 64)


@pytest.mark.parametrize("traced", [False, True])
def test_the_waveform_is_kept(open_rtl, tmp_path, traced):
    """Also if the trace is incomplete."""
    more = {"on_trace": lambda _: pytest.fail("half a trace")} if traced else {}
    device = open_rtl(waves=tmp_path / "run.vcd", **more)
    (Simulator.directory / "dump.vcd").write_text("$timescale")
    (Simulator.directory / "events.txt").write_text("40 0 3\n")
    with pytest.raises(P4sgdError, match=r"events.txt is incomplete") if traced else contextlib.nullcontext():
        device.close()
    assert (tmp_path / "run.vcd").read_text() == "$timescale"
    assert device._simulator._process.stopped
    assert device._simulator._process.closed


@pytest.mark.parametrize("reason", ["no folder", "no waveform"])
def test_a_waveform_that_cannot_be_saved(open_rtl, tmp_path, reason):
    waves = tmp_path / "run.vcd"
    waves.write_text("an older one")
    if reason == "no folder":
        (Simulator.directory / "dump.vcd").write_text("$timescale")
        device = open_rtl(waves=tmp_path / "gone" / "run.vcd")
        with pytest.raises(UserError, match="cannot write"):
            device.close()
    else:  # the simulator has written none
        device = open_rtl(waves=waves)
        device.close()
    assert waves.read_text() == "an older one"
    assert device._simulator._process.closed


def test_the_trace_is_passed_on(open_rtl):
    traces = []
    device = open_rtl(on_trace=traces.append)
    assert device._simulator._process.settings["note_events"] == 1
    (Simulator.directory / "events.txt").write_text("end 0\n")
    device.close()
    assert [trace.whole for trace in traces] == [True]
    assert open_rtl()._simulator._process.settings["note_events"] == 0, "no events are recorded if nobody reads them"


def test_a_dead_simulator_has_no_trace(open_rtl, monkeypatch):
    device = open_rtl(on_trace=lambda _: pytest.fail("half a trace"))
    (Simulator.directory / "events.txt").write_text("40 0 3\n")

    def dead(*_, **__):
        raise SimulationError("the simulator ended unexpectedly")

    monkeypatch.setattr(device._simulator._process, "request", dead)
    with pytest.raises(P4sgdError, match="ended unexpectedly"):
        device.workers[0].read_register(0)
    device.close()  # without an error, as the first call has reported it
    assert device._simulator._process.closed
