"""A worker that is its generated Verilog under Verilator, with a network of real frames."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.members import before_write
from p4sgd.host.devices.simulated_banks import SimulatedBanks
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["SimulatedWorker"]

_RUN_CYCLES = 1000
"""Cycles that pass at a time during a run, unless the worker sends before: frames that come wait for so long."""

_IDLE_CYCLES = 100
"""Cycles that pass after a request or a frame that comes without a run, so that a probe leaves and an echo is seen."""


class SimulatedWorker:
    """A worker for a `BoardServer`. Its time passes only during a run, and for a moment after requests and frames.

    So its timers count cycles of the simulation: what a board waits for 12 ms takes it half a minute.

    Parameters
    ----------
    config
        Size of the worker.
    send
        Sends a frame of 64 bytes. It may lose it.

    Raises
    ------
    P4sgdError
        If a tool is missing, or the model cannot be built; later, if the simulator ends.
    """

    def __init__(self, config: WorkerConfig, send: Callable[[bytes], None]) -> None:
        from p4sgd.sim.cluster.build import build_board
        from p4sgd.sim.cluster.process import ClusterProcess
        from p4sgd.sim.verilator import MissingToolError, SimulationError

        self._config = config
        self._send = send
        self._errors = (MissingToolError, SimulationError)
        self._came: list[str] = []
        self._busy = False
        self._asked = False  # for something that takes time
        try:
            self._process = ClusterProcess(build_board(config), {"seed": 0, "memory_stall": 0, "load": 0, "save": 0})
        except self._errors as error:
            raise P4sgdError(str(error)) from error
        self._banks = SimulatedBanks(config, 0, self._process.directory, self._request)

    @property
    def config(self) -> WorkerConfig:
        """Size of the worker."""
        return self._config

    @property
    def idle(self) -> bool:
        """Whether no run is wanted or under way."""
        return not self._busy

    @property
    def next_work(self) -> int | None:
        """Now, if there is anything to do."""
        return 0 if self._busy or self._asked or self._came else None

    @property
    def memory_bytes(self) -> int:
        """None that a limit is for: every bank has its size."""
        return 0

    def work(self) -> None:
        """Let time pass, if there is anything to do."""
        if self.next_work is None:
            return
        frames, self._came, self._asked = self._came, [], False
        cycles = _RUN_CYCLES if self._busy else _IDLE_CYCLES
        answer = self._request("exchange", frames=frames, cycles=cycles)
        self._busy = not answer["idle"]
        for frame in answer["frames"]:
            self._send(bytes.fromhex(frame))

    def receive(self, frame: bytes) -> None:
        """Take a frame, of whatever length."""
        self._came.append(frame.hex())

    def read_register(self, offset: int) -> int:
        """Read a word over AXI4-Lite."""
        return int(self._request("read", index=0, offset=offset))

    def write_register(self, offset: int, word: int) -> None:
        """Write a word over AXI4-Lite; a start first hands the memory over."""
        before_write(offset, word, on_join=lambda first_round: None, on_start=self._before_start)
        self._request("write", index=0, offset=offset, word=word)
        self._asked = True

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of bytes of a bank; what was never written is 0."""
        return self._banks.read(bank, address, size)

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Copy bytes into a bank.

        Raises
        ------
        UserError
            If the bank is too small.
        """
        self._banks.write(bank, address, data)

    def forget_memory(self, bank: int, address: int, size: int) -> None:
        """Nothing: what is written takes the place of what was there."""

    def close(self) -> None:
        """End the simulator."""
        self._process.close()

    def _before_start(self) -> None:
        self._banks.hand_over()
        self._busy = True

    def _request(self, do: str, **arguments: object) -> Any:
        try:
            return self._process.request(do, **arguments)
        except self._errors as error:
            raise P4sgdError(str(error)) from error
