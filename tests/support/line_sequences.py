"""Lines of an engine in the order in which it reads them, with what is known of each, for benches."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import Descriptor, ImageLayout

__all__ = ["Line", "engine_config", "line_sequence", "make_sparse", "pack_kept"]


@dataclass(frozen=True)
class Line:
    """A line of the image.

    Parameters
    ----------
    word
        Its bits.
    micro_batch
        Number of its micro-batch.
    place
        The fields of `place_layout`; None for a directory.
    plane
        Its plane.
    absent
        If it is the first of its chunk: chunks before that which are not listed.
    """

    word: int
    micro_batch: int
    place: dict[str, int] | None
    plane: int = 0
    absent: int = 0


def engine_config(lanes: int, chunks: int, slots: int = 4) -> WorkerConfig:
    """A worker of one engine."""
    return WorkerConfig(lanes=lanes, chunks=chunks, line_fifo_depth=128, slots=slots, table_segments=64)


def make_sparse(rng: np.random.Generator, q: IntArray, lanes: int) -> IntArray:
    """The same features with some, most or all of a chunk 0, and the others of some chunks small."""
    samples, features = q.shape
    chunks = -(-samples // BANKS), -(-features // lanes)

    def choose(*choices: float) -> npt.NDArray[np.float64]:
        return np.kron(rng.choice(choices, chunks), np.ones((BANKS, lanes)))[:samples, :features]

    small = q >> choose(0, 0, 1, 3, 6).astype(np.int64)
    return np.where(rng.random(q.shape) < choose(0, 0.02, 0.3, 1), small, 0)


def line_sequence(layout: ImageLayout, q: IntArray) -> list[Line]:
    """All lines of the only engine, which has one port."""
    assert layout.config.engines == layout.config.ports == 1
    if layout.directory:
        memory = layout.pack_directories(q)[0][0]
    else:
        memory = layout.pack_lines(q)[0]
    parts = memory.reshape(-1, layout.config.line_bytes)
    words = (int.from_bytes(part.tobytes(), "little") for part in parts)
    found: list[Line] = []
    every = [Descriptor(c, 0, (1 << layout.stored - 1) - 1, c == layout.chunks - 1) for c in range(layout.chunks)]
    for micro_batch in range(layout.micro_batches):
        before, ended = -1, False
        while not ended:
            descriptors = every
            if layout.directory:
                directory = next(words)
                found.append(Line(directory, micro_batch, None))
                listed = (Descriptor.decode(directory >> 32 * at & 0xFFFFFFFF) for at in range(layout.line_descriptors))
                descriptors = []
                for descriptor in listed:
                    descriptors.append(descriptor)
                    if descriptor.last:
                        break
            for chunk, first, later, last in descriptors:
                planes = Descriptor(chunk, first, later, last).planes
                for place, plane in enumerate(planes):
                    found.append(
                        Line(
                            next(words),
                            micro_batch,
                            {
                                "chunk": chunk,
                                "first_plane": int(place == 0),
                                "last_plane": int(plane == planes[-1]),
                                "top": int(plane == 0),
                                "skips": int(place > 0 and plane - planes[place - 1] == 2),
                                "first_chunk": int(before < 0),
                                "last_chunk": int(last),
                            },
                            plane,
                            chunk - before - 1 if place == 0 else 0,
                        )
                    )
                before, ended = chunk, last
    assert next(words, None) is None
    return found


def pack_kept(config: WorkerConfig, line: Line) -> int:
    """A kept line and its place as a word of `kept_layout`."""
    assert line.place is not None
    word, at = line.word, config.line_bits
    for name, value in line.place.items():
        word |= value << at
        at += config.chunk_bits if name == "chunk" else 1
    return word
