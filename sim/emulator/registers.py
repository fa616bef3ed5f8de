"""Emulated registers."""

from collections.abc import Callable

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access, Field, Register
from p4sgd.hw.spec.registers import identity, worker_map

__all__ = ["Registers"]


class Registers:
    """The register file of a worker: same map, same kinds of access as the RTL's.

    Parameters
    ----------
    config
        Size of the worker, for the map and the identification block.
    on_strobe
        Called with ``(register, field, value)`` for a write to a strobe field, and for a set W1S field.
    """

    def __init__(self, config: WorkerConfig, on_strobe: Callable[[Register, Field, int], None]) -> None:
        registers = worker_map(config)
        self._at = {register.offset: register for register in registers}
        self._word = {register.offset: register.reset for register in registers}
        self._on_strobe = on_strobe
        for name, word in identity(config).items():
            self._word[registers[name].offset] = word

    def get(self, register: Register, field: str = "value") -> int:
        """A field's value, without the effects of a read."""
        return register[field].decode(self._word[register.offset])

    def set(self, register: Register, field: str, value: int) -> None:
        """Set a field from the worker's side."""
        known = register[field]
        self._word[register.offset] = self._word[register.offset] & ~known.mask | known.encode(value)

    def read(self, offset: int) -> int:
        """A read over the bus: clears read-to-clear fields; unmapped offsets are 0."""
        register = self._at.get(offset)
        if register is None:
            return 0
        word = self._word[offset]
        for field in register.fields:
            if field.access is Access.RC:
                self.set(register, field.name, 0)
        return word

    def write(self, offset: int, word: int) -> None:
        """A write over the bus; unmapped offsets and read-only fields are left alone."""
        register = self._at.get(offset)
        if register is None:
            return
        for field in register.fields:
            value = field.decode(word)
            match field.access:
                case Access.RW:
                    self.set(register, field.name, value)
                case Access.W1C if value:
                    self.set(register, field.name, 0)
                case Access.W1S if value:
                    self.set(register, field.name, 1)
                    self._on_strobe(register, field, value)
                case Access.STROBE:
                    self._on_strobe(register, field, value)
