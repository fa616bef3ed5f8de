"""The layout of a worker's memory image: where every bit of features, labels and weights lies.

Each engine reads a sequence of lines. Line ``(t·C + c)·S + k`` is plane k (0 is the most significant) of chunk c of
micro-batch t. Bit ``b·lanes + j`` of a line belongs to lane j of sample 8t + b; bit 0 is the lowest bit of the lowest
byte. With several memory ports an engine reads an equal part of every line through each, port 0 the lowest banks.
Labels are eight little-endian int32 for each micro-batch. If samples have weights, the eight of each micro-batch follow
its labels, little-endian uint32 of the format `IMPORTANCE`. Weights of the model are one little-endian int32 for each
feature, chunk by chunk, in the memory of port 0.

The units of a worker are distributed over its engines in turn: its i-th unit is unit ``i // engines`` of engine
``i % engines``. A unit takes whole chunks: several if it has more features than there are lanes; one, filled up with
zeros, if it has fewer. Missing features and samples are zeros.

A sparse worker has a list of the features that are not 0 instead of lines, and no engines that its units are for.
Memory 0 has int64 ``starts``: micro-batch t has the entries from ``starts[t]`` to ``starts[t + 1]``, the first from 0
on. Memory 1 has their keys, uint32: the feature's place among those of the worker, units filled up to whole chunks,
<< 3 | the sample's bank, ascending within a micro-batch. Memory 2 has their values, a byte each: an S-bit integer.
Labels and weights are as above.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.run import MAX_UNIT, check_unit

__all__ = ["BANK_BITS", "LABEL_BYTES", "ImageLayout", "entry_words", "pack_labels", "split_words", "unpack_labels"]

_T = TypeVar("_T", bound=np.generic)

BANK_BITS = 3
"""Bits of the key of a sparse worker's entry below its feature: the bank."""

LABEL_BYTES = 4 * BANKS
"""Bytes of the labels of one micro-batch."""


