"""Kernels over samples, against what they compute in NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from p4sgd.host.data.kernels import quantize_scaled, quantize_stored
from p4sgd.host.data.quantization import quantize
from p4sgd.host.data.statistics import Extremes, Statistics, find_extremes, scaled

DTYPES = st.sampled_from([np.float32, np.float64])


def samples(seed, dtype, spread):
    """Columns of very different sizes, one of them constant, in the memory order of one of three arrays."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(1, 20, size=2)
    x = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-spread, spread + 1, columns)
    x[:, 0] = 3
    x = np.minimum(np.maximum(x, np.finfo(dtype).min), np.finfo(dtype).max).astype(dtype)
    return [x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]][rng.integers(3)]


@given(
    seed=st.integers(0, 1 << 30),
    dtype=DTYPES,
    spread=st.sampled_from([1, 30, 300]),
    stored=st.integers(1, 8),
    signed=st.booleans(),
    bias=st.integers(0, 1),
)
def test_quantised_as_defined(seed, dtype, spread, stored, signed, bias):
    x, rng = samples(seed, dtype, spread), np.random.default_rng(seed)
    offset = rng.choice(x, axis=0).astype(np.float64)
    largest = np.abs(x.astype(np.float64)).max(axis=0)
    scale = rng.choice([0.0, 0.1, 1.0, 1e3], size=offset.size) / np.maximum(largest, 1e-300)
    out = np.full((x.shape[0], x.shape[1] + bias), 77, np.uint8)
    quantize_scaled(x, offset, scale, stored, signed, out)
    expected = quantize(scaled(x, offset, scale), stored, signed).astype(np.uint8)
    assert np.array_equal(out[:, : x.shape[1]], expected)
    rows = csr_array(x)
    found = quantize_stored(rows, offset, scale, stored, signed)
    assert np.array_equal(found, expected[rows.tocoo().coords])
    assert (out[:, x.shape[1] :] == 77).all()


@given(seed=st.integers(0, 1 << 30), dtype=DTYPES, spread=st.sampled_from([1, 30, 300]))
def test_sums_as_defined(seed, dtype, spread):
    x = samples(seed, dtype, spread)
    extremes = find_extremes((x,), x.shape[1], x.shape[0])
    sums = []
    for least in (0, x.size + 1):
        statistics = Statistics.of_extremes(extremes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("p4sgd.host.data.statistics.COMPILED_VALUES", least)
            statistics.add(x)
        sums.append(statistics.sums.tolist())
    assert sums[0] == sums[1]


@given(seed=st.integers(0, 1 << 30), dtype=DTYPES, strange=st.booleans())
def test_extremes_of_sparse_samples_as_of_dense(seed, dtype, strange):
    x, rng = samples(seed, dtype, 1).copy(), np.random.default_rng(seed)
    x[rng.random(x.shape) < 0.5] = 0
    if strange:
        x.flat[rng.integers(x.size)] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
    rows = csr_array(x)
    rows.data[rng.random(rows.data.size) < 0.1] = 0  # stored zeros
    found, expected = Extremes(x.shape[1], 1), Extremes(x.shape[1], 1)
    for first in range(0, x.shape[0], 3):
        found.add(rows[first : first + 3])
        expected.add(rows.toarray()[first : first + 3])
    for one, other in zip((*found.range(), found.nonzero), (*expected.range(), expected.nonzero), strict=True):
        np.testing.assert_array_equal(one, other)
