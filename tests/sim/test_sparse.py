"""Sparse features: penalties that catch up, against the golden model."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden, sparse

WEIGHTS = st.one_of(
    st.integers(WEIGHT.minimum, WEIGHT.maximum), st.integers(-(1 << 20), 1 << 20), st.integers(-300, 300)
)


@settings(max_examples=300)
@given(
    weight=WEIGHTS,
    shrink=st.one_of(st.integers(0, SHRINK.maximum), st.integers(0, 1 << 10), st.sampled_from([1, 2, SHRINK.maximum])),
    threshold=st.one_of(st.integers(0, 20), st.integers(0, 1 << 20)),
    steps=st.integers(0, 200),
)
def test_many_steps_of_a_penalty_at_once(weight, shrink, threshold, steps):
    form = FeatureFormat(8, 8, False)
    run = RunSettings(form, 1, 1, 1, LabelMode(), 1, 20, shrink=shrink, threshold=threshold)
    wanted = np.array([weight])
    for _ in range(steps):
        wanted = golden.regularize(wanted, run)
    assert sparse._steps(np.int64(weight), shrink, threshold, steps) == wanted[0]
