"""Fast packing against its definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.host.image.lines import pack_lines, unpack_lines
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.run import UNITS


@settings(max_examples=60)
@given(
    engines=st.integers(1, 3),
    ports=st.integers(1, 2),
    lanes=st.sampled_from([8, 16, 32, 64]),
    stored=st.integers(1, 8),
    micro_batches=st.integers(1, 3),
    features=st.integers(1, 150),
    unit=st.sampled_from(UNITS),
    signed=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_as_defined(engines, ports, lanes, stored, micro_batches, features, unit, signed, seed):
    config = WorkerConfig(engines=engines, ports=ports, lanes=lanes)
    layout = ImageLayout(config, features, 8 * micro_batches, stored, unit)
    low, high = (-(1 << stored - 1), 1 << stored - 1) if signed else (0, 1 << stored)
    q = np.random.default_rng(seed).integers(low, high, (8 * micro_batches, features))
    lines = pack_lines(layout.pad(q.astype(np.uint8)), layout)
    assert lines.flags.c_contiguous
    assert np.array_equal(lines, layout.pack_lines(q))
    stored_bits = q & (1 << stored) - 1
    assert np.array_equal(unpack_lines(lines, layout), layout.pad(stored_bits.astype(np.uint8)))