@dataclass(frozen=True)
class ImageLayout:
    """Shape of a worker's image.

    Parameters
    ----------
    config
        The worker; only ``engines``, ``lanes`` and ``ports`` matter here.
    features
        Features of the shard, before padding. All units but the last have ``unit`` of them.
    samples
        Samples, before padding.
    stored
        Planes in the image (S).
    unit
        Features of a unit, one of `UNITS`.

    Raises
    ------
    ValueError
        If there are no features or no samples, or if a unit has another number of features.
    """

    config: WorkerConfig
    features: int
    samples: int
    stored: int
    unit: int = MAX_UNIT

    def __post_init__(self) -> None:
        if self.features < 1 or self.samples < 1:
            raise ValueError(f"an image needs features and samples, not {self.features} and {self.samples}")
        check_unit(self.unit)

    @property
    def units(self) -> int:
        """Units of the worker."""
        return -(-self.features // self.unit)

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
        """Features of a unit including padding."""
        return self.unit_chunks * self.config.lanes

    @property
    def chunks(self) -> int:
        """Chunks of each engine (C): ⌈units / engines⌉ · unit_chunks."""
        return -(-self.units // self.config.engines) * self.unit_chunks

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
        """Engine, chunk and lane of the shard's feature of this number."""
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
        """Bytes of the lines of a memory port."""
        return self.micro_batches * self.chunks * self.stored * self.config.port_bytes

    @property
    def labels_bytes(self) -> int:
        """Bytes of the labels."""
        return self.micro_batches * LABEL_BYTES

    @property
    def model_bytes(self) -> int:
        """Bytes of an engine's weights."""
        return self.chunks * self.config.lanes * 4

    def memories(self, q: IntArray) -> list[npt.NDArray[np.uint8]]:
        """What is in each memory but that of the labels: lines, or a sparse worker's entries as bytes.

        Parameters
        ----------
        q
            S-bit integers, (samples, features).
        """
        if not self.config.sparse:
            return list(self.pack_lines(q))
        padded = self.pad(q)
        rows, places = np.nonzero(padded)
        values = padded[rows, places].astype(np.uint8) & np.uint8((1 << self.stored) - 1)
        counts, keys, values = split_words(np.sort(entry_words(rows, places, values)), self.micro_batches)
        starts = np.append(0, np.cumsum(counts)).astype("<i8")
        empty = np.empty(0, np.uint8)
        return [starts.view(np.uint8), keys.view(np.uint8), values, *[empty] * (self.config.labels_memory - 3)]

    def line_address(self, micro_batch: int, chunk: int, plane: int) -> int:
        """Byte offset of a port's part of a line."""
        return ((micro_batch * self.chunks + chunk) * self.stored + plane) * self.config.port_bytes

    def scatter(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Distribute the last axis (padded features): (..., padded_features) → (engines, ..., C · lanes)."""
        split = values.reshape(*values.shape[:-1], -1, self.config.engines, self.unit_lanes)
        scattered = np.moveaxis(split, -2, 0)
        return scattered.reshape(self.config.engines, *values.shape[:-1], self.chunks * self.config.lanes)

    def gather(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Undo `scatter`: (engines, ..., C · lanes) → (..., padded_features)."""
        split = values.reshape(*values.shape[:-1], -1, self.unit_lanes)
        gathered = np.moveaxis(split, 0, -2)
        return gathered.reshape(*values.shape[1:-1], self.padded_features)

    def pack_lines(self, q: IntArray) -> npt.NDArray[np.uint8]:
        """The lines of all memory ports: the definition in NumPy, not a fast implementation.

        Parameters
        ----------
        q
            int64 (samples, features): S-bit features; two's complement if signed.

        Returns
        -------
        uint8 (engines · ports, T, C, S, 8/ports, lanes/8), the bytes of the image in order.

        Raises
        ------
        ValueError
            If ``q`` has another shape.
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

    def unpack_lines(self, lines: npt.NDArray[np.uint8], precision: int, signed: bool) -> IntArray:
        """The features that a run of ``precision`` planes reads: the inverse of `pack_lines`.

        Parameters
        ----------
        lines
            uint8 (engines · ports, T, C, S, 8/ports, lanes/8).
        precision
            Planes to read (P ≤ S).
        signed
            Whether the features are two's complement.

        Returns
        -------
        int64 (8·T, padded_features) of P-bit integers, padding included.
        """
        parts = np.moveaxis(lines.reshape(self.config.engines, self.config.ports, *self.lines_shape), 1, 4)
        whole = parts.reshape(*parts.shape[:4], BANKS, parts.shape[6])
        bits = np.unpackbits(whole[:, :, :, :precision], axis=-1, bitorder="little").astype(np.int64)
        place = 1 << np.arange(precision - 1, -1, -1)
        if signed:
            place[0] = -place[0]
        q = np.einsum("etckbj,k->etbcj", bits, place)
        engines = self.config.engines
        q = q.reshape(engines, self.micro_batches * BANKS, self.chunks * self.config.lanes)
        return np.asarray(self.gather(q), dtype=np.int64)


def pack_labels(labels: npt.NDArray[Any], importances: npt.NDArray[Any] | None = None) -> npt.NDArray[np.uint8]:
    """The memory of labels, and of weights if samples have any.

    Parameters
    ----------
    labels
        `LABEL` integers, (samples,), a multiple of 8.
    importances
        `IMPORTANCE` integers of the same shape; None if the run is not ``weighted``.
    """
    if importances is None:
        return np.ascontiguousarray(labels, "<i4").view(np.uint8)
    parts = labels.reshape(-1, BANKS), importances.reshape(-1, BANKS)
    return np.concatenate(parts, axis=1).astype("<i4").reshape(-1).view(np.uint8)


def unpack_labels(content: npt.NDArray[np.uint8], *, weighted: bool) -> tuple[IntArray, IntArray]:
    """Undo `pack_labels`: labels, and importances, of which there are none if the run is not ``weighted``."""
    parts = content.view("<i4").reshape(-1, 1 + weighted, BANKS).astype(np.int64)
    return parts[:, 0].reshape(-1), parts[:, 1:].reshape(-1)


_KEY, _MICRO_BATCH = 8, 40
"""Places of a key and of a micro-batch in a word of `entry_words`, whose lowest byte is the value."""


def entry_words(rows: IntArray, columns: IntArray, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Entries in one word each: sorted, they are in the order of a sparse worker's memory.

    Parameters
    ----------
    rows, columns
        int (entries,): sample, less than 2^27, and place among the worker's features, less than 2^29.
    values
        uint8 (entries,).
    """
    samples = rows.astype(np.uint64)
    words = columns.astype(np.uint64)
    words <<= np.uint64(BANK_BITS)
    words |= samples % np.uint64(BANKS)
    words <<= np.uint64(_KEY)
    words |= values
    words |= samples // np.uint64(BANKS) << np.uint64(_MICRO_BATCH)
    return words


def split_words(
    words: npt.NDArray[np.uint64], micro_batches: int
) -> tuple[IntArray, npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Undo `entry_words`, sorted: number of entries of each micro-batch, keys, and values."""
    counts = np.bincount((words >> np.uint64(_MICRO_BATCH)).astype(np.int64), minlength=micro_batches)
    return counts, (words >> np.uint64(_KEY)).astype(np.uint32), words.astype(np.uint8)
