"""The `rtl` device: the generated Verilog of a whole cluster under Verilator.

Slow (10^4 to 10^5 cycles a second) and exact: what runs is what a board would run. Needs g++ and make.
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from p4sgd.host.aggregators.fpga import FpgaAggregator
from p4sgd.host.aggregators.membership import Membership
from p4sgd.host.devices.faults import fault_inputs
from p4sgd.host.devices.job_workers import JobWorkers, intercept_write
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
        self.config = device.config
        self.read_memory = banks.read
        self.write_memory = banks.write
        self.hand_over = banks.hand_over

    def read_register(self, offset: int) -> int:
        return self._device.cluster_read(self._index, offset)

    def write_register(self, offset: int, word: int) -> None:
        """Write a word over AXI4-Lite; a start first hands the memory over, a join is told to the aggregator."""
        intercept_write(
            offset,
            word,
            on_join=lambda first_round: self._device.before_join(self._index, first_round),
            on_start=lambda: self._device.before_start(self._index),
        )
        self._device.cluster_write(self._index, offset, word)


class RtlDevice:
    """A cluster of ``workers`` workers and an aggregator, simulated from its Verilog.

    Workers that join under the same job number are a job; there may be several at a time
    (`p4sgd.host.aggregators.membership`).

    Parameters
    ----------
    config
        Size of every worker.
    workers
        How many.
    seed
        Of the simulated faults.
    waves
        Where to leave a waveform (VCD).
    on_trace
        Called with the trace of the workers when the device is closed.
    memory
        How fast the memories are; None for the default.
    chances
        Chances of faults, as for `inject_faults`.

    Raises
    ------
    UserError
        If a chance is too small to be simulated.
    P4sgdError
        If a tool is missing, or the model cannot be built.
    """

    name = "rtl"
    network_settings = None
    links = sensors = None
    shares = None
    names = None
    absent = ()
    message_times = None

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
        from p4sgd.sim.cluster.build import build_cluster
        from p4sgd.sim.cluster.protocol import MemoryTiming

        self.config = config
        self._waves = waves
        self._on_trace = on_trace
        self._job_workers = JobWorkers(lambda: self._membership)
        settings = {"seed": seed & 0xFFFFFFFF, "note_events": int(on_trace is not None)}
        settings |= dict.fromkeys(("spared", "up_cut", "down_cut"), 0)
        settings |= (memory or MemoryTiming()).inputs | fault_inputs(chances)
        self._simulator = Simulator(lambda: build_cluster(config, workers, waves=waves is not None), settings)
        self._workers = [
            RtlWorker(self, index, SimulatedBanks(config, index, self._simulator)) for index in range(workers)
        ]

    @property
    def workers(self) -> Sequence[RtlWorker]:
        return self._workers

    @cached_property
    def aggregator(self) -> FpgaAggregator:
        """The one between the workers; worker i is behind its port i."""
        index = len(self._workers)
        return FpgaAggregator(
            lambda offset: self.cluster_read(index, offset),
            lambda offset, word: self.cluster_write(index, offset, word),
        )

    @cached_property
    def _membership(self) -> Membership:
        return Membership(self.aggregator)

    def inject_faults(self, *, spared: Iterable[int] = (), **chances: float) -> None:
        """Set the chances of faults of memories, links and workers from now on; those not given are 0.

        Parameters
        ----------
        spared
            Workers without faults, memories and links included.
        chances
            0 to below 1, of ``memory_stall``, ``link_stall`` and ``worker_pause`` in each memory channel, cable or
            worker and cycle, and of what ``link_loss`` and the like do to frames (see `p4sgd.sim.cluster.link`):
            ``up_loss`` on the way from the workers only, ``down_loss`` on the way to them.

        Raises
        ------
        UserError
            If a chance is too small to be simulated.
        """
        self._simulator.request("set", spared=sum(1 << worker for worker in spared), **fault_inputs(chances))

    def cut(self, *, up: Iterable[int] = (), down: Iterable[int] = ()) -> None:
        """Cut the links from workers ``up`` and to workers ``down`` from now on, and restore all others."""
        self._simulator.request(
            "set", up_cut=sum(1 << index for index in up), down_cut=sum(1 << index for index in down)
        )

    def wait(self, timeout_s: float | None = None) -> None:
        """Simulate until every worker is idle; ``timeout_s`` is *simulated* time."""
        self._job_workers.take_started()
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

    def drop(self, lost: Collection[int]) -> None:
        """See `Device.drop`: a simulated cluster cannot."""
        raise P4sgdError("the workers of a simulated cluster cannot go on without the others")

    def take_in(self, tell: Callable[[str], None]) -> Collection[int]:
        """See `Device.take_in`: other workers never come."""
        return ()

    def clear(self) -> None:
        """See `Device.clear`: the simulator is another process."""

    def close(self) -> None:
        """End the simulator, leaving the waveform and handing over the trace if they were wanted.

        Raises
        ------
        UserError
            If the waveform cannot be written.
        P4sgdError
            If the trace is incomplete.
        """
        try:
            self._simulator.stop()
            try:
                if self._on_trace is not None and not self._simulator.failed:
                    self._hand_over_trace(self._on_trace)
            finally:  # the waveform may show what is wrong with the trace
                if self._waves is not None:
                    self._keep_waveform(self._waves)
        finally:
            self._simulator.close()

    def _keep_waveform(self, path: Path) -> None:
        from p4sgd.sim.cluster.protocol import WAVEFORM

        written = self._simulator.folder / WAVEFORM
        if written.exists():  # else the simulator has failed, which was told
            with written.open("rb") as source, new_file(path, written.stat().st_size) as target:
                shutil.copyfileobj(source, target)

    def _hand_over_trace(self, take: "Callable[[Trace], None]") -> None:
        from p4sgd.sim.cluster.trace import read_trace

        try:
            trace = read_trace(self._simulator.folder, len(self._workers))
        except ValueError as error:
            raise P4sgdError(str(error)) from error
        take(trace)

    # -- for the workers -----------------------------------------------------------------------------------------

    def cluster_read(self, worker: int, offset: int) -> int:
        return int(self._simulator.request("read", index=worker, offset=offset))

    def cluster_write(self, worker: int, offset: int, word: int) -> None:
        self._simulator.request("write", index=worker, offset=offset, word=word)

    def before_join(self, worker: int, first_round: int) -> None:
        """Register a worker with the aggregator, as a switch's controller does."""
        self._job_workers.join(self._workers[worker], worker, worker, first_round)

    def before_start(self, worker: int) -> None:
        """Load the memory that the host wrote, and note that the worker runs."""
        self._workers[worker].hand_over()
        self._job_workers.start(worker)
