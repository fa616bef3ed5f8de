"""Lines of an engine in the order in which it reads them, with what is known of each, for benches."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from cocotb.triggers import RisingEdge

from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import ImageLayout


@dataclass(frozen=True)
class Line:
    """A line of the image.

    ``micro_batch``: number of its micro-batch; ``place``: the fields of `place_layout`; None for a directory;
    ``absent``: if it is the first of its chunk: chunks before that which are not listed.
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
    memory = layout.memories(q)[0].reshape(-1, layout.config.line_bytes)
    words = (int.from_bytes(line.tobytes(), "little") for line in memory)
    found: list[Line] = []
    for micro_batch, descriptors in enumerate(layout.descriptors(q)[0]):
        expected = 0
        for number, descriptor in enumerate(descriptors):
            if layout.directory and number % layout.line_descriptors == 0:
                found.append(Line(next(words), micro_batch, None))
            chunk, planes = descriptor.chunk, descriptor.planes
            for before, plane in zip([None, *planes], planes, strict=False):
                place = {
                    "chunk": chunk,
                    "first_plane": int(before is None),
                    "last_plane": int(plane == planes[-1]),
                    "top": int(plane == 0),
                    "skips": int(before is not None and plane - before == 2),
                    "first_chunk": int(number == 0),
                    "last_chunk": int(descriptor.last),
                }
                absent = chunk - expected if before is None else 0
                found.append(Line(next(words), micro_batch, place, plane, absent))
            expected = chunk + 1
    assert next(words, None) is None
    return found


def pack_place(config: WorkerConfig, line: Line) -> int:
    """The place of a line as a word of `place_layout`."""
    assert line.place is not None
    chunk, *flags = line.place.values()
    return chunk | sum(flag << config.chunk_bits + bit for bit, flag in enumerate(flags))


def pack_kept(config: WorkerConfig, line: Line) -> int:
    """A kept line and its place as a word of `kept_layout`."""
    return line.word | pack_place(config, line) << config.line_bits


async def begin_run(dut: Any) -> None:
    """Inside the simulator: start a run once the settings have been there for two cycles."""
    for start_now in (0, 0, 1):
        dut.start.value = start_now
        await RisingEdge(dut.clk)
    dut.start.value = 0
