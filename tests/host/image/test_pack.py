"""Fast packing against its definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.host.image.packing import pack_lines
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import ImageLayout


@settings(max_examples=60)
@given(
    engines=st.integers(1, 3),
    ports=st.integers(1, 2),
    lanes=st.sampled_from([8, 16, 32, 64]),
    stored=st.integers(1, 8),
    micro_batches=st.integers(1, 3),
    features=st.integers(1, 150),
    signed=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_as_defined(engines, ports, lanes, stored, micro_batches, features, signed, seed):
    layout = ImageLayout(WorkerConfig(engines=engines, ports=ports, lanes=lanes), features, 8 * micro_batches, stored)
    low, high = (-(1 << stored - 1), 1 << stored - 1) if signed else (0, 1 << stored)
    q = np.random.default_rng(seed).integers(low, high, (8 * micro_batches, features))
    padded = np.zeros((8 * micro_batches, layout.padded_features), np.uint8)
    padded[:, :features] = q
    lines = pack_lines(padded, layout)
    assert lines.flags.c_contiguous
    assert np.array_equal(lines, layout.pack_lines(q))
