"""A worker on a board of this machine."""

import atexit
import contextlib
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from p4sgd.host.boards.kernel import EMULATED_WAIT_S, PAGE, BoardAddress
from p4sgd.host.boards.mac import open_mac
from p4sgd.host.devices.device import read_configuration
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.cmac import LinkState
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access

KERNEL = "p4sgd_worker"
"""Name of the kernel. Its argument i is memory i (`WorkerConfig.memories`)."""

_CAGE = 0
"""QSFP28 cage that the worker uses."""

_END_S = 1.0
"""Longest time that an aborted run may take to end. Outstanding reads of memory take microseconds."""

_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 20e-6, 2e-3
"""Bounds of the time between two polls for the end of a run. Long runs should not occupy a core."""

_SLEEP_SHARE = 1 / 8
"""The next sleep as a share of the time waited so far, so that polling delays no run by much more than this share."""

_CLEARED_BY_READ = sum(field.mask for field in registers.CTRL.fields if field.access is Access.RC)
"""Fields of CTRL that a read clears."""


class BoardWorker:
    """A worker on a board of this machine, with an ``index`` for messages; ``rs_fec`` is its link's error correction.

    A run that an earlier program has left behind is ended. When this program ends, its own run is ended too, unless the
    program is killed by SIGKILL. A `UserError` as of `BoardAddress.open_kernel`; a `P4sgdError` if the board does not
    answer as a worker should, also in later calls.

    ``mac`` is that of its link, None if the bitstream has none.
    """

    process = None  # see `RemoteWorker`

    def __init__(self, index: int, address: BoardAddress, *, rs_fec: bool = True) -> None:
        self._name = f"worker {index} at {address}"
        self._address = address
        self._seen = 0
        with contextlib.ExitStack() as opened:
            self._kernel = opened.enter_context(contextlib.closing(address.open_kernel(self._name, KERNEL)))
            self.config = read_configuration(self._name, self._kernel.client)
            self._end_run()
            self.mac = open_mac(self._name, address, None if address.is_emulated else _CAGE)
            if self.mac is not None:
                opened.callback(self.mac.close)
                self.mac.set_rs_fec(rs_fec)
            self._memories = self._kernel.memories(self.config.memories)
            self._addresses = AddressRegisters(
                self.config, lambda bank: self._memories[bank].address, self._kernel.write_register
            )
            opened.callback(self._end_run)
            self._opened = opened.pop_all()
        atexit.register(self.close)

    def __str__(self) -> str:
        return self._name

    @property
    def address(self) -> BoardAddress:
        """Board of the worker."""
        return self._address

    @property
    def link(self) -> LinkState | None:
        """Current state of the Ethernet link; None if the bitstream has no MAC."""
        return None if self.mac is None else self.mac.link_state()

    def read_register(self, offset: int) -> int:
        if offset == registers.CTRL.offset:
            word, self._seen = self._read_control(), 0
            return word
        if offset in self._addresses:
            return self._addresses.read(offset)
        return self._kernel.read_register(offset)

    def read_registers(self, offsets: Sequence[int]) -> list[int]:
        return [self.read_register(offset) for offset in offsets]

    def write_register(self, offset: int, word: int) -> None:
        """Write a word. Before a run starts, room is made for the weights that it may store."""
        if offset in self._addresses:
            self._addresses.write(offset, word)
            return
        if offset == registers.CTRL.offset and registers.CTRL.decode(word)["start"]:
            for engine in range(self.config.engines):
                bank = self.config.model_memory(engine)
                self._reserve(bank, self._addresses.model_address(engine) + self._room(bank))
            self._seen = 0
        self._kernel.write_register(offset, word)

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes: a `UserError` if the memory is full, a `P4sgdError` if the bank would have to move in a run."""
        content = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        end = address + content.size
        if end > self._memories[bank].size:  # with room for weights, which usually follow: so the bank moves only once
            self._reserve(bank, -(-end // PAGE) * PAGE + self._room(bank))
        self._memories[bank].write(address, content)

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        self._reserve(bank, address + size)
        return self._memories[bank].read(address, size)

    def await_end(self, within_s: float) -> bool:
        began = time.monotonic()
        while not self._is_idle():
            waited = time.monotonic() - began
            if waited >= within_s:
                return False
            time.sleep(min(max(waited * _SLEEP_SHARE, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S))
        return True

    def close(self) -> None:
        """End a run that is under way, and release memory and board."""
        self._opened.close()
        atexit.unregister(self.close)

    # -- details -------------------------------------------------------------------------------------------------

    def _read_control(self) -> int:
        """Read CTRL. Fields that the read clears are kept in ``_seen``, until the user of this worker has read them."""
        word = self._kernel.read_register(registers.CTRL.offset)
        self._seen |= word & _CLEARED_BY_READ
        return word | self._seen

    def _is_idle(self) -> bool:
        return bool(registers.CTRL.decode(self._read_control())["idle"])

    def _end_run(self) -> None:
        if self._is_idle():
            return
        self._kernel.write_register(registers.ABORT.offset, registers.ABORT.encode(abort=1))
        if not self.await_end(EMULATED_WAIT_S if self._address.is_emulated else _END_S):
            raise P4sgdError(
                f"{self._name} does not end its run: {self._address.remedy}, which ends everything that runs on it"
            )

    def _room(self, bank: int) -> int:
        """The most bytes of weights that a run may store in a bank."""
        config = self.config
        has_model = bank != config.labels_memory and bank % config.ports == 0
        return 4 * config.chunks * config.lanes if has_model else 0

    def _reserve(self, bank: int, size: int) -> None:
        memory = self._memories[bank]
        if size <= memory.size:
            return
        if not self._is_idle():
            raise P4sgdError(f"{self._name} cannot move bank {bank} while it runs")
        # The labels may be at the end of the last bank's memory (`p4sgd.build.generate.boards.map_memories`).
        labels = self.config.labels_memory
        is_last = bank == labels - 1
        memory.reserve(size, beside=self._memories[labels] if is_last else None)
        self._addresses.move(bank)
        if is_last:
            self._addresses.move(labels)


class AddressRegisters:
    """Translates the registers that hold addresses of lines, weights and labels, pairs of a low and a high word.

    A session's addresses count from the start of a bank, the board's from the start of its memory. So the board gets
    the written address plus ``base(bank)``, and a read returns what was written."""

    def __init__(self, config: WorkerConfig, base: Callable[[int], int], write: Callable[[int, int], None]) -> None:
        self._base = base
        self._write = write
        banks = {registers.LABELS_ADDRESS: config.labels_memory}
        for engine in range(config.engines):
            banks[registers.model_address(engine)] = config.model_memory(engine)
            for port in range(config.ports):
                banks[registers.lines_address(engine, port)] = engine * config.ports + port
        # By offset of either half: offset of the low half, and bank. The high half follows the low one.
        self._places = {half.offset: (pair[0].offset, bank) for pair, bank in banks.items() for half in pair}
        self._words = dict.fromkeys(self._places, 0)

    def __contains__(self, offset: int) -> bool:
        return offset in self._places

    def read(self, offset: int) -> int:
        return self._words[offset]

    def write(self, offset: int, word: int) -> None:
        """Write a word. The board gets both words of the address, as a carry may change the other one."""
        self._words[offset] = word
        self._write_pair(*self._places[offset])

    def move(self, bank: int) -> None:
        """Write the addresses in a bank to the board again, because the bank has moved."""
        for low, number in set(self._places.values()):
            if number == bank:
                self._write_pair(low, number)

    def model_address(self, engine: int) -> int:
        """Address of an engine's weights in their bank."""
        low, _ = registers.model_address(engine)
        return self._address(low.offset)

    def _address(self, low: int) -> int:
        return self._words[low] | self._words[low + 4] << 32

    def _write_pair(self, low: int, bank: int) -> None:
        address = self._base(bank) + self._address(low)
        self._write(low, address & 0xFFFFFFFF)
        self._write(low + 4, address >> 32 & 0xFFFFFFFF)
