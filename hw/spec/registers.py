"""The register map of a worker, declared once.

The AXI4-Lite register file of the RTL, the host's access, the emulated worker and the generated documents all read
this declaration. Words are 32 bits, offsets are bytes. The first four words are the control block that Vitis fixes for
an ``ap_ctrl_hs`` kernel (UG1393, "RTL kernel control requirements"); the identification block follows at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import INTERCEPT, RATE_MANTISSA, SHRINK, SLOPE

MAGIC = int.from_bytes(b"P4SG", "big")
"""First word of the identification block."""

ABI_VERSION = 2
"""Changes whenever the meaning of an existing register does."""

ADDRESS_BITS = 12
"""Bits of an AXI4-Lite byte address: the map fits one 4 KiB page."""


class Access(Enum):
    """Who drives a field, and what a write does."""

    RO = "read-only"
    """The worker drives it; writes are ignored."""
    RW = "read-write"
    """The host sets it; it keeps its value."""
    W1C = "write 1 to clear"
    """The worker sets it and it stays; the host clears it by writing 1."""
    W1S = "write 1 to set"
    """The host sets it by writing 1; the worker clears it."""
    RC = "read to clear"
    """The worker sets it and it stays; reading clears it."""
    STROBE = "write strobe"
    """A write hands the value to the worker for one cycle; reads as 0."""


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

    @property
    def mask(self) -> int:
        """The field's bits within the word."""
        return ((1 << self.bits) - 1) << self.low

    def encode(self, value: int) -> int:
        """The value at its place in the word.

        Raises
        ------
        ValueError
            If the value does not fit.
        """
        low, high = (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.signed else (0, (1 << self.bits) - 1)
        if not low <= value <= high:
            raise ValueError(f"{self.name} must be {low} to {high}, not {value}")
        return (value << self.low) & self.mask

    def decode(self, word: int) -> int:
        """The field's value in a word."""
        value = (word & self.mask) >> self.low
        if self.signed and value >> (self.bits - 1):
            value -= 1 << self.bits
        return value


@dataclass(frozen=True)
class Register:
    """A 32-bit register, or one half of a 64-bit one."""

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
        """A word from field values; fields not named take their reset values."""
        word = 0
        for field in self.fields:
            word |= field.encode(values.pop(field.name, field.reset))
        if values:
            raise KeyError(f"{self.name} has no field {next(iter(values))}")
        return word

    def decode(self, word: int) -> dict[str, int]:
        """The values of all fields in a word."""
        return {field.name: field.decode(word) for field in self.fields}

    @property
    def reset(self) -> int:
        """The word after reset."""
        return self.encode()


def _whole(name: str, offset: int, access: Access, text: str, *, bits: int = 32, signed: bool = False) -> Register:
    """A register that is a single field named ``value``."""
    return Register(name, offset, text, (Field("value", 0, bits, access, text, signed=signed),))


def _pair(name: str, offset: int, access: Access, text: str) -> tuple[Register, Register]:
    """The two halves of a 64-bit register."""
    return (
        _whole(f"{name}_LOW", offset, access, f"{text}: bits 31..0"),
        _whole(f"{name}_HIGH", offset + 4, access, f"{text}: bits 63..32"),
    )


class ModelSource(Enum):
    """Where a run's first weights come from (``RUN.model_source``)."""

    KEEP = 0
    """The weights that the last run left on chip; not with more chunks than that run had."""
    ZERO = 1
    """Zeros."""
    MEMORY = 2
    """The model buffers."""


_RO, _RW, _W1C, _W1S = Access.RO, Access.RW, Access.W1C, Access.W1S
_RC, _STROBE = Access.RC, Access.STROBE

CTRL = Register(
    "CTRL",
    0x000,
    "Kernel control (ap_ctrl_hs)",
    (
        Field("start", 0, 1, _W1S, "set by the host to start a run; the worker clears it when it begins"),
        Field("done", 1, 1, _RC, "a run has ended; cleared by reading"),
        Field("idle", 2, 1, _RO, "no run in progress"),
        Field("ready", 3, 1, _RC, "a start was taken; cleared by reading"),
    ),
)
# 0x004, 0x008 and 0x00C are Vitis' interrupt registers; this kernel is polled and they read as 0.
MAGIC_WORD = _whole("MAGIC", 0x010, _RO, "0x50345347, 'P4SG'")
ABI = _whole("ABI_VERSION", 0x014, _RO, "version of this register map")
CONFIG_HASH = _whole("CONFIG_HASH", 0x018, _RO, "hash of the worker's configuration")
BUILD_ID = _whole("BUILD_ID", 0x01C, _RO, "number given at generation, 0 if none")
GEOMETRY = Register(
    "GEOMETRY",
    0x020,
    "Size of the worker",
    (
        Field("engines", 0, 8, _RO, "engines"),
        Field("lanes", 8, 8, _RO, "lanes of an engine"),
        Field("banks", 16, 8, _RO, "samples of a micro-batch"),
        Field("ports", 24, 8, _RO, "memory ports of an engine"),
    ),
)
CHUNKS_MAX = _whole("CHUNKS_MAX", 0x024, _RO, "chunks that an engine's model memory holds")
LINE_FIFO_DEPTH = _whole("LINE_FIFO_DEPTH", 0x028, _RO, "lines that an engine keeps")
SLOTS = _whole("SLOTS", 0x02C, _RO, "AllReduce operations in flight")
SEGMENTS = _whole("SEGMENTS", 0x030, _RO, "segments of the loss table")

STATUS = Register(
    "STATUS",
    0x034,
    "Sticky flags of all runs since they were cleared",
    (
        Field("partial_clamped", 0, 1, _W1C, "Round 1 clamped a partial activation"),
        Field("residual_saturated", 1, 1, _W1C, "Round 2 saturated a margin or a residual"),
        Field("weight_saturated", 2, 1, _W1C, "Round 3 saturated a weight"),
        Field("memory_error", 3, 1, _W1C, "a memory response was an error; the run's result is void"),
    ),
)
FORMAT = Register(
    "FORMAT",
    0x040,
    "Feature format of the run",
    (
        Field("precision", 0, 4, _RW, "planes to read (P), 1 to 8", reset=1),
        Field("stored", 4, 4, _RW, "planes in the image (S), P to 8", reset=1),
        Field("signed", 8, 1, _RW, "features are two's complement"),
    ),
)
CHUNKS = _whole(
    "CHUNKS",
    0x044,
    _RW,
    "chunks of each engine in the image (C), 1 to CHUNKS_MAX, with RUN.stale to half of it",
    bits=17,
)
MICRO_BATCHES = _whole("MICRO_BATCHES", 0x048, _RW, "micro-batches of a mini-batch (B/8)", bits=16)
MINI_BATCHES = _whole("MINI_BATCHES", 0x04C, _RW, "mini-batches of the run")
LABEL_MODE = Register(
    "LABEL_MODE",
    0x050,
    "What the label y is in g = s·psi(s·z - o) - c",
    (
        Field("sign", 0, 1, _RW, "s = -1 where y < 0, else s = 1"),
        Field("offset", 1, 1, _RW, "o = y, else o = 0"),
        Field("constant", 2, 1, _RW, "c = y, else c = 0"),
    ),
)
RATE = Register(
    "RATE",
    0x054,
    "Learning rate / B = mantissa · 2^-exponent",
    (
        Field("mantissa", 0, RATE_MANTISSA.width, _RW, "mantissa"),
        Field("gradient_shift", 8, 5, _RW, "right shift of Round 3; holds the exponent"),
    ),
)
SHRINK_FACTOR = _whole("SHRINK", 0x058, _RW, "L2: w -= round(w · SHRINK · 2^-24) a mini-batch", bits=SHRINK.width)
THRESHOLD = _whole("THRESHOLD", 0x05C, _RW, "L1: soft threshold a mini-batch, in weight steps", bits=31)
PARTIAL_LIMIT = _whole("PARTIAL_LIMIT", 0x060, _RW, "largest |partial|: floor((2^31 - 1) / workers)", bits=31)
RUN = Register(
    "RUN",
    0x064,
    "What a run does besides training",
    (
        Field(
            "model_source",
            0,
            2,
            _RW,
            "first weights: 0 those on chip (no more chunks than the last run), 1 zeros, 2 the model buffers",
        ),
        Field("model_store", 2, 1, _RW, "write the weights to the model buffers at the end"),
        Field("stale", 3, 1, _RW, "a mini-batch's forward pass reads weights that lack one update"),
    ),
)
TABLE_SHIFT = _whole("TABLE_SHIFT", 0x068, _RW, "log2 of a table segment's width", bits=5)
TABLE_INDEX = _whole("TABLE_INDEX", 0x06C, _STROBE, "segment that the next write of TABLE_INTERCEPT fills", bits=10)
TABLE_SLOPE = _whole("TABLE_SLOPE", 0x070, _RW, "slope of that segment", bits=SLOPE.width, signed=True)
TABLE_INTERCEPT = _whole(
    "TABLE_INTERCEPT",
    0x074,
    _STROBE,
    "intercept; the write stores the segment and advances the index by one",
    bits=INTERCEPT.width,
    signed=True,
)
LABELS_ADDRESS = _pair("LABELS_ADDRESS", 0x078, _RW, "byte address of the labels, a multiple of 4096")

JOB = Register(
    "JOB",
    0x080,
    "Who the worker is",
    (
        Field("job", 0, 8, _RW, "job number"),
        Field("shard", 8, 5, _RW, "shard index"),
        Field("workers", 16, 6, _RW, "workers of the job, 1 to 32", reset=1),
    ),
)
RESEND_CYCLES = _whole("RESEND_CYCLES", 0x084, _RW, "cycles without an answer after which a packet is sent again")
LOCAL_MAC = (
    _whole("LOCAL_MAC_LOW", 0x088, _RW, "the worker's MAC address: bits 31..0"),
    _whole("LOCAL_MAC_HIGH", 0x08C, _RW, "the worker's MAC address: bits 47..32", bits=16),
)
PEER_MAC = (
    _whole("PEER_MAC_LOW", 0x090, _RW, "the aggregator's MAC address: bits 31..0"),
    _whole("PEER_MAC_HIGH", 0x094, _RW, "the aggregator's MAC address: bits 47..32", bits=16),
)
JOIN = Register(
    "JOIN",
    0x098,
    "Begin a job: forget all slots; the next AllReduce is slot 0 of the round written. Only while idle",
    (Field("round", 0, 16, _STROBE, "first round, 1 for a new aggregator"),),
)
IN_FLIGHT = Register(
    "IN_FLIGHT",
    0x09C,
    "Micro-batches of engine 0 between the start of their forward and of their backward pass",
    (
        Field("now", 0, 16, _RO, "in this moment"),
        Field("most", 16, 16, _RO, "most in the last run"),
    ),
)
SNAPSHOT = Register(
    "SNAPSHOT",
    0x0A0,
    "Counters of a run in progress",
    (Field("take", 0, 1, _STROBE, "a write, of whatever value, lets the counters show this moment"),),
)

COUNTERS = (
    ("CYCLES", "cycles of the last run"),
    ("CYCLES_BUSY", "cycles in which engine 0 took a line"),
    ("CYCLES_MEMORY", "cycles in which it could have, but none had come from memory"),
    ("CYCLES_NETWORK", "cycles in which it waited for sums from the network"),
    ("CYCLES_CHAINING", "cycles in which it waited for the backward pass to update the model"),
    ("CYCLES_DRAIN", "cycles after its last line until the run's end"),
    ("CYCLES_MODEL", "cycles in which the run was prepared, or the model loaded or stored"),
    ("PACKETS_SENT", "packets sent"),
    ("PACKETS_RESENT", "of those, sent again"),
    ("PACKETS_RECEIVED", "packets received"),
    ("PACKETS_DROPPED", "of those, malformed or stale and ignored"),
)
"""64-bit counters of a run, in map order. The causes sum to CYCLES, also in a snapshot."""

ENGINE_COUNTERS = (
    ("LINES", "lines that the engine took"),
    ("STARVED", "cycles in which it lacked a line, as none had come from memory"),
)
"""64-bit counters of each engine, likewise; the name of engine e's begins with ``ENGINE<e>_``."""

_COUNTER_BASE = 0x100
_ENGINE_BASE = 0x200
_ENGINE_STRIDE = 0x40


def counters(config: WorkerConfig) -> tuple[tuple[str, str], ...]:
    """Names and meanings of all counters of a worker: `COUNTERS`, then each engine's `ENGINE_COUNTERS`."""
    engines = (
        (f"ENGINE{engine}_{name}", f"engine {engine}: {text}")
        for engine in range(config.engines)
        for name, text in ENGINE_COUNTERS
    )
    return (*COUNTERS, *engines)


def counter(name: str) -> tuple[Register, Register]:
    """The low and high halves of a counter, by its name in `counters`."""
    for index, (known, text) in enumerate(COUNTERS):
        if known == name:
            return _pair(name, _COUNTER_BASE + 8 * index, Access.RO, text)
    for index, (known, text) in enumerate(ENGINE_COUNTERS):
        engine = name.removeprefix("ENGINE").removesuffix(f"_{known}")
        if engine.isdecimal():
            offset = _ENGINE_BASE + _ENGINE_STRIDE * int(engine) + 0x18 + 8 * index
            return _pair(name, offset, Access.RO, f"engine {engine}: {text}")
    raise KeyError(f"there is no counter {name}")


def lines_address(engine: int, port: int) -> tuple[Register, Register]:
    """Byte address of the parts of lines that a port of an engine reads, a multiple of 4096."""
    return _pair(
        f"LINES{engine}_{port}_ADDRESS",
        _ENGINE_BASE + _ENGINE_STRIDE * engine + 8 * port,
        Access.RW,
        f"lines of engine {engine}, port {port}",
    )


def model_address(engine: int) -> tuple[Register, Register]:
    """Byte address of an engine's weights, a multiple of 4096."""
    return _pair(
        f"MODEL{engine}_ADDRESS",
        _ENGINE_BASE + _ENGINE_STRIDE * engine + 0x10,
        Access.RW,
        f"weights of engine {engine}",
    )


def _engine_registers(engine: int, ports: int) -> Iterator[Register]:
    for port in range(ports):
        yield from lines_address(engine, port)
    yield from model_address(engine)
    for name, _ in ENGINE_COUNTERS:
        yield from counter(f"ENGINE{engine}_{name}")


_COMMON: tuple[Register, ...] = (
    CTRL,
    MAGIC_WORD,
    ABI,
    CONFIG_HASH,
    BUILD_ID,
    GEOMETRY,
    CHUNKS_MAX,
    LINE_FIFO_DEPTH,
    SLOTS,
    SEGMENTS,
    STATUS,
    FORMAT,
    CHUNKS,
    MICRO_BATCHES,
    MINI_BATCHES,
    LABEL_MODE,
    RATE,
    SHRINK_FACTOR,
    THRESHOLD,
    PARTIAL_LIMIT,
    RUN,
    TABLE_SHIFT,
    TABLE_INDEX,
    TABLE_SLOPE,
    TABLE_INTERCEPT,
    *LABELS_ADDRESS,
    JOB,
    RESEND_CYCLES,
    *LOCAL_MAC,
    *PEER_MAC,
    JOIN,
    IN_FLIGHT,
    SNAPSHOT,
)


class RegisterMap:
    """All registers of a worker, in order of their offsets."""

    def __init__(self, config: WorkerConfig) -> None:
        engines = range(config.engines)
        registers = [
            *_COMMON,
            *(half for name, _ in COUNTERS for half in counter(name)),
            *(half for engine in engines for half in _engine_registers(engine, config.ports)),
        ]
        self._by_name = {register.name: register for register in registers}
        offsets = [register.offset for register in registers]
        if len(set(offsets)) != len(offsets) or len(self._by_name) != len(registers) or offsets != sorted(offsets):
            raise AssertionError("register offsets must be unique and ascending")

    def __iter__(self) -> Iterator[Register]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Register:
        return self._by_name[name]

    def at(self, offset: int) -> Register | None:
        """The register at a byte offset, if there is one."""
        return next((register for register in self if register.offset == offset), None)


def identity(config: WorkerConfig, build_id: int = 0) -> dict[str, int]:
    """The words of the identification block by register name; RTL and emulator drive these."""
    return {
        "MAGIC": MAGIC,
        "ABI_VERSION": ABI_VERSION,
        "CONFIG_HASH": config.config_hash,
        "BUILD_ID": build_id,
        "GEOMETRY": config.engines | config.lanes << 8 | 8 << 16 | config.ports << 24,
        "CHUNKS_MAX": config.chunks,
        "LINE_FIFO_DEPTH": config.line_fifo_depth,
        "SLOTS": config.slots,
        "SEGMENTS": config.table_segments,
    }


def after_reset(config: WorkerConfig, build_id: int = 0) -> Iterator[Register]:
    """All registers of a worker as a first read finds them: what the worker drives by then is their reset value."""
    words = identity(config, build_id) | {"CTRL": CTRL.encode(idle=1)}
    for register in RegisterMap(config):
        if register.name in words:
            values = register.decode(words[register.name])
            fields = tuple(replace(field, reset=values[field.name]) for field in register.fields)
            register = replace(register, fields=fields)
        yield register


class RegisterClient:
    """Field-wise access to registers through two functions that move words.

    Parameters
    ----------
    read
        ``read(offset) -> word``.
    write
        ``write(offset, word)``.
    """

    def __init__(self, read: Callable[[int], int], write: Callable[[int, int], None]) -> None:
        self._read = read
        self._write = write

    def write(self, register: Register, **fields: int) -> None:
        """Write a register; fields not named get their reset values."""
        self._write(register.offset, register.encode(**fields))

    def read(self, register: Register) -> dict[str, int]:
        """All fields of a register."""
        return register.decode(self._read(register.offset))

    def write_pair(self, pair: tuple[Register, Register], value: int) -> None:
        """Write both halves of a wide register."""
        low, high = pair
        self.write(low, value=value & 0xFFFFFFFF)
        self.write(high, value=value >> 32)

    def read_pair(self, pair: tuple[Register, Register]) -> int:
        """Read both halves of a wide register."""
        low, high = pair
        return self.read(low)["value"] | self.read(high)["value"] << 32
