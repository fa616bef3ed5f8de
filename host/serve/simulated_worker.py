"""A worker simulated from its generated Verilog, which exchanges frames with a real network."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.job_workers import is_start
from p4sgd.host.devices.simulator import SimulatedBanks, Simulator
from p4sgd.host.errors import UserError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig

_RUN_CYCLES = 1000
"""Cycles simulated at a time during a run, unless the worker sends a frame before; received frames wait for so long."""

_IDLE_CYCLES = 100
"""Cycles simulated after a request or a frame without a run, so that a probe is sent and an echo received."""

_SLOWNESS = 2500
"""Cycles of a board in the time of one simulated cycle: there are some 10^5 of those a second."""


class SimulatedWorker:
    """A simulated worker for a `p4sgd.host.serve.worker.WorkerServer`.

    Its time passes only during a run, and for a moment after requests and frames.

    What the host sees of RESEND_CYCLES and ECHO_CYCLES are about cycles of 4 ns of this machine's time, as of an
    emulated worker: in cycles of the simulation it would wait for hours where others wait for seconds.

    ``send`` sends a frame of 64 bytes, which may get lost. Raises P4sgdError if a tool is missing or the model cannot
    be built; later, if the simulator ends.
    """

    def __init__(self, config: WorkerConfig, send: Callable[[bytes], None]) -> None:
        from p4sgd.sim.cluster.build import build_single_worker

        self._config = config
        self._send = send
        self._came: list[bytes] = []
        self._busy = False
        self._asked = False  # for something that takes time
        self._simulator = Simulator(lambda: build_single_worker(config), {})
        self._banks = SimulatedBanks(config, 0, self._simulator)

    @property
    def config(self) -> WorkerConfig:
        return self._config

    @property
    def idle(self) -> bool:
        return not self._busy

    @property
    def next_work(self) -> int | None:
        """Now, if there is anything to do."""
        return 0 if self._busy or self._asked or self._came else None

    @property
    def memory_bytes(self) -> int:
        """Always 0: banks have a fixed size, so no limit applies."""
        return 0

    def work(self) -> None:
        if self.next_work is None:
            return
        frames, self._came, self._asked = self._came, [], False
        cycles = _RUN_CYCLES if self._busy else _IDLE_CYCLES
        sent, idle = self._simulator.request("exchange", frames=frames, cycles=cycles)
        self._busy = not idle
        for frame in sent:
            self._send(frame)

    def receive(self, frame: bytes) -> None:
        self._came.append(frame)

    def read_register(self, offset: int) -> int:
        """Read a word over AXI4-Lite."""
        word = int(self._simulator.request("read", index=0, offset=offset))
        if offset in (registers.RESEND_CYCLES.offset, registers.ECHO_CYCLES.offset):
            return min(word * _SLOWNESS, 0xFFFFFFFF)
        return word

    def write_register(self, offset: int, word: int) -> None:
        """Write a word over AXI4-Lite; before a start the memory is loaded."""
        if is_start(offset, word):
            self._banks.hand_over()
            self._busy = True
        if offset == registers.RESEND_CYCLES.offset:
            word = -(-word // _SLOWNESS)
        self._simulator.request("write", index=0, offset=offset, word=word)
        self._asked = True

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        self._check_idle()
        return self._banks.read(bank, address, size)

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        self._check_idle()
        self._banks.write(bank, address, data)

    def forget_memory(self, bank: int, address: int, size: int) -> None:
        self._check_idle()
        self._banks.check(bank, address, size)

    def close(self) -> None:
        self._simulator.close()

    def _check_idle(self) -> None:
        """The simulator's memories change during a run, without its host."""
        if self._busy:
            raise UserError("a run is under way: wait for its end, or end it")
