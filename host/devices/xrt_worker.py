"""A worker on a board.

Registers that hold addresses: a session counts from the start of a bank, a board from the start of its memory.

A worker on a board.
"""

import atexit
import contextlib
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.identification import read_configuration
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.xrt.board import BoardAddress
from p4sgd.host.xrt.kernel import PAGE, BankMemory, BoardKernel
from p4sgd.host.xrt.library import XrtError
from p4sgd.host.xrt.mac import open_mac
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.cmac import LinkState
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access, Register, RegisterClient

__all__ = ["KERNEL", "AddressRegisters", "BoardWorker"]


class AddressRegisters:
    """The pairs of registers with addresses of lines, weights and labels: low word, then high word.

    They show what was written. The board has the sum of this and of where the bank is.

    Parameters
    ----------
    config
        Size of the worker.
    base
        Where a bank is in the board's memory.
    write
        Writes a word of the board.
    """

    def __init__(self, config: WorkerConfig, base: Callable[[int], int], write: Callable[[int, int], None]) -> None:
        self._base = base
        self._write = write
        self._models = [_offsets(registers.model_address(engine)) for engine in range(config.engines)]
        self._bank = {_offsets(registers.LABELS_ADDRESS): config.labels_memory}
        for engine, model in enumerate(self._models):
            self._bank[model] = config.model_memory(engine)
            for port in range(config.ports):
                self._bank[_offsets(registers.lines_address(engine, port))] = engine * config.ports + port
        self._pair = {offset: pair for pair in self._bank for offset in pair}
        self._words = dict.fromkeys(self._pair, 0)

    def __contains__(self, offset: int) -> bool:
        return offset in self._pair

    def read(self, offset: int) -> int:
        """A word as it was written."""
        return self._words[offset]

    def write(self, offset: int, word: int) -> None:
        """Write a word; the board gets the whole address anew, as a carry may change its other word."""
        self._words[offset] = word
        self._tell(self._pair[offset])

    def move(self, bank: int) -> None:
        """Give the board the addresses within a bank anew, which is elsewhere now."""
        for pair, number in self._bank.items():
            if number == bank:
                self._tell(pair)

    def model_address(self, engine: int) -> int:
        """Where an engine's weights are in their bank."""
        return self._value(self._models[engine])

    def _value(self, pair: tuple[int, int]) -> int:
        low, high = pair
        return self._words[low] | self._words[high] << 32

    def _tell(self, pair: tuple[int, int]) -> None:
        low, high = pair
        address = self._base(self._bank[pair]) + self._value(pair)
        self._write(low, address & 0xFFFFFFFF)
        self._write(high, address >> 32 & 0xFFFFFFFF)


def _offsets(pair: tuple[Register, Register]) -> tuple[int, int]:
    low, high = pair
    return low.offset, high.offset


KERNEL = "p4sgd_worker"
"""Name of the kernel; its argument i is memory i (`WorkerConfig.memories`)."""

_CAGE = 0
"""QSFP28 cage that a worker is behind."""

_END_S = 1.0
"""Longest time that an aborted run may take to end: what memory still brings takes microseconds."""

_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 20e-6, 2e-3
"""Times between two looks whether a run has ended: long ones are not to keep a core."""

_SLEEP_SHARE = 1 / 8
"""Of the time waited so far is the next sleep, so that no run takes much longer for it."""

_PASSING = sum(field.mask for field in registers.CTRL.fields if field.access is Access.RC)
"""What of CTRL the next read does not show any more."""


