"""The self-test kernel of a board: its sizes and registers, and the pattern that its memory ports read and write."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import LABEL_BYTES
from p4sgd.hw.spec.register_map import (
    CTRL_WORD,
    Access,
    Declarations,
    Field,
    Register,
    RegisterMap,
    numbered_words,
    pair,
    word,
)

KERNEL = "p4sgd_selftest"

MAGIC = int.from_bytes(b"P4ST", "big")  # first word of the identification block
ABI_VERSION = 2  # raised whenever the meaning of a register changes
WORD_BITS = 32  # bits of a word of the pattern, and of a number of a beat

PATTERN_STEP = 0x9E37_79B9
"""Difference of the numbers of two beats: 2^32 over the golden ratio, made odd (Knuth, The Art of Computer Programming
3, 6.4), so that 2^32 beats in a row have different numbers."""

_MODULUS = 1 << WORD_BITS
_INVERSE = pow(PATTERN_STEP, -1, _MODULUS)

STRIDE_LIMIT = 8  # most beats from the start of a group to that of the next, as of a `StridedReader`
GROUP_BITS = 32  # bits of the number of groups of a run

_CHUNK_BITS = 17

_PORTS_BASE, _PORT_STRIDE = 0x200, 0x40
_CAGES_BASE, _CAGE_STRIDE = 0xC00, 0x20


@dataclass(frozen=True)
class Sizes:
    """Sizes of a self-test kernel: the memory ports are those of a worker."""

    engines: int  # of the worker
    ports: int  # memory ports of an engine
    beat_bytes: int  # of such a port
    chunk_beats: int  # beats of a burst in which port 0 of an engine writes: the weights of a chunk
    cages: int  # Ethernet ports

    @classmethod
    def of(cls, config: WorkerConfig, cages: int) -> "Sizes":
        """Sizes of the kernel that tests the ports of a worker, of which there must be registers for all."""
        most = (_CAGES_BASE - _PORTS_BASE) // _PORT_STRIDE
        if config.memories > most:
            raise ValueError(f"a self-test has {most} memory ports at most, not {config.memories}")
        return cls(config.engines, config.ports, config.port_bytes, config.weight_beats, cages)

    @property
    def memories(self) -> int:
        """Memory ports, numbered as in `WorkerConfig.memories`; the last is that of the labels."""
        return self.engines * self.ports + 1

    def bytes_of(self, port: int) -> int:
        """Bytes of a beat of a memory port."""
        return LABEL_BYTES if port == self.memories - 1 else self.beat_bytes

    def writes(self, port: int) -> bool:
        """Whether a memory port can write: port 0 of each engine."""
        return port < self.memories - 1 and port % self.ports == 0


_RO, _RW, _STROBE = Access.RO, Access.RW, Access.STROBE

_kernel = Declarations()
IDENTITY = _kernel.identification(b"P4ST")
GEOMETRY = _kernel.register("GEOMETRY", 0x01C, "Sizes of the kernel")(
    Field("engines", 0, 6, _RO, "engines of the worker whose memory ports are tested"),
    Field("ports", 6, 2, _RO, "memory ports of an engine; one more is for the labels"),
    Field("beat_bytes", 8, 8, _RO, "bytes of a beat of an engine's memory port"),
    Field("chunk_beats", 16, 4, _RO, "beats of a burst in which port 0 of an engine writes"),
    Field("cages", 20, 2, _RO, "Ethernet ports"),
)
CLOCK = _kernel.word("CLOCK", 0x020, _RO, "cycles since reset, modulo 2^32")
SHAPE = _kernel.register(
    "SHAPE",
    0x024,
    "Groups of beats that are read: adjacent ones are read in the longest bursts, others each in a burst of its own",
)(
    Field("burst_beats", 0, 4, _RW, "beats of a group, 1 to stride_beats", reset=1),
    Field("stride_beats", 4, 4, _RW, "beats from the start of a group to that of the next, 1 to 8", reset=1),
    Field("short", 8, 1, _RW, "bursts of 16 beats at most, which the AXI3 ports of HBM take as they are"),
)
GROUPS = _kernel.word("GROUPS", 0x028, _RW, "groups that each port reads, at least 1", bits=GROUP_BITS)
CHUNKS = _kernel.word(
    "CHUNKS", 0x02C, _RW, "chunks of chunk_beats beats that each port writes, at least 1", bits=_CHUNK_BITS
)
PORTS = _kernel.pair("PORTS", 0x030, _RW, "bitmap of the memory ports that take part in a run")
RUN = _kernel.register(
    "RUN", 0x038, "A write begins a run of the ports in PORTS that are not busy, and clears their counters"
)(
    Field("read", 0, 1, _STROBE, "read, and compare with the pattern"),
    Field("write", 1, 1, _STROBE, "else write the pattern; only ports that can do so take part"),
)
BUSY = _kernel.pair("BUSY", 0x040, _RO, "bitmap of the memory ports whose run is under way")


CAGES = _kernel.word("CAGES", 0x048, _RW, "bitmap of the Ethernet ports that send", bits=2)
SEND = _kernel.word(
    "SEND",
    0x04C,
    _STROBE,
    "a write lets the idle ones of CAGES send that many frames, all at once, and clears their counters",
)


def address_of(port: int) -> tuple[Register, Register]:
    """Byte address, a multiple of 4096."""
    return pair(f"PORT{port}_ADDRESS", _PORTS_BASE + _PORT_STRIDE * port, _RW, f"memory of port {port}")


def first_of(port: int) -> Register:
    """The number of the beat at that address."""
    return word(f"PORT{port}_FIRST", _PORTS_BASE + _PORT_STRIDE * port + 8, _RW, "number of the beat at the address")


def port_results(port: int) -> dict[str, Register]:
    """Registers with the results of the last run of a memory port, by the name of the result."""
    meanings = {
        "cycles": "cycles of the run",
        "beats": "beats read or written",
        "wrong": "beats read that were not as expected",
        "errors": "responses that were not OKAY",
        "latency": "cycles from the first request to the first beat or response",
        "wrong_beat": "the first beat that was not as expected, counted from 0 in the order of reading",
        "wrong_word": "lowest word of that beat",
        "wrong_words": "bitmap of the words of a beat that were ever not as expected",
    }
    return numbered_words(f"PORT{port}", _PORTS_BASE + _PORT_STRIDE * port + 0x0C, meanings)


def cage_registers(cage: int) -> dict[str, Register]:
    """Registers with what an Ethernet port has sent and received, by the name of the result."""
    meanings = {
        "sending": "1 while not all frames are sent",
        "sent": "frames sent",
        "received": "frames received that were whole and as expected",
        "wrong": "beats received that are not such a frame",
        "missing": "frames left out between received ones, modulo 2^32",
        "cycles": "cycles in which frames were sent",
    }
    return numbered_words(f"CAGE{cage}", _CAGES_BASE + _CAGE_STRIDE * cage, meanings)


def selftest_map(sizes: Sizes) -> RegisterMap:
    """All registers."""
    registers = list(_kernel)
    for port in range(sizes.memories):
        registers += (*address_of(port), first_of(port), *port_results(port).values())
    for cage in range(sizes.cages):
        registers += cage_registers(cage).values()
    return RegisterMap(registers)


def identity(sizes: Sizes, build_id: int = 0) -> dict[str, int]:
    """The words of the control block and the identification block by register name."""
    words = {"CTRL": CTRL_WORD, "MAGIC": MAGIC, "ABI_VERSION": ABI_VERSION, "BUILD_ID": build_id}
    return words | {"GEOMETRY": GEOMETRY.encode(**asdict(sizes))}


def after_reset(sizes: Sizes, build_id: int = 0) -> Iterator[Register]:
    """All registers as a first read finds them, except CLOCK."""
    return selftest_map(sizes).after_reset(identity(sizes, build_id))


def first_number(address: int, beat_bytes: int, seed: int) -> int:
    """Number of the beat at a byte address, which it tells; ``seed`` tells patterns of runs apart."""
    return (seed + PATTERN_STEP * (address // beat_bytes)) % _MODULUS


def number_of_word(word: int, seed: int) -> int:
    """The ``address // beat_bytes`` of the beat with this lowest word, modulo 2^32; undoes `first_number`."""
    return (word - seed) * _INVERSE % _MODULUS


