"""The `rtl` device: the generated Verilog of a whole cluster under Verilator.

Slow (10^4 to 10^5 cycles a second) and exact: what runs is what a board would run. Needs g++ and make.
"""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.aggregators.fpga import FpgaAggregator
from p4sgd.host.aggregators.membership import Membership
from p4sgd.host.devices.device import Device
from p4sgd.host.devices.faults import fault_inputs
from p4sgd.host.devices.job_workers import JobWorkers, is_start
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.files import new_file
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig
from p4sgd.hw.spec.packet import DropReason

if TYPE_CHECKING:
    from p4sgd.sim.cluster.protocol import MemoryTiming, Waveform
    from p4sgd.sim.cluster.trace import Trace
    from p4sgd.sim.verilator import Build

_SLICE_CYCLES = 200_000
"""Cycles that one request lets pass, so that a time-out is noticed within seconds."""


class Simulator:
    """A `p4sgd.sim.cluster.process.ClusterProcess`, whose model ``build`` compiles first or finds in the cache.

    ``settings`` are values of inputs, set before the reset; ``arguments`` are plus arguments of the program. ``failed``
    tells whether it has ended, or could not carry out a request. A `P4sgdError` if a tool is missing, or the model
    cannot be built; and later, if it has ended.
    """

    def __init__(
        self, build: "Callable[[], Build]", settings: Mapping[str, int], arguments: Sequence[str] = ()
    ) -> None:
        from p4sgd.sim.cluster.process import ClusterProcess

        self.failed = False
        with self._failures_told():
            self._process = ClusterProcess(build(), settings, arguments)
        self.folder: Path = self._process.directory  # of its files
        self.stop, self.close = self._process.stop, self._process.close  # its files stay, or are deleted

    def request(self, do: str, **arguments: object) -> Any:
        """Call a method of `p4sgd.sim.cluster.server` and return its result."""
        with self._failures_told():
            return self._process.request(do, **arguments)

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        from p4sgd.sim.verilator import MissingToolError, SimulationError

        try:
            yield
        except (MissingToolError, SimulationError) as error:
            self.failed = True
            raise P4sgdError(str(error)) from error


