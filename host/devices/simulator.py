"""A simulator as part of a device, and the memory banks of its workers as the host sees them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.config import WorkerConfig

if TYPE_CHECKING:
    from p4sgd.sim.verilator import Build


class Simulator:
    """A `p4sgd.sim.cluster.process.ClusterProcess`, whose model ``build`` compiles first or finds in the cache.

    ``settings`` are values of inputs, set before the reset. ``failed`` tells whether it has ended, or could not carry
    out a request. A `P4sgdError` if a tool is missing, or the model cannot be built; and later, if it has ended.
    """

    def __init__(self, build: "Callable[[], Build]", settings: Mapping[str, int]) -> None:
        from p4sgd.sim.cluster.process import ClusterProcess

        self.failed = False
        with self._failures_told():
            self._process = ClusterProcess(build(), settings)

    @property
    def folder(self) -> Path:
        """Folder of its files, which are deleted by `close`."""
        return self._process.directory

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

    def stop(self) -> None:
        """End it. Its files stay."""
        self._process.stop()

    def close(self) -> None:
        """End it and delete its files."""
        self._process.close()


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
        self.check(bank, address, data.size)
        self._fetch(bank)
        self._put(bank, address, data.reshape(-1))
        self._dirty.add(bank)

    def read(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Copy bytes out of a bank; what was never written is 0."""
        self.check(bank, address, size)
        known = self._fetch(bank)[address : address + size]
        return np.append(known, np.zeros(size - known.size, np.uint8))

    def check(self, bank: int, address: int, size: int) -> None:
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
