"""Registers as declarations, and access to them field by field. Words have 32 bits, offsets count bytes."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

ADDRESS_BITS = 12  # bits of an AXI4-Lite byte address: a register map fits one page of 4 KiB
STAND_IN = 1 << ADDRESS_BITS  # where programs have the registers of a shard that they stand in for, behind their own


class Access(Enum):
    """Access to a field: who drives it, and what reads and writes do."""

    RO = "read-only"  # the hardware drives it; writes are ignored
    RW = "read-write"  # the host sets it; it keeps its value
    W1C = "write 1 to clear"  # the hardware sets it; it stays set until the host writes 1
    W1S = "write 1 to set"  # the host sets it by writing 1; the hardware clears it
    RC = "read to clear"  # the hardware sets it; it stays set until it is read
    STROBE = "write strobe"  # a write hands the value to the hardware for one cycle; it reads as 0


@dataclass(frozen=True)
class Field:
    """A field of a register: bits ``low`` to ``low + bits - 1``."""

    name: str
    low: int
    bits: int
    access: Access
    help: str
    reset: int = 0
    signed: bool = False

    @functools.cached_property
    def mask(self) -> int:
        return ((1 << self.bits) - 1) << self.low

    def encode(self, value: int) -> int:
        """The value, shifted to its place in the word; ValueError if it does not fit."""
        low = -(1 << self.bits - 1) if self.signed else 0
        high = low + (1 << self.bits) - 1
        if not low <= value <= high:
            raise ValueError(f"{self.name} must be {low} to {high}, not {value}")
        return (value << self.low) & self.mask

    def decode(self, word: int) -> int:
        value = (word & self.mask) >> self.low
        return value - (1 << self.bits) if self.signed and value >> (self.bits - 1) else value


@dataclass(frozen=True)
class Register:
    """A 32-bit register, or one half of a 64-bit register, at a byte offset that is a multiple of 4."""

    name: str
    offset: int
    help: str
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        used = 0
        for field in self.fields:
            if used & field.mask or field.mask >> 32:
                raise ValueError(f"{self.name}.{field.name} overlaps another field or leaves the word")
            used |= field.mask
        if self.offset % 4 or not 0 <= self.offset < 1 << ADDRESS_BITS:
            raise ValueError(f"{self.name} has a bad offset {self.offset:#x}")

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"{self.name} has no field {name}; it has {[field.name for field in self.fields]}")

    def encode(self, **values: int) -> int:
        """A word from values of fields; fields not named take their reset values."""
        word = 0
        for field in self.fields:
            word |= field.encode(values.pop(field.name, field.reset))
        if values:
            raise KeyError(f"{self.name} has no field {next(iter(values))}")
        return word

    def decode(self, word: int) -> dict[str, int]:
        return {field.name: field.decode(word) for field in self.fields}

    @functools.cached_property
    def reset(self) -> int:
        return self.encode()


def word(name: str, offset: int, access: Access, text: str, *, bits: int = 32, signed: bool = False) -> Register:
    """A register that is a single field named ``value``."""
    return Register(name, offset, text, (Field("value", 0, bits, access, text, signed=signed),))


def numbered_words(prefix: str, offset: int, meanings: Mapping[str, str]) -> dict[str, Register]:
    """Read-only words in a row, named after a prefix and their keys."""
    names = enumerate(meanings.items())
    return {key: word(f"{prefix}_{key.upper()}", offset + 4 * at, Access.RO, text) for at, (key, text) in names}


@functools.cache
def pair(name: str, offset: int, access: Access, text: str, *, bits: int = 64) -> tuple[Register, Register]:
    """The two halves of a register of 33 to 64 bits, low half first."""
    return (
        word(f"{name}_LOW", offset, access, f"{text}: bits 31..0"),
        word(f"{name}_HIGH", offset + 4, access, f"{text}: bits {bits - 1}..32", bits=bits - 32),
    )


CTRL = Register(
    "CTRL",
    0x000,
    "Control block of an ap_ctrl_hs kernel, which XRT needs to give access to registers; this kernel is never started",
    tuple(
        Field(name, bit, 1, Access.RO, str(int(name == "idle")))
        for bit, name in enumerate(("start", "done", "idle", "ready"))
    ),
)

CTRL_WORD = CTRL.encode(idle=1)  # the word that `CTRL` always shows


class Declarations(list[Register]):
    """Registers of a kernel, each added where it is declared, as `Register`, `word` and `pair` make them."""

    def register(self, name: str, offset: int, text: str) -> Callable[..., Register]:
        """Declare a register; the result is to be called with its fields."""

        def with_fields(*fields: Field) -> Register:
            self.append(Register(name, offset, text, fields))
            return self[-1]

        return with_fields

    def word(self, name: str, offset: int, access: Access, text: str, **shape: Any) -> Register:
        """Declare a register that is a single field named ``value``."""
        self.append(word(name, offset, access, text, **shape))
        return self[-1]

    def pair(self, name: str, offset: int, access: Access, text: str, *, bits: int = 64) -> tuple[Register, Register]:
        """Declare a register of 33 to 64 bits."""
        self += (halves := pair(name, offset, access, text, bits=bits))
        return halves

    def identification(self, magic: bytes) -> tuple[Register, Register]:
        """Declare the control block that XRT needs of a kernel without runs, and the block that says what it is.

        The result is MAGIC and ABI_VERSION, for `find_other_map`.
        """
        self.append(CTRL)
        word = self.word("MAGIC", 0x010, Access.RO, f"0x{magic.hex()}, '{magic.decode()}'")
        version = self.word("ABI_VERSION", 0x014, Access.RO, "version of this register map")
        self.word("BUILD_ID", 0x018, Access.RO, "number given at generation, 0 if none")
        return word, version


@dataclass(frozen=True)
class Counter:
    """A 64-bit counter: two read-only registers, low half first, from a byte offset on."""

    name: str
    offset: int
    help: str

    @functools.cached_property
    def registers(self) -> tuple[Register, Register]:
        return pair(self.name, self.offset, Access.RO, self.help)


def counter_block(offset: int, meanings: Mapping[str, str]) -> dict[str, Counter]:
    """Counters at consecutive offsets by name, from their names and meanings."""
    return {name: Counter(name, offset + 8 * index, meaning) for index, (name, meaning) in enumerate(meanings.items())}


def halves(counters: Mapping[str, Counter]) -> list[Register]:
    """The registers of counters."""
    return [half for counter in counters.values() for half in counter.registers]


class RegisterMap:
    """All registers of a kernel, with unique names and offsets, by offset."""

    def __init__(self, registers: Iterable[Register]) -> None:
        listed = sorted(registers, key=lambda register: register.offset)
        self._by_name = {register.name: register for register in listed}
        self._by_offset = {register.offset: register for register in listed}
        if not len(self._by_name) == len(self._by_offset) == len(listed):
            raise ValueError("register names and offsets must be unique")

    def __iter__(self) -> Iterator[Register]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Register:
        return self._by_name[name]

    def after_reset(self, words: Mapping[str, int]) -> Iterator[Register]:
        """All registers as a first read finds them, given the words that the hardware drives, by register name."""
        for register in self:
            values = register.decode(words[register.name]) if register.name in words else {}
            fields = tuple(replace(field, reset=values.get(field.name, field.reset)) for field in register.fields)
            yield replace(register, fields=fields)

    def at(self, offset: int) -> Register | None:
        return self._by_offset.get(offset)


class RegisterClient:
    """Access to registers by fields, through functions that move words; ``read_many`` moves several at once."""

    def __init__(
        self,
        read: Callable[[int], int],
        write: Callable[[int, int], None],
        read_many: Callable[[Sequence[int]], Sequence[int]] | None = None,
    ) -> None:
        self._read = read
        self._write = write
        self._read_many = read_many or (lambda offsets: [read(offset) for offset in offsets])

    def write(self, register: Register, **fields: int) -> None:
        """Write a register; fields not named take their reset values."""
        self._write(register.offset, register.encode(**fields))

    def read(self, register: Register) -> dict[str, int]:
        return register.decode(self._read(register.offset))

    def write_pair(self, pair: tuple[Register, Register], value: int) -> None:
        low, high = pair
        self.write(low, value=value & 0xFFFFFFFF)
        self.write(high, value=value >> 32)

    def read_pair(self, pair: tuple[Register, Register]) -> int:
        """The value of a wide register. Its halves are read one after the other."""
        low, high = self._read_many([half.offset for half in pair])
        return low | high << 32

    def read_counters(self, counters: Mapping[str, Counter]) -> dict[str, int]:
        words = self._read_many([half.offset for counter in counters.values() for half in counter.registers])
        return {name: words[2 * index] | words[2 * index + 1] << 32 for index, name in enumerate(counters)}


def find_other_map(
    client: RegisterClient, identity: Sequence[Register], magic: int, version: int, *, unknown: str, who: str
) -> str | None:
    """A message, from ``unknown`` or ``who`` on, if a kernel's magic word or version is another; else None."""
    word, there = (client.read(register)["value"] for register in identity[:2])
    if word != magic:
        return f"{unknown} is {word:#010x}, not {magic:#010x}"
    if there != version:
        return (
            f"{who} version {there} of the register map, this program needs {version}: generate the hardware again "
            "with this version of p4sgd"
        )
    return None
