"""The layout of a worker's memory image: where every bit of features, labels and weights lies.

Each engine reads a sequence of lines. Line ``(t·C + c)·S + k`` is plane k (0 is the most significant) of chunk c of
micro-batch t. Bit ``b·lanes + j`` of a line belongs to lane j of sample 8t + b; bit 0 is the lowest bit of the lowest
byte. Of several memory ports each has an equal part of every line, port 0 the lowest banks. Labels are eight
little-endian int32 for each micro-batch, followed by eight uint32 of `IMPORTANCE` if samples have weights. Weights of
the model are one little-endian int32 for each feature, chunk by chunk, in the memory of port 0.

The i-th unit of a worker is unit ``i // engines`` of engine ``i % engines``. A unit takes whole chunks: several if it
has more features than there are lanes; one, filled up with zeros, if fewer. Missing features and samples are zeros.

**An image with directories** leaves out lines of zeros. A micro-batch is a directory line, the lines of the chunks that
it lists, the next directory line, and so on. A directory line is little-endian uint32 `Descriptor`, as many as fit,
with zeros behind the last of a micro-batch. Chunks are listed in ascending order: those that are not all 0, and always
the last one, C − 1. Of a listed chunk there are the lines with a 1, that of the last plane, and so many others that
after the first no two planes in a row are missing (`kept_planes`). All planes are read: P is S.

A sparse worker has a list of the features that are not 0 instead, and no engines that its units are for. Memory 0 has
int64 ``starts``: micro-batch t has the entries from ``starts[t]`` to ``starts[t + 1]``. Memory 1 has their keys,
uint32: the feature's place in the worker, units filled up to whole chunks, << 3 | the sample's bank, ascending within a
micro-batch. Memory 2 has their values, a byte each: an S-bit integer. Labels and weights are as above.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.run import MAX_UNIT, check_unit

_T = TypeVar("_T", bound=np.generic)

BANK_BITS = 3  # bits of the key of a sparse worker's entry below its feature: the bank
LABEL_BYTES = 4 * BANKS  # bytes of the labels of one micro-batch
DESCRIPTOR_FIELDS = {"chunk": 16, "first": 3, "later": 7, "reserved": 5, "last": 1}  # bits, lowest first
DESCRIPTOR_SHIFTS = {"chunk": 0, "first": 16, "later": 19, "reserved": 26, "last": 31}  # lowest bit of each field

DESCRIPTOR_BITS = 32


class Descriptor(NamedTuple):
    """Entry of a directory about a chunk, by `DESCRIPTOR_FIELDS`."""

    chunk: int
    first: int  # plane of its first line, 0 the most significant
    later: int  # bit i is set if there is a line of plane ``first`` + 1 + i
    last: bool  # it is the last chunk of its micro-batch

    @property
    def planes(self) -> list[int]:
        return [self.first, *(self.first + 1 + bit for bit in range(7) if self.later >> bit & 1)]

    def encode(self) -> int:
        return sum(int(value) << DESCRIPTOR_SHIFTS[name] for name, value in self._asdict().items())

    @classmethod
    def decode(cls, word: int) -> "Descriptor":
        chunk, first, later, last = (
            word >> DESCRIPTOR_SHIFTS[name] & (1 << DESCRIPTOR_FIELDS[name]) - 1 for name in cls._fields
        )
        return cls(chunk, first, later, bool(last))


def kept_planes(ones: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Planes of listed chunks that have a line, from those that have a 1: bool (..., S) both.

    Horner's rule doubles a sum once or twice from line to line, so at most one plane is missing between two.
    """
    kept = ones.copy()
    kept[..., -1] = True
    begun = np.zeros(ones.shape[:-1], np.bool_)
    for plane in range(ones.shape[-1] - 1):
        if plane:
            kept[..., plane] |= begun & ~kept[..., plane - 1]
        begun |= kept[..., plane]
    return kept


