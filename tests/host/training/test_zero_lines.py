"""What boards would take that pass over lines without a 1: counts and cycles against plain loops."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from support.bench import default_seed
from support.zero_lines import Lines, engines_of, expected_chunks, fixed_cycles, nonzero_lines, skipping_cycles

from p4sgd.hw.datapath.model import Model
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.timing import mini_batch_cycles

TINY = WorkerConfig.tiny()
SAMPLES, COLUMNS = 48, 60


def random_values(rng, density):
    """Random 8-bit features, uint8 (samples, columns), and their stored values; some of these are 0."""
    matrix = scipy.sparse.random_array((SAMPLES, COLUMNS), density=density, rng=rng).tocoo()
    values = rng.choice([0, 1, 6, 128, 255], matrix.nnz).astype(np.uint8)
    dense = np.zeros(matrix.shape, np.uint8)
    dense[matrix.row, matrix.col] = values
    return dense, (matrix.row.astype(np.int64), matrix.col.astype(np.int64), values)


@pytest.mark.parametrize("density", [0, 0.01, 0.1, 1])
def test_lines_are_those_of_the_image(density):
    """A chunk is listed if its lines in the image have a 1, with the number of such lines."""
    dense, stored = random_values(np.random.default_rng(default_seed()), density)
    image = ImageLayout(TINY, COLUMNS, SAMPLES, 8, TINY.lanes).pack_lines(dense.astype(np.int64))
    planes = image[0].any(axis=(3, 4)).sum(axis=2)  # (micro-batches, chunks)
    lines = nonzero_lines(*stored, TINY.lanes)
    expected = np.nonzero(planes)
    assert [lines.micro_batches.tolist(), lines.chunks.tolist()] == [place.tolist() for place in expected]
    assert lines.planes.tolist() == planes[expected].tolist()


def test_expected_chunks_are_those_of_all_outcomes():
    """Two columns in 8 samples, each in its own part of them: the probabilities of all outcomes with a 1 together."""
    heat, samples = np.array([1, 3, 4, 0]), 4
    expected = expected_chunks(heat, samples, 2)
    chance = 0.0
    for outcome in itertools.product((0, 1), repeat=2 * BANKS):
        parts = np.where(outcome, np.repeat(heat[:2], BANKS), samples - np.repeat(heat[:2], BANKS)) / samples
        chance += float(parts.prod()) if any(outcome) else 0.0
    assert expected == pytest.approx([chance, 1])


def test_engines_have_chunks_to_and_fro():
    assert engines_of(7, 3).tolist() == [0, 1, 2, 2, 1, 0, 0]


@pytest.mark.parametrize("own", [3, 8])
def test_cycles_are_those_of_a_loop(own):
    """Boards have the first chunks only. Some are 0, and some micro-batches are shorter than the update's distance."""
    rng = np.random.default_rng(default_seed())
    dense, stored = random_values(rng, 0.02)
    lines, each, count = nonzero_lines(*stored, TINY.lanes), 2, 2
    costs = lines.planes + rng.random(lines.planes.size)
    of = dict(zip(zip(lines.micro_batches.tolist(), lines.chunks.tolist(), strict=True), costs, strict=True))
    engines = engines_of(own, count)
    total = []
    for mini_batch in range(SAMPLES // BANKS // each):
        slowest = 0.0
        for engine in range(count):
            cycles = 0.0
            chunks = [chunk for chunk in range(own) if engines[chunk] == engine]
            for micro_batch in range(mini_batch * each, (mini_batch + 1) * each):
                rows = dense[micro_batch * BANKS : (micro_batch + 1) * BANKS]
                present = [chunk for chunk in chunks if rows[:, chunk * TINY.lanes : (chunk + 1) * TINY.lanes].any()]
                cycles += max(sum(of[micro_batch, chunk] for chunk in present), Model.UPDATE_SPACING)
            slowest = max(slowest, cycles + len(chunks) - len(present))
        total.append(slowest)
    sizes = {"batch": each * BANKS, "precision": 8, "network": 20}
    found = skipping_cycles(lines, costs, engines, TINY, mini_batches=len(total), **sizes)
    assert found == pytest.approx(np.mean(total) + fixed_cycles(TINY, **sizes))


@pytest.mark.parametrize(("chunks", "precision"), [(2, 1), (2, 8), (16, 4)])
def test_nothing_to_skip_takes_the_cycles_of_the_hardware(chunks, precision):
    """Where every line has a 1, the estimate is that of the simulated RTL, but for a last micro-batch that is short."""
    micro_batches, every = (part.reshape(-1) for part in np.indices((8, chunks)))
    lines = Lines(micro_batches, every, np.full(every.size, precision))
    sizes = {"batch": 4 * BANKS, "precision": precision, "network": 20}
    found = skipping_cycles(lines, lines.planes.astype(float), engines_of(chunks, 1), TINY, mini_batches=2, **sizes)
    short = max(0, Model.UPDATE_SPACING - chunks * precision)
    assert found == mini_batch_cycles(TINY, sizes["batch"], chunks, precision, 20) + short