def pattern(first: int, beats: int, beat_bytes: int) -> npt.NDArray[np.uint8]:
    """Beats, uint8 (beats, beat_bytes): word j of beat n is first + n · PATTERN_STEP XOR j · PATTERN_STEP, mod 2^32."""
    step = np.uint32(PATTERN_STEP)
    numbers = np.uint32(first) + np.arange(beats, dtype=np.uint32) * step
    words = numbers[:, None] ^ (np.arange(beat_bytes // 4, dtype=np.uint32) * step)
    return words.astype("<u4").view(np.uint8)


def read_result(
    content: npt.NDArray[np.uint8], first: int, burst_beats: int = 1, stride_beats: int = 1
) -> dict[str, int]:
    """Results, but those that depend on time, of a port that reads all groups of ``content``: uint8 (beats, bytes).

    There is a multiple of ``stride_beats`` beats, the first of which has the number ``first``.
    """
    beats, beat_bytes = content.shape
    expected = pattern(first, beats, beat_bytes)
    read, wanted = (
        each.reshape(-1, stride_beats, beat_bytes)[:, :burst_beats].reshape(-1, beat_bytes).view("<u4")
        for each in (np.ascontiguousarray(content), expected)
    )
    differs = read != wanted
    wrong = np.flatnonzero(differs.any(axis=1))
    return {
        "beats": len(read),
        "wrong": len(wrong),
        "wrong_beat": int(wrong[0]) if len(wrong) else 0,
        "wrong_word": int(read[wrong[0], 0]) if len(wrong) else 0,
        "wrong_words": sum(1 << int(word) for word in np.flatnonzero(differs.any(axis=0))),
    }