@dataclass(frozen=True)
class ImageLayout:
    """Shape of a worker's image."""

    config: WorkerConfig  # only `engines`, `lanes` and `ports` matter here
    features: int  # of the shard, before padding
    samples: int  # before padding
    stored: int  # planes in the image (S)
    unit: int = MAX_UNIT  # features of a unit but the last, one of `UNITS`
    directory: bool = False  # lines of zeros are left out, of which directories tell

    def __post_init__(self) -> None:
        if self.directory and self.config.sparse:
            raise ValueError("a sparse worker has no lines, so no directories")
        if self.features < 1 or self.samples < 1:
            raise ValueError(f"an image needs features and samples, not {self.features} and {self.samples}")
        check_unit(self.unit)

    @property
    def unit_chunks(self) -> int:
        """Chunks of a unit: 1, 2, 4 or 8."""
        return max(1, self.unit // self.config.lanes)

    @property
    def unit_chunks_field(self) -> int:
        """`unit_chunks` as FORMAT.unit_chunks has it: log2."""
        return self.unit_chunks.bit_length() - 1

    @property
    def unit_lanes(self) -> int:
        return self.unit_chunks * self.config.lanes

    @property
    def chunks(self) -> int:
        """Chunks of each engine (C): ⌈units / engines⌉ · unit_chunks."""
        units = -(-self.features // self.unit)
        return -(-units // self.config.engines) * self.unit_chunks

    @property
    def padded_features(self) -> int:
        """Features including padding: C · engines · lanes."""
        return self.chunks * self.config.engines * self.config.lanes

    def pad(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Fill up units, and the last axis with units, by zeros: (..., features) → (..., padded_features)."""
        leading = values.shape[:-1]
        padded = np.zeros((*leading, self.padded_features // self.unit_lanes, self.unit_lanes), values.dtype)
        units = padded[..., : self.unit]
        whole = self.features // self.unit
        units[..., :whole, :] = values[..., : whole * self.unit].reshape(*leading, whole, self.unit)
        if rest := self.features % self.unit:
            units[..., whole, :rest] = values[..., whole * self.unit :]
        return padded.reshape(*leading, self.padded_features)

    def unpad(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Undo `pad`: (..., padded_features) → (..., features)."""
        leading = values.shape[:-1]
        units = values.reshape(*leading, -1, self.unit_lanes)[..., : self.unit]
        return units.reshape(*leading, -1)[..., : self.features]

    def place(self, feature: int) -> tuple[int, int, int]:
        number, within = divmod(feature, self.unit)
        chunk, lane = divmod(within, self.config.lanes)
        return number % self.config.engines, number // self.config.engines * self.unit_chunks + chunk, lane

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the image (T): ⌈samples / 8⌉."""
        return -(-self.samples // BANKS)

    @property
    def lines_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of the lines of a memory port as bytes: (T, C, S, 8 / ports banks, lanes / 8)."""
        return (self.micro_batches, self.chunks, self.stored, BANKS // self.config.ports, self.config.lanes // 8)

    @property
    def lines_bytes(self) -> int:
        return self.micro_batches * self.chunks * self.stored * self.config.port_bytes

    @property
    def labels_bytes(self) -> int:
        return self.micro_batches * LABEL_BYTES

    @property
    def model_bytes(self) -> int:
        return self.chunks * self.config.lanes * 4

    def memories(self, q: IntArray) -> list[npt.NDArray[np.uint8]]:
        """Contents of each memory but that of the labels, from S-bit integers ``q``, (samples, features)."""
        if self.directory:
            return self.pack_directories(q)[0]
        if not self.config.sparse:
            return list(self.pack_lines(q))
        padded = self.pad(q)
        rows, places = np.nonzero(padded)
        values = padded[rows, places].astype(np.uint8) & np.uint8((1 << self.stored) - 1)
        counts, keys, values = split_words(np.sort(entry_words(rows, places, values)), self.micro_batches)
        starts = np.append(0, np.cumsum(counts)).astype("<i8")
        empty = np.empty(0, np.uint8)
        return [starts.view(np.uint8), keys.view(np.uint8), values, *[empty] * (self.config.labels_memory - 3)]

    def by_engine(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """A view of the last axis by engine: (..., padded_features) → (engines, ..., units, lanes of a unit)."""
        split = values.reshape(*values.shape[:-1], -1, self.config.engines, self.unit_lanes)
        return np.moveaxis(split, -2, 0)

    def scatter(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Distribute the last axis: (..., padded_features) → (engines, ..., C · lanes)."""
        by_engine = self.by_engine(values)
        return by_engine.reshape(self.config.engines, *values.shape[:-1], self.chunks * self.config.lanes)

    def gather(self, values: npt.NDArray[_T] | Sequence[npt.NDArray[_T]]) -> npt.NDArray[_T]:
        """Undo `scatter`: (..., C · lanes) of each engine → (..., padded_features)."""
        gathered = np.empty((*values[0].shape[:-1], self.padded_features), values[0].dtype)
        for own, part in zip(self.by_engine(gathered), values, strict=True):
            own[:] = part.reshape(own.shape)
        return gathered

    def pack_lines(self, q: IntArray) -> npt.NDArray[np.uint8]:
        """The lines of all ports, by definition and not fast: uint8 (engines · ports, T, C, S, 8/ports, lanes/8).

        ``q`` are S-bit features, two's complement if signed: int64 (samples, features).
        """
        if q.shape != (self.samples, self.features):
            raise ValueError(f"q must have shape {(self.samples, self.features)}, not {q.shape}")
        padded = np.zeros((self.micro_batches * BANKS, self.padded_features), np.int64)
        padded[: self.samples] = self.pad(q)
        shape = (self.config.engines, self.micro_batches, BANKS, self.chunks, self.config.lanes)
        scattered: IntArray = self.scatter(padded).reshape(shape).astype(np.int64)
        planes = np.arange(self.stored - 1, -1, -1).reshape(-1, 1, 1)
        bits = (scattered.transpose(0, 1, 3, 2, 4)[:, :, :, np.newaxis] >> planes) & 1
        lines = np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little")
        parts = lines.reshape(*lines.shape[:4], self.config.ports, -1, lines.shape[5])
        return np.ascontiguousarray(np.moveaxis(parts, 4, 1)).reshape(-1, *self.lines_shape)

    @property
    def line_descriptors(self) -> int:
        """Descriptors that fit a directory line: 16 at 64 lanes."""
        return self.config.line_bits // DESCRIPTOR_BITS

    def _join_ports(self, lines: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Lines of each engine, from those of all ports: uint8 (engines, T, C, S, 8, lanes/8)."""
        parts = lines.reshape(self.config.engines, self.config.ports, *self.lines_shape)
        return np.moveaxis(parts, 1, 4).reshape(self.config.engines, *self.lines_shape[:3], BANKS, -1)

    def descriptors(self, q: IntArray) -> list[list[list[Descriptor]]]:
        """Descriptors of each engine's micro-batches; without directories all planes of all chunks."""
        return self._list(self._join_ports(self.pack_lines(q)))

    def _list(self, whole: npt.NDArray[np.uint8]) -> list[list[list[Descriptor]]]:
        ones = np.asarray(whole.any(axis=(-2, -1))) if self.directory else np.ones(whole.shape[:4], np.bool_)
        listed, kept = np.asarray(ones.any(axis=-1)), kept_planes(ones)
        listed[..., -1] = True
        found: list[list[list[Descriptor]]] = [[[] for _ in range(self.micro_batches)] for _ in range(len(whole))]
        for engine, micro_batch, chunk in np.argwhere(listed).tolist():
            first, *others = np.flatnonzero(kept[engine, micro_batch, chunk]).tolist()
            later = sum(1 << plane - first - 1 for plane in others)
            found[engine][micro_batch].append(Descriptor(chunk, first, later, chunk == self.chunks - 1))
        return found

    def pack_directories(self, q: IntArray) -> tuple[list[npt.NDArray[np.uint8]], IntArray]:
        """The memories of an image with directories, by definition: uint8 (lines, 8/ports, lanes/8) each.

        And the lines of an engine before each micro-batch, directories included: int64 (engines, T + 1).
        """
        ports, whole = self.config.ports, self._join_ports(self.pack_lines(q))
        memories: list[npt.NDArray[np.uint8]] = []
        starts = np.zeros((self.config.engines, self.micro_batches + 1), np.int64)
        for engine, listed in enumerate(self._list(whole)):
            lines: list[npt.NDArray[np.uint8]] = []
            for micro_batch, descriptors in enumerate(listed):
                for group in range(0, len(descriptors), self.line_descriptors):
                    own = descriptors[group : group + self.line_descriptors]
                    words = np.zeros(self.line_descriptors, "<u4")
                    words[: len(own)] = [each.encode() for each in own]
                    lines.append(words.view(np.uint8).reshape(BANKS, -1))
                    for each in own:
                        lines += list(whole[engine, micro_batch, each.chunk, each.planes])
                starts[engine, micro_batch + 1] = len(lines)
            memories += list(np.stack(lines).reshape(len(lines), ports, -1, self.config.lanes // 8).swapaxes(0, 1))
        return memories, starts

    def unpack_lines(self, lines: npt.NDArray[np.uint8], precision: int, signed: bool) -> IntArray:
        """The features that a run of ``precision`` planes reads from `pack_lines`: int64 (8·T, padded_features)."""
        whole = self._join_ports(lines)[:, :, :, :precision]
        bits = np.unpackbits(whole, axis=-1, bitorder="little").astype(np.int64)
        weights = 1 << np.arange(precision - 1, -1, -1)
        if signed:
            weights[0] = -weights[0]
        q = np.einsum("etckbj,k->etbcj", bits, weights)
        q = q.reshape(self.config.engines, self.micro_batches * BANKS, self.chunks * self.config.lanes)
        return np.asarray(self.gather(q), dtype=np.int64)


def pack_labels(labels: npt.NDArray[Any], importances: npt.NDArray[Any] | None = None) -> npt.NDArray[np.uint8]:
    """The memory of `LABEL` integers, a multiple of 8, and of their `IMPORTANCE` if the run is weighted."""
    if importances is None:
        return np.ascontiguousarray(labels, "<i4").view(np.uint8)
    parts = labels.reshape(-1, BANKS), importances.reshape(-1, BANKS)
    return np.concatenate(parts, axis=1).astype("<i4").reshape(-1).view(np.uint8)


def unpack_labels(content: npt.NDArray[np.uint8], *, weighted: bool) -> tuple[IntArray, IntArray]:
    """Undo `pack_labels`: labels, and importances if the run is ``weighted``."""
    parts = content.view("<i4").reshape(-1, 1 + weighted, BANKS).astype(np.int64)
    return parts[:, 0].reshape(-1), parts[:, 1:].reshape(-1)


ENTRY_KEY, ENTRY_MICRO_BATCH = 8, 40
"""Lowest bits of a key and of a micro-batch in a word of `entry_words`; below is the value."""


def entry_words(rows: IntArray, columns: IntArray, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Entries in one word each; sorted, they are in the order of a sparse worker's memory.

    ``rows`` are samples, below 2^27, ``columns`` features of the worker with padding, below 2^29; all (entries,).
    """
    samples = rows.astype(np.uint64)
    words = columns.astype(np.uint64)
    words <<= np.uint64(BANK_BITS)
    words |= samples % np.uint64(BANKS)
    words <<= np.uint64(ENTRY_KEY)
    words |= values
    words |= samples // np.uint64(BANKS) << np.uint64(ENTRY_MICRO_BATCH)
    return words


def split_words(
    words: npt.NDArray[np.uint64], micro_batches: int
) -> tuple[IntArray, npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Undo `entry_words`, sorted: number of entries of each micro-batch, keys, and values."""
    edges = np.searchsorted(words, np.arange(micro_batches + 1, dtype=np.uint64) << np.uint64(ENTRY_MICRO_BATCH))
    return np.diff(edges), (words >> np.uint64(ENTRY_KEY)).astype(np.uint32), words.astype(np.uint8)
