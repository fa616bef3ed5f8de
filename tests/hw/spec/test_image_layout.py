"""The image layout, bit by bit, against the sentence that defines it."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import Descriptor, ImageLayout
from p4sgd.hw.spec.run import UNITS

layouts = st.builds(
    ImageLayout,
    st.builds(WorkerConfig, engines=st.integers(1, 3), ports=st.integers(1, 2), lanes=st.sampled_from([8, 16])),
    st.integers(1, 70),
    st.integers(1, 20),
    st.integers(1, 8),
    st.sampled_from(UNITS),
)


def random_features(layout, signed, seed):
    low, high = (-(1 << layout.stored - 1), 1 << layout.stored - 1) if signed else (0, 1 << layout.stored)
    return np.random.default_rng(seed).integers(low, high, (layout.samples, layout.features))


@settings(max_examples=50)
@given(layouts, st.booleans(), st.integers(0, 1 << 30))
def test_every_bit_is_where_the_definition_says(layout, signed, seed):
    planes, config, q = layout.stored, layout.config, random_features(layout, signed, seed)
    memory = layout.pack_lines(q).reshape(config.labels_memory, -1)
    assert memory.shape[1] == layout.lines_bytes
    found = 0
    for (sample, feature), value in np.ndenumerate(q):
        unit_of_worker, within = divmod(feature, layout.unit)
        unit, engine = divmod(unit_of_worker, config.engines)
        chunk_of_unit, lane = divmod(within, config.lanes)
        chunk = unit * max(1, layout.unit // config.lanes) + chunk_of_unit
        for plane in range(planes):
            address = ((sample // 8 * layout.chunks + chunk) * planes + plane) * config.port_bytes
            port, bit = divmod((sample % 8) * config.lanes + lane, config.port_bits)
            got = memory[engine * config.ports + port, address + bit // 8] >> bit % 8 & 1
            assert got == int(value) >> (planes - 1 - plane) & 1
            found += int(got)
    assert found == int(np.unpackbits(memory).sum()), "padding is not zero"


@given(layouts, st.integers(0, 1 << 30))
def test_unpad_undoes_pad_and_gather_scatter(layout, seed):
    values = np.random.default_rng(seed).integers(1, 1000, (3, layout.features))
    padded = layout.pad(values)
    assert padded.shape == (3, layout.padded_features)
    assert np.count_nonzero(padded) == values.size
    np.testing.assert_array_equal(layout.unpad(padded), values)
    scattered = layout.scatter(padded)
    assert scattered.shape == (layout.config.engines, 3, layout.chunks * layout.config.lanes)
    np.testing.assert_array_equal(layout.gather(scattered), padded)


@settings(max_examples=50)
@given(layouts, st.booleans(), st.sampled_from([0, 0.02, 0.3, 1]), st.integers(0, 1 << 30))
def test_directories_list_what_is_there(layout, signed, density, seed):
    """Every line is where its directory says, and none is there that need not be."""
    layout = dataclasses.replace(layout, directory=True)
    stored, ports, line_bytes = layout.stored, layout.config.ports, layout.config.line_bytes
    q = random_features(layout, signed, seed)
    q *= np.random.default_rng(seed + 1).random(q.shape) < density
    memories, starts = layout.pack_directories(q)
    dense = layout.pack_lines(q)
    every = dense.reshape(layout.config.engines, ports, *layout.lines_shape[:3], -1)
    for engine in range(layout.config.engines):
        parts = memories[engine * ports : (engine + 1) * ports]
        lines = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        assert lines.shape[1] == line_bytes
        at = 0
        for micro_batch in range(layout.micro_batches):
            assert at == starts[engine, micro_batch]
            chunks = np.moveaxis(every[engine, :, micro_batch], 0, 2).reshape(layout.chunks, stored, line_bytes)
            listed: list[Descriptor] = []
            while not listed or not listed[-1].last:
                words = lines[at].view("<u4").tolist()
                at += 1
                while words:
                    listed.append(Descriptor.decode(words.pop(0)))
                    assert all(chunk.chunk < listed[-1].chunk for chunk in listed[:-1])
                    planes = listed[-1].planes
                    assert planes[-1] == stored - 1
                    for plane in range(stored):
                        line = chunks[listed[-1].chunk, plane]
                        if plane in planes:
                            assert lines[at].tolist() == line.tolist()
                            at += 1
                            needed = plane == stored - 1 or (plane > planes[0] and plane - 1 not in planes)
                            assert line.any() or needed
                        else:
                            assert not line.any()
                            assert plane < planes[0] or plane - 1 in planes
                    if listed[-1].last:
                        assert not any(words)
                        break
            numbers = [descriptor.chunk for descriptor in listed]
            assert numbers == [*np.flatnonzero(chunks[:-1].any(axis=(1, 2))), layout.chunks - 1]
        assert at == starts[engine, -1] == len(lines)


@given(st.integers(0, 0xFFFF), st.integers(0, 7), st.integers(0, 0x7F), st.booleans())
def test_descriptors_are_decoded_to_what_was_encoded(chunk, first, later, last):
    word = Descriptor(chunk, first, later, last).encode()
    assert word == chunk + (first << 16) + (later << 19) + (last << 31)
    assert Descriptor.decode(word) == (chunk, first, later, last)


def test_a_sparse_worker_has_no_directories():
    with pytest.raises(ValueError, match="sparse worker has no lines"):
        ImageLayout(WorkerConfig.sparse_worker(), 24, 16, 3, 8, directory=True)
