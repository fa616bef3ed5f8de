"""The `rtl` device: the generated Verilog of a whole cluster under Verilator.

Slow (10^4 to 10^5 cycles a second) and exact: what runs is what a board would run. Needs g++ and make.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from p4sgd.host.aggregators.fpga import FpgaAggregator
from p4sgd.host.aggregators.membership import Membership
from p4sgd.host.devices.device import Device
from p4sgd.host.devices.faults import fault_inputs
from p4sgd.host.devices.job_workers import JobWorkers, is_start
from p4sgd.host.devices.simulator import SimulatedBanks, Simulator
from p4sgd.host.errors import P4sgdError
from p4sgd.host.files import new_file
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.packet import DropReason

if TYPE_CHECKING:
    from p4sgd.sim.cluster.protocol import MemoryTiming
    from p4sgd.sim.cluster.trace import Trace

_SLICE_CYCLES = 200_000
"""Cycles that one request lets pass, so that a time-out is noticed within seconds."""


class RtlWorker:
    """One worker of a simulated cluster. Its memory is handed over when a run starts."""

    def __init__(self, device: "RtlDevice", index: int, banks: SimulatedBanks) -> None:
        self._device = device
        self._index = index
        self._banks = banks
        self.config = device.config
        self.read_memory = banks.read
        self.write_memory = banks.write

    def read_register(self, offset: int) -> int:
        return self._device.cluster_read(self._index, offset)

    def write_register(self, offset: int, word: int) -> None:
        """Write a word over AXI4-Lite; the aggregator hears of a join as from a switch's controller."""
        if is_start(offset, word):
            self._banks.hand_over()
        self._device.job_workers.before_write(self, self._index, self._index, offset, word)
        self._device.cluster_write(self._index, offset, word)


class RtlDevice(Device):
    """A cluster of ``workers`` workers and an aggregator, simulated from its Verilog.

    Workers that join under the same job number are a job; there may be several at a time
    (`p4sgd.host.aggregators.membership`). ``seed`` and ``chances``, as for `inject_faults`, are of simulated faults;
    ``waves`` is where to leave a waveform (VCD); ``on_trace`` is called with the trace of the workers in the end;
    ``memory`` tells how fast the memories are.

    A `UserError` if a chance is too small to be simulated; a `P4sgdError` if a tool is missing, or the model cannot be
    built.
    """

    name = "rtl"
    workers: Sequence[RtlWorker] = ()

    def __init__(
        self,
        config: WorkerConfig,
        workers: int,
        *,
        seed: int = 0,
        waves: Path | None = None,
        on_trace: "Callable[[Trace], None] | None" = None,
        memory: "MemoryTiming | None" = None,
        **chances: float,
    ) -> None:
        from p4sgd.sim.cluster.cluster import build_cluster
        from p4sgd.sim.cluster.protocol import MemoryTiming

        self.config = config
        self._waves = waves
        self._on_trace = on_trace
        self.job_workers = JobWorkers(lambda: self._membership)
        settings = {"seed": seed & 0xFFFFFFFF, "note_events": int(on_trace is not None)}
        settings |= dict.fromkeys(("spared", "up_cut", "down_cut"), 0)
        settings |= (memory or MemoryTiming()).inputs | fault_inputs(chances)
        self._simulator = Simulator(lambda: build_cluster(config, workers, waves=waves is not None), settings)
        self.workers = [
            RtlWorker(self, index, SimulatedBanks(config, index, self._simulator)) for index in range(workers)
        ]

    @cached_property
    def aggregator(self) -> FpgaAggregator:
        """The one between the workers; worker i is behind its port i."""
        index = len(self.workers)
        return FpgaAggregator(
            lambda offset: self.cluster_read(index, offset),
            lambda offset, word: self.cluster_write(index, offset, word),
        )

    @cached_property
    def _membership(self) -> Membership:
        return Membership(self.aggregator)

    def inject_faults(self, *, spared: Iterable[int] = (), **chances: float) -> None:
        """Set the chances of faults of memories, links and workers from now on; those not given are 0.

        ``spared`` workers have none, memories and links included. ``chances``, 0 to below 1, are those of
        ``memory_stall``, ``link_stall`` and ``worker_pause`` in each memory channel, cable or worker and cycle, and of
        what ``link_loss`` and the like do to frames (see `p4sgd.sim.cluster.link`): ``up_loss`` on the way from the
        workers only, ``down_loss`` on the way to them. A `UserError` if one is too small to be simulated.
        """
        self._simulator.request("set", spared=sum(1 << worker for worker in spared), **fault_inputs(chances))

    def cut(self, *, up: Iterable[int] = (), down: Iterable[int] = ()) -> None:
        """Cut the links from workers ``up`` and to workers ``down`` from now on, and restore all others."""
        self._simulator.request(
            "set", up_cut=sum(1 << index for index in up), down_cut=sum(1 << index for index in down)
        )

    def wait(self, timeout_s: float | None = None) -> None:
        """Simulate until every worker is idle; ``timeout_s`` is *simulated* time."""
        self.job_workers.take_started()
        limit = float("inf") if timeout_s is None else timeout_s * 1e9 / CLOCK_NS
        cycles = 0
        while not self._simulator.request("run", cycles=_SLICE_CYCLES):
            cycles += _SLICE_CYCLES
            if cycles >= limit:
                counted = self.aggregator.counters()
                accepted = sum(counted[f"JOB{place}_ACCEPTED"] for place in range(self.aggregator.config.jobs))
                dropped = [
                    f"{counted[f'DROPPED_{drop.name}']:,} {drop.help}"
                    for drop in DropReason
                    if counted[f"DROPPED_{drop.name}"]
                ]
                raise P4sgdError(
                    f"the simulated cluster was still running after {cycles:,} cycles; its aggregator has taken "
                    f"{accepted:,} packets and dropped {' and '.join(dropped) or 'none'}"
                )

    def close(self) -> None:
        """End the simulator, leaving the waveform and handing over the trace if they were wanted: a `UserError` if the
        waveform cannot be written, a `P4sgdError` if the trace is incomplete."""
        from p4sgd.sim.cluster.protocol import WAVEFORM
        from p4sgd.sim.cluster.trace import read_trace

        with contextlib.closing(self._simulator) as simulator:
            simulator.stop()
            try:
                if self._on_trace is not None and not simulator.failed:
                    self._on_trace(read_trace(simulator.folder, len(self.workers)))
            except ValueError as error:
                raise P4sgdError(str(error)) from error
            finally:  # the waveform may show what is wrong with the trace
                written = simulator.folder / WAVEFORM
                if self._waves is not None and written.exists():  # else the simulator has failed, which was told
                    with written.open("rb") as source, new_file(self._waves, written.stat().st_size) as target:
                        shutil.copyfileobj(source, target)

    def cluster_read(self, index: int, offset: int) -> int:
        """Read a register of a worker or, behind them, the aggregator."""
        return int(self._simulator.request("read", index=index, offset=offset))

    def cluster_write(self, index: int, offset: int, word: int) -> None:
        self._simulator.request("write", index=index, offset=offset, word=word)
