"""The image layout, bit by bit, against the sentence that defines it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.run import UNITS

layouts = st.builds(
    ImageLayout,
    st.builds(WorkerConfig, engines=st.integers(1, 3), ports=st.integers(1, 2), lanes=st.sampled_from([8, 16])),
    st.integers(1, 70),
    st.integers(1, 20),
    st.integers(1, 8),
    st.sampled_from(UNITS),
)


@settings(max_examples=50)
@given(layouts, st.booleans(), st.integers(0, 1 << 30))
def test_every_bit_is_where_the_definition_says(layout, signed, seed):
    rng = np.random.default_rng(seed)
    planes, config = layout.stored, layout.config
    low, high = (-(1 << planes - 1), 1 << planes - 1) if signed else (0, 1 << planes)
    q = rng.integers(low, high, (layout.samples, layout.features))
    memory = layout.pack_lines(q).reshape(config.labels_memory, -1)
    assert memory.shape[1] == layout.lines_bytes
    found = 0
    for sample in range(layout.samples):
        for feature in range(layout.features):
            unit_of_worker, within = divmod(feature, layout.unit)
            unit, engine = divmod(unit_of_worker, config.engines)
            chunk_of_unit, lane = divmod(within, config.lanes)
            chunk = unit * max(1, layout.unit // config.lanes) + chunk_of_unit
            for plane in range(planes):
                address = layout.line_address(sample // 8, chunk, plane)
                port, bit = divmod((sample % 8) * config.lanes + lane, config.port_bits)
                got = memory[engine * config.ports + port, address + bit // 8] >> bit % 8 & 1
                assert got == int(q[sample, feature]) >> (planes - 1 - plane) & 1
                found += int(got)
    assert found == int(np.unpackbits(memory).sum()), "padding is not zero"


@given(layouts, st.integers(0, 1 << 30))
def test_unpad_undoes_pad(layout, seed):
    values = np.random.default_rng(seed).integers(1, 1000, (3, layout.features))
    padded = layout.pad(values)
    assert padded.shape == (3, layout.padded_features)
    assert np.count_nonzero(padded) == values.size
    np.testing.assert_array_equal(layout.unpad(padded), values)


@given(layouts, st.integers(0, 1 << 30))
def test_gather_undoes_deal(layout, seed):
    values = np.random.default_rng(seed).integers(0, 1000, (3, layout.padded_features))
    scattered = layout.scatter(values)
    assert scattered.shape == (layout.config.engines, 3, layout.chunks * layout.config.lanes)
    np.testing.assert_array_equal(layout.gather(scattered), values)
