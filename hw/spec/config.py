"""The size of a worker and its clock: one frozen value that RTL, simulation and host share."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from p4sgd.hw.spec.fixed import MAX_PRECISION, ROUND_1_SHIFT, WEIGHT

CLOCK_NS = 4  # clock period: 250 MHz, the target of all boards, and the unit of cycles on every device


BANKS = 8  # samples of a micro-batch, one bank each; fixed by the packet, which carries eight integers
_MAX_FEATURES = 1 << 24  # of a worker: their dot product of 8-bit features and 32-bit weights fits 64-bit integers
_MAX_SPARSE_FEATURES = 1 << 26  # of a sparse worker, of which a sample has at most 2^24 that are not 0
_SPARSE_MEMORIES = 4  # memories of a sparse worker's image: starts, keys, values and labels (`p4sgd.hw.spec.image`)

SIZES = {
    "engines": (1, 32),
    "ports": (1, 2),
    "lanes": (8, 64),
    "chunks": (2, 65536),
    "line_fifo_depth": (8, 1 << 20),
    "slots": (2, 4096),
    "table_segments": (16, 1024),
}
"""Least and largest value of each size of a `WorkerConfig`, by its name."""


def _bits(count: int) -> int:
    return max(1, (count - 1).bit_length())


@dataclass(frozen=True)
class WorkerConfig:
    """Size of a worker."""

    engines: int = 1  # datapaths, each with its own memory ports (E): 1 to 32
    # Memory ports of an engine, 1 or 2: a line of 512 bits at 250 MHz is more than a U280's channel has (PG276).
    ports: int = 1
    lanes: int = 64  # features of a chunk, processed in one cycle: a power of two, 8 to 64
    chunks: int = 64  # chunks of an engine's model memory: a power of two, 2 to 65536
    # Lines that an engine keeps for the backward pass: a power of two, 8 to 2^20. Those of a micro-batch must fit, or a
    # run would hang (the host refuses it); full speed takes the network's latency in cycles on top.
    line_fifo_depth: int = 1024
    slots: int = 16  # AllReduce operations in flight, half for sums, half for CLEAR: a power of two, 2 to 4096
    table_segments: int = 256  # segments of the loss table: a power of two, 16 to 1024; training needs `TABLE_SEGMENTS`
    udp: bool = False  # packets of hardware travel in Ethernet; images, checkpoints and documents have this field
    sparse: bool = False  # it has a list of the features that are not 0 instead of planes, as only emulated workers do

    def __post_init__(self) -> None:
        for name, (low, high) in SIZES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")
            if name != "engines" and value & (value - 1):
                raise ValueError(f"{name} must be a power of two, not {value}")
        if self.udp:
            raise ValueError("udp must be False: packets of hardware travel in Ethernet")
        if self.sparse and self.memories < _SPARSE_MEMORIES:
            raise ValueError(f"a sparse worker needs {_SPARSE_MEMORIES} memories, not {self.memories}")
        most = _MAX_SPARSE_FEATURES if self.sparse else _MAX_FEATURES
        if self.features > most:
            raise ValueError(
                f"a worker of {self.engines} engines · {self.chunks} chunks · {self.lanes} lanes has {self.features} "
                f"features; {most} are the most"
            )

    @classmethod
    def tiny(cls) -> "WorkerConfig":
        """One engine of 8 lanes: the smallest configuration that has every mechanism, for tests."""
        return cls(engines=1, lanes=8, chunks=16, line_fifo_depth=128, slots=4)

    @classmethod
    def small(cls) -> "WorkerConfig":
        """Two engines of 16 lanes, up to 1,024 features: the default for RTL simulation."""
        return cls(engines=2, ports=2, lanes=16, chunks=32, line_fifo_depth=512, slots=8)

    @classmethod
    def u280(cls) -> "WorkerConfig":
        """An Alveo U280: 16 engines of 64 lanes on all 32 pseudo-channels of its HBM, up to 524,288 features."""
        return cls(engines=16, ports=2, lanes=64, chunks=512, line_fifo_depth=8192, slots=64)

    @classmethod
    def u280_deep(cls) -> "WorkerConfig":
        """An Alveo U280 with the model in UltraRAM: up to 2,097,152 features a worker at 4 planes, half at 8."""
        return cls(engines=8, ports=2, lanes=64, chunks=4096, line_fifo_depth=16384, slots=64)

    @classmethod
    def u50(cls) -> "WorkerConfig":
        """An Alveo U50, two thirds of the U280's logic, 63 W: 8 engines, up to 262,144 features."""
        return cls(engines=8, ports=2, lanes=64, chunks=512, line_fifo_depth=8192, slots=64)

    @classmethod
    def u55c(cls) -> "WorkerConfig":
        """An Alveo U55C, the logic of a U280 without memory beside its HBM: 15 engines, and a channel for labels."""
        return cls(engines=15, ports=2, lanes=64, chunks=512, line_fifo_depth=8192, slots=64)

    @classmethod
    def sparse_worker(cls) -> "WorkerConfig":
        """A worker for sparse data: a program, with up to 67,108,864 features."""
        return cls(engines=16, lanes=64, chunks=65536, slots=64, sparse=True)

    @property
    def features(self) -> int:
        """Features that a worker holds: engines · chunks · lanes."""
        return self.engines * self.chunks * self.lanes

    @property
    def line_bits(self) -> int:
        """Bits of a line, which is one plane of one chunk of a micro-batch: 8 banks · lanes."""
        return BANKS * self.lanes

    @property
    def line_bytes(self) -> int:
        return self.line_bits // 8

    @property
    def port_bits(self) -> int:
        """Bits of a memory port: its part of a line."""
        return self.line_bits // self.ports

    @property
    def port_bytes(self) -> int:
        return self.port_bits // 8

    @property
    def memories(self) -> int:
        """Memory buffers of a worker: one for each port of each engine, in order, then the one for labels."""
        return self.engines * self.ports + 1

    @property
    def labels_memory(self) -> int:
        return self.engines * self.ports

    def model_memory(self, engine: int) -> int:
        """Index of the memory buffer with an engine's weights: that of its port 0."""
        return engine * self.ports

    @property
    def weight_beats(self) -> int:
        """Beats of a memory port that hold the weights of one chunk: 4 · ports."""
        return WEIGHT.width * self.lanes // self.port_bits

    @property
    def chunk_bits(self) -> int:
        return _bits(self.chunks)

    @property
    def slot_bits(self) -> int:
        return _bits(self.slots)

    @property
    def in_flight(self) -> int:
        """Maximum number of micro-batches of an engine between the starts of their forward and backward passes."""
        return self.slots // 2

    @property
    def segment_bits(self) -> int:
        return _bits(self.table_segments)

    @property
    def plane_sum_bits(self) -> int:
        """Signed width of one plane's dot product: a weight, plus log2(lanes)."""
        return WEIGHT.width + _bits(self.lanes)

    @property
    def dot_bits(self) -> int:
        """Signed width of an engine's sum of rounded dot products: weight + 8 planes + log2(lanes · chunks), less
        `ROUND_1_SHIFT`."""
        return WEIGHT.width + MAX_PRECISION + _bits(self.lanes * self.chunks) - ROUND_1_SHIFT

    @property
    def config_hash(self) -> int:
        """The first 32 bits of SHA-256 over the fields as canonical JSON, to tell configurations apart."""
        # Without flags that are not set, so that configurations from before these keep their hash.
        fields = {name: value for name, value in vars(self).items() if value is not False}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def table(self) -> dict[str, int]:
        """Fields and derived sizes by name, for printing."""
        derived = ("features", "line_bytes", "plane_sum_bits", "dot_bits")
        return dataclasses.asdict(self) | {name: getattr(self, name) for name in derived}


