"""Entries: sorted as by NumPy; those of directories are what was packed, and what is no directory is refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bench import default_seed

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import Descriptor, ImageLayout, entry_words
from p4sgd.hw.spec.run import UNITS, FeatureFormat
from p4sgd.sim.sparse import entries as module
from p4sgd.sim.sparse.entries import Directories, sort_words


def packed(layout: ImageLayout, q: np.ndarray, *, signed: bool = False) -> Directories:
    """The lines of an image, as a run reads them."""
    parts, _ = layout.pack_directories(q)
    form = FeatureFormat(layout.stored, layout.stored, signed)
    return Directories(tuple(parts), layout.micro_batches, layout.chunks, form, layout.unit_lanes)


@given(
    engines=st.integers(1, 3),
    ports=st.integers(1, 2),
    lanes=st.sampled_from([8, 16, 64]),
    unit=st.sampled_from(UNITS),
    stored=st.integers(1, 8),
    features=st.integers(1, 400),
    micro_batches=st.integers(1, 5),
    density=st.sampled_from([0.0, 0.003, 0.05, 1.0]),
    at_once=st.sampled_from([1, 1 << 22]),
    seed=st.integers(0, 1 << 30),
)
def test_entries_are_those_of_a_sparse_worker(
    engines, ports, lanes, unit, stored, features, micro_batches, density, at_once, seed
):
    """Which `ImageLayout.memories` defines, for the same features."""
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 1 << stored, (8 * micro_batches, features)) * (
        rng.random((8 * micro_batches, features)) < density
    )
    config = WorkerConfig(engines=engines, ports=ports, lanes=lanes)
    layout = ImageLayout(config, features, 8 * micro_batches, stored, unit, directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        entries = packed(layout, q).entries()
    sparse = dataclasses.replace(config, engines=3, sparse=True)  # keys do not depend on engines
    starts, keys, values, *_ = ImageLayout(sparse, features, 8 * micro_batches, stored, unit).memories(q)
    assert entries.starts.tolist() == starts.view("<i8").tolist()
    assert entries.keys.tolist() == keys.view("<u4").tolist()
    assert entries.values.tolist() == values.tolist()
    assert entries.shape == (engines, layout.chunks * lanes)
    entries.check()


LAYOUT = ImageLayout(WorkerConfig(engines=2, lanes=16, ports=2, chunks=16), 16 * 16, 24, 4, 16, directory=True)


def tampered(change) -> Directories:
    """An image of which the second micro-batch of engine 1 was changed: ``change(lines, start)``."""
    rng = np.random.default_rng(default_seed())
    q = rng.integers(0, 16, (24, 256)) * (rng.random((24, 256)) < 0.05)
    q[:, [16, 48]] = 9  # chunks 0 and 1 of engine 1
    image = packed(LAYOUT, q)
    _, starts = LAYOUT.pack_directories(q)
    lines = np.concatenate([part.reshape(part.shape[0], -1) for part in image.parts[2:]], axis=1)
    lines = change(lines, int(starts[1, 1]))
    parts = [np.ascontiguousarray(half).reshape(len(lines), 4, 2) for half in np.split(lines, 2, axis=1)]
    return dataclasses.replace(image, parts=(*image.parts[:2], *parts))


def descriptor(place: int, **fields: object):
    """Change fields of a descriptor of the directory."""

    def change(lines, start):
        words = lines.view("<u4")
        known = Descriptor.decode(int(words[start, place]))
        words[start, place] = known._replace(**fields).encode()
        return lines

    return change


def reserved(lines, start):
    lines.view("<u4")[start, 0] |= 1 << 28
    return lines


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines, start: lines[: start + 2], "engine 1, micro-batch 1: the lines end in the middle"),
        (lambda lines, start: lines[:start], "engine 1, micro-batch 1: the lines end in the middle"),
        (lambda lines, start: lines[:0], "engine 1, micro-batch 0: the lines end in the middle"),
        (lambda lines, start: np.concatenate((lines, lines[-1:])), "engine 1 has more lines than its directories tell"),
        *(
            (change, "micro-batch 1: the directory does not list chunks of the run in ascending order")
            for change in (descriptor(1, chunk=0), descriptor(1, chunk=8), descriptor(0, last=True), reserved)
        ),
        *(
            (descriptor(0, first=first, later=later), "micro-batch 1: the directory leaves out the last plane")
            for first, later in ((4, 0), (0, 0), (0, 0b100), (0, 0b1111))
        ),
    ],
)
def test_what_is_no_directory_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tampered(change).entries()


def test_what_is_behind_the_last_chunk_or_does_not_fit_the_fifo_is_refused():
    """As many lines as the engine has room for pass, one more does not."""
    image = packed(dataclasses.replace(LAYOUT, samples=8), np.zeros((8, 16 * 16), np.int64))
    image.parts[1][0, 0, 0] = 1  # the third descriptor of the first line of engine 0
    with pytest.raises(ValueError, match="engine 0, micro-batch 0: the directory goes on behind the last chunk"):
        image.entries()
    image = packed(LAYOUT, np.full((24, 256), 15))
    assert dataclasses.replace(image, room=8 * 4).entries().values.size == 24 * 256
    with pytest.raises(ValueError, match="engine 0, micro-batch 0: there are more lines than the line FIFO holds"):
        dataclasses.replace(image, room=8 * 4 - 1).entries()


@given(st.integers(0, 1 << 30), st.integers(0, 3000), st.integers(1, 1 << 27), st.integers(1, 1 << 29))
def test_as_by_numpy(seed, count, samples, columns):
    rng = np.random.default_rng(seed)
    places = np.unique(rng.integers(0, [samples, columns], (count, 2)), axis=0)
    rows, columns = places.T
    # Shuffled, but the samples of each column are in order.
    times = rng.random(rows.size)
    times[np.lexsort((rows, columns))] = times[np.lexsort((times, columns))]
    rows, columns = places[np.argsort(times)].T
    words = entry_words(rows, columns, rng.integers(0, 256, rows.size).astype(np.uint8))
    expected = np.sort(words)
    np.testing.assert_array_equal(sort_words(words), expected)
