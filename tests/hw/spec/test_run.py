"""What a run may be told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.hw.spec.fixed import INTERCEPT, MARGIN, SLOPE
from p4sgd.hw.spec.run import COUNT_BITS, FeatureFormat, LabelMode, LossTable, RunSettings, choose_unit


@pytest.mark.parametrize("chunks", [1 << 8, 257, 1 << 16])
def test_no_more_chunks_than_the_hardware_counts(chunks):
    def settings(mini_batches):
        return RunSettings(FeatureFormat(8, 8, False), chunks, 256, mini_batches, LabelMode(), 1, 10)

    most = ((1 << COUNT_BITS) - 1) // (chunks * 256)
    assert settings(most).mini_batches == most
    with pytest.raises(ValueError, match=r"the hardware counts to 2\^40 - 1: use fewer mini-batches"):
        settings(most + 1)


@given(st.sampled_from([4, 16, 64]), st.sampled_from([1, 2, 8]), st.integers(3, 28), st.integers(0, 1 << 30))
def test_a_refined_table_is_the_same_function(segments, parts, shift, seed):
    rng = np.random.default_rng(seed)
    slope, intercept = (rng.integers(form.minimum, form.maximum, segments) for form in (SLOPE, INTERCEPT))
    table = LossTable(shift, slope, intercept)
    refined = table.refine(segments * parts)
    assert refined.segments == segments * parts
    edges = (np.arange(segments + 1) - segments // 2) << shift
    x = MARGIN.saturate(np.concatenate([edges - 1, edges, rng.integers(MARGIN.minimum, MARGIN.maximum, 50)]))
    assert refined(x).tolist() == table(x).tolist()


@pytest.mark.parametrize("segments", [8, 16 * 3, 24])
def test_a_table_fits_no_worker_with_fewer_segments(segments):
    with pytest.raises(ValueError, match=rf"16 segments does not fit .* {segments}"):
        LossTable(20, np.zeros(16, np.int64), np.zeros(16, np.int64)).refine(segments)


@pytest.mark.parametrize(
    ("features", "unit"),
    [(1, 8), (65, 8), (31 * 16, 8), (31 * 16 + 1, 16), (31 * 64, 32), (31 * 64 + 1, 64), (10**7, 64)],
)
def test_the_largest_unit_that_leaves_32(features, unit):
    assert choose_unit(features) == unit
