"""The `rtl` device, on a stand-in for its simulator."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from p4sgd.host.devices import open_device
from p4sgd.host.devices.faults import simulated_faults
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.cluster import cluster, process
from p4sgd.sim.cluster.protocol import MemoryTiming, Waveform
from p4sgd.sim.verilator import SimulationError


class Simulator:
    """A simulator that answers every request with 1. Tests write the files that it would write."""

    def __init__(self, _, settings, arguments):
        Simulator.last, self.settings, self.arguments = self, settings, arguments
        self.stopped = self.closed = self.dead = False

    def request(self, do, **_):
        if self.dead:
            raise SimulationError("the simulator ended unexpectedly")
        return 1

    def stop(self):
        self.stopped = True

    def close(self):
        self.closed = True


@pytest.fixture
def open_rtl(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "build_cluster", lambda *_, **__: None)
    monkeypatch.setattr(process, "ClusterProcess", Simulator)
    Simulator.directory = tmp_path / "scratch"
    Simulator.directory.mkdir()
    return lambda **options: open_device("rtl", WorkerConfig.tiny(), 1, **options)


DEFAULT = {name: value for name, value in MemoryTiming().inputs.items() if value}


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({"memory_stall": 0.003, "link_stall": 0.9999}, {"memory_stall": 1, "link_stall": 255}),
        ({"link_loss": 1e-5}, {"up_loss": 1, "down_loss": 1}),
        ({"link_loss": 0.5, "down_loss": 0.25}, {"up_loss": 1 << 15, "down_loss": 1 << 14}),
        ({"up_burst_begin": 0.125, "worker_pause": 2**-16}, {"up_burst_begin": 1 << 13, "worker_pause": 1}),
        ({"memory": MemoryTiming(latency=75, refresh=True)}, {"memory_latency": 75, "memory_refresh": 1}),
        ({"on_trace": print}, {"note_events": 1}),
    ],
)
def test_inputs_of_the_simulated_cluster(open_rtl, options, inputs):
    """Chances are rounded to the nearest, and a direction may have faults of its own."""
    open_rtl(**options)
    assert {name: value for name, value in Simulator.last.settings.items() if value} == DEFAULT | inputs


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        ({"memory_stall": 0.001}, UserError, "memory stall must be 0 or at least 0.00391, not 0.001"),
        ({"link_loss": 1e-6}, UserError, "link loss must be 0 or at least 1.53e-05, not 1e-06"),
        ({"link_stall": 1.0}, UserError, "link stall must be 0 to below 1, not 1"),
        ({"link_pause": 0.1}, TypeError, r"\['link_pause'\]"),
        pytest.param(
            {"waves": Waveform(Path(), "worker0.engine1")},
            UserError,
            r"--waves-scope .*worker0 has .*engine0, .*no engine1",
            marks=pytest.mark.slow,  # the cluster is elaborated
        ),
        *((wrong, ValueError, "must be") for wrong in ({"latency": 4}, {"latency": 1 << 15})),
        *((wrong, ValueError, "must be") for wrong in ({"outstanding": 0}, {"outstanding": 257})),
    ],
)
def test_what_cannot_be_simulated(open_rtl, make, error, says):
    with pytest.raises(error, match=says):
        (MemoryTiming if error is ValueError else open_rtl)(**make)
    assert simulated_faults({"memory_stall": 0.003, "link_loss": 0.25}) == {"memory_stall": 2**-8, "link_loss": 0.25}


def test_memory_of_a_worker(open_rtl):
    (worker,) = open_rtl().workers
    with pytest.raises(UserError, match=r"needs 16,777,217 bytes, the simulated memory has 16,777,216: use fewer"):
        worker.write_memory(0, 1 << 24, np.zeros(1, np.uint8))
    worker.write_memory(0, 0, np.arange(64, dtype=np.uint8))
    start = registers.CTRL.offset, registers.CTRL.encode(start=1)
    bank = Simulator.directory / "worker0_bank0.bin"
    bank.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"worker0_bank0\.bin: cannot write: No space left on device"):
        worker.write_register(*start)
    bank.unlink()
    worker.write_register(*start)
    assert bank.read_bytes() == bytes(range(64))
    bank.with_name("worker0_bank0.bin.txt").write_text("0 4\n00000000 0000")
    with pytest.raises(UserError, match="the disk may be full"):
        worker.read_memory(0, 0, 64)


@pytest.mark.parametrize("traced", [False, True])
def test_the_waveform_is_kept(open_rtl, tmp_path, traced):
    """Also if the trace is incomplete; an older one if the run ended before its first cycle."""
    waves = tmp_path / "run.fst"
    waves.write_text("an older one")
    with pytest.raises(UserError, match="--waves-window begins with cycle 1,000, before which the simulation ended"):
        open_rtl(waves=Waveform(waves, begin=1000)).close()
    assert waves.read_text() == "an older one"
    (Simulator.directory / "dump.fst").write_text("a waveform")
    with pytest.raises(UserError, match="cannot write"):
        open_rtl(waves=Waveform(tmp_path / "gone" / "run.fst")).close()
    more = {"on_trace": lambda _: pytest.fail("half a trace")} if traced else {}
    device = open_rtl(waves=Waveform(waves, "worker0", 10, 20), **more)
    assert Simulator.last.arguments == ["+waves_begin=40000", "+waves_end=80000", "+waves_scope=cluster.worker0"]
    (Simulator.directory / "events.txt").write_text("40 0 3\n")
    with pytest.raises(P4sgdError, match=r"events.txt is incomplete") if traced else contextlib.nullcontext():
        device.close()
    assert waves.read_text() == "a waveform"
    assert Simulator.last.stopped
    assert Simulator.last.closed


@pytest.mark.parametrize("dead", [False, True])
def test_the_trace_of_a_simulator_is_passed_on_unless_it_is_dead(open_rtl, dead):
    traces = []
    device = open_rtl(on_trace=traces.append)
    (Simulator.directory / "events.txt").write_text("40 0 3\n" if dead else "end 0\n")
    if dead:
        Simulator.last.dead = True
        with pytest.raises(P4sgdError, match="ended unexpectedly"):
            device.workers[0].read_register(0)
    device.close()  # without an error, as the first call has reported it
    assert Simulator.last.closed
    assert [trace.whole for trace in traces] == ([] if dead else [True])