class BoardWorker:
    """A worker on a board of this machine.

    A run that another program has left is ended, and none is left when this one ends, however it does but by SIGKILL.

    Parameters
    ----------
    index
        Its number, for messages.
    address
        The board.
    rs_fec
        Whether its link has forward error correction.

    Raises
    ------
    UserError
        As of `BoardKernel`.
    P4sgdError
        Then and later, if the board does not answer as a worker should.
    """

    def __init__(self, index: int, address: BoardAddress, *, rs_fec: bool = True) -> None:
        self._name = f"worker {index} at {address}"
        self._address = address
        self._seen = 0
        with contextlib.ExitStack() as opened:
            self._kernel = opened.enter_context(contextlib.closing(BoardKernel(self._name, address, KERNEL)))
            client = RegisterClient(self._kernel.read_register, self._kernel.write_register)
            try:
                self._config = read_configuration(client)
            except P4sgdError as error:
                raise P4sgdError(f"{self._name} {error}") from None
            self._end_run()
            self._mac = open_mac(self._name, address, _CAGE)
            if self._mac is not None:
                opened.callback(self._mac.close)
                self._mac.set_rs_fec(rs_fec)
                self._mac.await_link()
            self._memories: list[BankMemory] = []
            for number in range(self._config.memories):
                memory = self._kernel.memory(number)
                self._memories.append(opened.enter_context(contextlib.closing(memory)))
            self._addresses = AddressRegisters(
                self._config, lambda bank: self._memories[bank].address, self._kernel.write_register
            )
            opened.callback(self._end_run)
            self._opened = opened.pop_all()
        atexit.register(self.close)

    def __str__(self) -> str:
        return self._name

    @property
    def config(self) -> WorkerConfig:
        """Size of the worker, as it says."""
        return self._config

    @property
    def link(self) -> LinkState | None:
        """Its Ethernet link, now; None if the board has no MAC."""
        return None if self._mac is None else self._mac.link_state()

    def read_register(self, offset: int) -> int:
        """Read a word."""
        if offset == registers.CTRL.offset:
            word, self._seen = self._look(), 0
            return word
        if offset in self._addresses:
            return self._addresses.read(offset)
        return self._kernel.read_register(offset)

    def write_register(self, offset: int, word: int) -> None:
        """Write a word; before a start there is room for the weights that the run may store."""
        if offset in self._addresses:
            self._addresses.write(offset, word)
            return
        if offset == registers.CTRL.offset and registers.CTRL.decode(word)["start"]:
            for engine in range(self._config.engines):
                bank = self._config.model_memory(engine)
                self._reserve(bank, self._addresses.model_address(engine) + self._room(bank))
            self._seen = 0
        self._kernel.write_register(offset, word)

    def write_memory(self, bank: int, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes to a bank.

        Raises
        ------
        UserError
            If the board's memory has no room for them.
        P4sgdError
            If a run would have to be disturbed for that.
        """
        content = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        end = address + content.size
        if end > self._memories[bank].size:  # weights follow soon
            self._reserve(bank, -(-end // PAGE) * PAGE + self._room(bank))
        try:
            self._memories[bank].write(address, content)
        except XrtError as error:
            raise self._kernel.failure(f"cannot be given bank {bank}", error) from error

    def read_memory(self, bank: int, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Read bytes of a bank."""
        self._reserve(bank, address + size)
        try:
            return self._memories[bank].read(address, size)
        except XrtError as error:
            raise self._kernel.failure(f"cannot be asked for bank {bank}", error) from error

    def await_end(self, within_s: float) -> bool:
        """Wait for the end of the run, for a time; returns whether no run is under way."""
        began = time.monotonic()
        while not self._is_idle():
            waited = time.monotonic() - began
            if waited >= within_s:
                return False
            time.sleep(min(max(waited * _SLEEP_SHARE, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S))
        return True

    def close(self) -> None:
        """End what runs, and give memory and board back."""
        try:
            self._opened.close()
        except XrtError as error:
            raise self._kernel.failure("does not take its memory back", error) from error
        atexit.unregister(self.close)

    # -- details -------------------------------------------------------------------------------------------------

    def _look(self) -> int:
        """CTRL, with what only its first read shows until the contract's user has read it."""
        word = self._kernel.read_register(registers.CTRL.offset)
        self._seen |= word & _PASSING
        return word | self._seen

    def _is_idle(self) -> bool:
        return bool(registers.CTRL.decode(self._look())["idle"])

    def _end_run(self) -> None:
        """End a run, if one is under way."""
        if self._is_idle():
            return
        self._kernel.write_register(registers.ABORT.offset, registers.ABORT.encode(abort=1))
        if not self.await_end(_END_S):
            raise P4sgdError(
                f"{self._name} does not end its run: xbutil reset --device {self._address.device} does, with all that "
                "the board does"
            )

    def _room(self, bank: int) -> int:
        """Bytes of the weights that a run may store in a bank, at most."""
        config = self._config
        has_model = bank != config.labels_memory and bank % config.ports == 0
        return 4 * config.chunks * config.lanes if has_model else 0

    def _reserve(self, bank: int, size: int) -> None:
        memory = self._memories[bank]
        if size <= memory.size:
            return
        if not self._is_idle():
            raise P4sgdError(f"{self._name} cannot move bank {bank} while it runs")
        try:
            memory.reserve(size)
        except XrtError as error:
            raise UserError(
                f"{self._name} has no room for {size:,} bytes in bank {bank}: {error}; take fewer samples or more "
                "workers"
            ) from None
        self._addresses.move(bank)