class SimulatedBanks:
    """Memory banks of a simulated worker, by its number in the simulator: written data is kept until a run starts, and
    read back after runs. A `UserError` where a bank is too small."""

    def __init__(self, config: WorkerConfig, worker: int, simulator: Simulator) -> None:
        from p4sgd.sim.cluster.protocol import MEMORY_BITS

        self._config = config
        self._worker = worker
        self._simulator = simulator
        self._bytes = 1 << MEMORY_BITS
        self._banks = [np.zeros(0, np.uint8) for _ in range(config.memories)]
        self._dirty: set[int] = set()
        self._stale: set[int] = set()

    def write(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Copy bytes into a bank."""
        self._check(bank, address, data.size)
        self._fetch(bank)
        self._put(bank, address, data.reshape(-1))
        self._dirty.add(bank)

    def read(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Copy bytes out of a bank; what was never written is 0."""
        self._check(bank, address, size)
        known = self._fetch(bank)[address : address + size]
        return np.append(known, np.zeros(size - known.size, np.uint8))

    def _check(self, bank: int, address: int, size: int) -> None:
        """Refuse bytes that a bank has no room for."""
        if address + size > self._bytes:
            raise UserError(
                f"bank {bank} needs {address + size:,} bytes, the simulated memory has {self._bytes:,}: use fewer "
                "samples or the emulator"
            )

    def hand_over(self) -> None:
        """Load what was written, before a run. A run may write the model of every engine, so those become stale."""
        from p4sgd.sim.cluster.protocol import memory_file

        for bank in sorted(self._dirty):
            path = self._simulator.folder / memory_file(self._worker, bank)
            try:
                path.write_bytes(self._banks[bank].data)  # not tofile(), whose errors do not say what is wrong
            except OSError as error:
                raise UserError(f"{path}: cannot write: {error.strerror}") from error
        if self._dirty:
            self._simulator.request("load", memories=self._mask(self._dirty))
        self._dirty.clear()
        self._stale.update(self._config.model_memory(engine) for engine in range(self._config.engines))

    def _fetch(self, bank: int) -> npt.NDArray[np.uint8]:
        """A bank, brought up to date after a run."""
        from p4sgd.sim.cluster.protocol import read_saved

        if bank in self._stale:
            self._simulator.request("save", memories=self._mask({bank}))
            try:
                saved = read_saved(self._simulator.folder, self._worker, bank)
            except ValueError as error:
                raise UserError(str(error)) from error
            for address, data in saved:
                self._put(bank, address, data)
            self._stale.discard(bank)
        return self._banks[bank]

    def _put(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        memory = self._banks[bank]
        end = address + data.size
        if end > memory.size:
            memory = self._banks[bank] = np.append(memory, np.zeros(end - memory.size, np.uint8))
        memory[address:end] = data

    def _mask(self, banks: set[int]) -> int:
        return sum(1 << self._worker * self._config.memories + bank for bank in banks)


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
    ``waves`` tells which part to record, and where to leave the waveform; ``on_trace`` is called with the trace of the
    workers in the end; ``memory`` tells how fast the memories are.

    A `UserError` if a chance is too small to be simulated, or there is no such part to record; a `P4sgdError` if a tool
    is missing, or the model cannot be built.
    """

    name = "rtl"
    workers: Sequence[RtlWorker] = ()

    def __init__(
        self,
        config: WorkerConfig,
        workers: int,
        *,
        seed: int = 0,
        waves: "Waveform | None" = None,
        on_trace: "Callable[[Trace], None] | None" = None,
        memory: "MemoryTiming | None" = None,
        **chances: float,
    ) -> None:
        from p4sgd.sim.cluster.cluster import build_cluster, check_scope
        from p4sgd.sim.cluster.protocol import MemoryTiming

        self.config = config
        self._waves = waves
        self._on_trace = on_trace
        self.job_workers = JobWorkers(lambda: self._membership)
        settings = {"seed": seed & 0xFFFFFFFF, "note_events": int(on_trace is not None)}
        settings |= dict.fromkeys(("spared", "up_cut", "down_cut"), 0)
        settings |= (memory or MemoryTiming()).inputs | fault_inputs(chances)
        if waves is not None and waves.scope:
            try:
                check_scope(config, workers, waves.scope)
            except ValueError as error:
                raise UserError(f"{waves.scope}: {error}", field="waves_scope") from error
        self._simulator = Simulator(
            lambda: build_cluster(config, workers, waves=waves is not None),
            settings,
            () if waves is None else waves.arguments,
        )
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
        ``memory_stall``, ``memory_gap``, ``link_stall`` and ``worker_pause`` in each memory channel, memory, cable or
        worker and cycle, and of what ``link_loss`` and the like do to frames (see `p4sgd.sim.cluster.link`):
        ``up_loss`` on the way from the workers only, ``down_loss`` on the way to them. A `UserError` if one is too
        small to be simulated.
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
        waveform cannot be written or would be empty, a `P4sgdError` if the trace is incomplete."""
        from p4sgd.sim.cluster.trace import read_trace
        from p4sgd.sim.verilator import WAVEFORM

        with contextlib.closing(self._simulator) as simulator:
            simulator.stop()
            try:
                if self._on_trace is not None and not simulator.failed:
                    self._on_trace(read_trace(simulator.folder, len(self.workers)))
            except ValueError as error:
                raise P4sgdError(str(error)) from error
            finally:  # the waveform may show what is wrong with the trace
                if self._waves is not None:
                    self._keep(self._waves, simulator.folder / WAVEFORM)

    def _keep(self, waves: "Waveform", written: Path) -> None:
        if written.exists():
            with written.open("rb") as source, new_file(waves.file, written.stat().st_size) as target:
                shutil.copyfileobj(source, target)
        elif not self._simulator.failed and sys.exception() is None:  # else why it ended is told
            problem = f"begins with cycle {waves.begin:,}, before which the simulation ended: there is no waveform"
            raise UserError(problem, field="waves_window")

    def cluster_read(self, index: int, offset: int) -> int:
        """Read a register of a worker or, behind them, the aggregator."""
        return int(self._simulator.request("read", index=index, offset=offset))

    def cluster_write(self, index: int, offset: int, word: int) -> None:
        self._simulator.request("write", index=index, offset=offset, word=word)
