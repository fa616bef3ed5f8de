"""Registers that hold addresses: a session counts from the start of a bank, a board from the start of its memory."""

from collections.abc import Callable

from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Register

__all__ = ["AddressRegisters"]


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
