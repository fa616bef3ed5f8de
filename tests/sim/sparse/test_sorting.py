"""Sorting of entries against NumPy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.hw.spec.image import entry_words
from p4sgd.sim.sparse.entries import sort_words


@given(st.integers(0, 1 << 30), st.integers(0, 3000), st.integers(1, 1 << 27), st.integers(1, 1 << 29))
def test_as_by_numpy(seed, count, samples, columns):
    rng = np.random.default_rng(seed)
    places = np.unique(rng.integers(0, [samples, columns], (count, 2)), axis=0)
    rows, columns = rng.permutation(places).T
    words = entry_words(rows, columns, rng.integers(0, 256, rows.size).astype(np.uint8))
    expected = np.sort(words)
    np.testing.assert_array_equal(sort_words(words), expected)
