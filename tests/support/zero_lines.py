"""Lines without a 1 in sparse data, and the cycles of a board that would pass them over.

No hardware does so: this is the estimate of what it would gain (``tests/bench/bench_zeros.py``, ``hw/ZEROS.md``).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.hw.datapath.model import Model
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.timing import mini_batch_cycles

__all__ = ["Lines", "engines_of", "expected_chunks", "fixed_cycles", "nonzero_lines", "skipping_cycles"]


@dataclass(frozen=True)
class Lines:
    """The chunks of micro-batches that are not 0 for all 8 samples, by micro-batch and chunk.

    Parameters
    ----------
    micro_batches, chunks
        Which ones: int64 (count,).
    planes
        How many of their lines have a 1: int64 (count,).
    """

    micro_batches: IntArray
    chunks: IntArray
    planes: IntArray


def nonzero_lines(rows: IntArray, places: IntArray, values: npt.NDArray[np.uint8], lanes: int) -> Lines:
    """Count the lines that are not 0.

    Parameters
    ----------
    rows, places
        Samples of the stored values and their columns, in the order in which columns are dealt: int64 (stored,).
    values
        Quantised values modulo 256; zeros among them are left out.
    lanes
        Columns of a chunk.
    """
    stays = values != 0
    rows, chunks, values = rows[stays], places[stays] // lanes, values[stays]
    total = int(chunks.max(initial=0)) + 1
    keys = rows // BANKS * total + chunks
    order = np.argsort(keys, kind="stable")
    keys, begins = np.unique(keys[order], return_index=True)
    bits = np.bitwise_or.reduceat(values[order], begins) if keys.size else values
    return Lines(keys // total, keys % total, np.bitwise_count(bits).astype(np.int64))


def expected_chunks(heat: IntArray, samples: int, lanes: int) -> npt.NDArray[np.float64]:
    """Part of the micro-batches in which each chunk is not 0, if columns did not depend on each other.

    Parameters
    ----------
    heat
        Samples that have each column, in the order in which columns are dealt: int64 (columns,).
    samples
        Number of samples.
    lanes
        Columns of a chunk.

    Returns
    -------
    float64 (⌈columns / lanes⌉,): 1 − Π (1 − heat / samples)^8 over the columns of a chunk.
    """
    absent = (1 - heat / samples) ** BANKS
    return 1 - np.multiply.reduceat(absent, np.arange(0, heat.size, lanes))


def engines_of(chunks: int, engines: int) -> IntArray:
    """Engines of chunks in the order of heat: to and fro, 0 1 2 2 1 0 0 1 2 …, so that all have about as many lines."""
    turn, place = np.divmod(np.arange(chunks), engines)
    return np.where(turn % 2 == 0, place, engines - 1 - place)


def fixed_cycles(config: WorkerConfig, batch: int, precision: int, network: int) -> float:
    """Cycles of a mini-batch that do not depend on its lines; see `mini_batch_cycles`."""
    chunks = Model.UPDATE_SPACING  # enough for micro-batches that do not wait for the update
    return mini_batch_cycles(config, batch, chunks, precision, network) - batch // BANKS * chunks * precision


def skipping_cycles(
    lines: Lines,
    costs: npt.NDArray[np.float64],
    engines: IntArray,
    config: WorkerConfig,
    *,
    batch: int,
    mini_batches: int,
    precision: int,
    network: int,
) -> float:
    """Average cycles of a mini-batch if boards pass over what is 0.

    A micro-batch takes an engine at least `Model.UPDATE_SPACING` cycles. At the end of a mini-batch every chunk is
    updated, so the chunks that are 0 in its last micro-batch take a cycle each. A mini-batch ends when the slowest
    engine has finished, because the weights of the next one depend on all sums.

    Parameters
    ----------
    lines
        The chunks that are not 0, of all micro-batches.
    costs
        Cycles of each of them: float64 (count,).
    engines
        Engine of each chunk, from 0 on, over all boards: int64 (chunks,). Chunks behind these are elsewhere.
    config
        Size of a board.
    batch, mini_batches, precision, network
        Samples of a mini-batch, number of these, P, and cycles from PARTIAL to FULL.
    """
    count, each = int(engines.max()) + 1, batch // BANKS
    own = (lines.chunks < engines.size) & (lines.micro_batches < mini_batches * each)
    places = lines.micro_batches[own] * count + engines[lines.chunks[own]]
    shape = mini_batches, each, count
    work = np.bincount(places, costs[own], math.prod(shape)).reshape(shape)
    present = np.bincount(places, minlength=math.prod(shape)).reshape(shape)
    absent = np.bincount(engines) - present[:, -1]
    total = np.maximum(work, Model.UPDATE_SPACING).sum(axis=1) + absent
    return float(total.max(axis=1).mean()) + fixed_cycles(config, batch, precision, network)