_PRESETS = ("tiny", "small", "u280", "u280_deep", "u50", "u55c")

PRESETS: dict[str, Callable[[], WorkerConfig]] = {name: getattr(WorkerConfig, name) for name in _PRESETS}
"""Configurations of hardware by their names on the command line."""

CONFIGURATIONS = {**PRESETS, "sparse": WorkerConfig.sparse_worker}  # configurations of hardware and of emulated workers


@dataclass(frozen=True)
class NamedConfig:
    """A configuration as commands name it: one of `CONFIGURATIONS`, some sizes of which may be changed."""

    name: str
    config: WorkerConfig
    board: str | None = None  # the board that it is for, if not that of the preset
    board_from: str = field(default="", compare=False)  # where the user named it, for messages: ``worker.toml``

    @classmethod
    def of(cls, name: str, *, board: str | None = None, board_from: str = "", **sizes: Any) -> "NamedConfig":
        """One of `CONFIGURATIONS` with other ``sizes``; a ValueError if one is out of range or they do not fit."""
        return cls(name, dataclasses.replace(CONFIGURATIONS[name](), **sizes), board, board_from)

    @classmethod
    def find(cls, config: WorkerConfig) -> "NamedConfig":
        """A configuration by the name of the preset that it is, or that is most like it."""
        return min((cls(name, config) for name in CONFIGURATIONS), key=lambda each: len(each.changes))

    def __str__(self) -> str:
        return " ".join(self.options[1:])

    @property
    def changes(self) -> dict[str, Any]:
        """What is not as in the preset, by the keys of ``--set``."""
        preset = CONFIGURATIONS[self.name]()
        sizes = {name: getattr(self.config, name) for name in SIZES}
        changed: dict[str, Any] = {name: value for name, value in sizes.items() if value != getattr(preset, name)}
        return changed if self.board is None else changed | {"board": self.board}

    @property
    def options(self) -> list[str]:
        """Words of the command line: ``--config small --set slots=16``."""
        words = ["--config", self.name]
        return words + [word for key, value in self.changes.items() for word in ("--set", f"{key}={value}")]
