"""Sparse features: penalties that catch up, against the golden model, and saturation."""

import numpy as np
import pytest
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


@settings(max_examples=300)
@given(
    weight=WEIGHTS,
    shrink=st.integers(0, SHRINK.maximum),
    threshold=st.one_of(st.just(0), st.integers(0, 20), st.integers(0, 1 << 20)),
    first=st.integers(1, 1 << 31),
    more=st.integers(1, 1 << 31),
)
def test_as_many_steps_as_a_run_has_are_those_of_its_parts(weight, shrink, threshold, first, more):
    part = sparse._steps(np.int64(weight), shrink, threshold, first)
    wanted = sparse._steps(part, shrink, threshold, more)
    assert sparse._steps(np.int64(weight), shrink, threshold, first + more) == wanted


@pytest.mark.parametrize(("second", "saturated"), [(1 << 30, False), (0, True)])
def test_a_weight_saturates_by_the_gradient_of_all_samples(second, saturated):
    form = FeatureFormat(8, 8, False)
    # Two samples of a micro-batch have the same feature: keys 0 and 1.
    keys, values = np.array([0, 1], np.uint32), np.array([200, 200], np.uint8)
    entries = sparse.Entries(np.array([0, 2]), keys, values, form, 64, (1, 64))
    run = RunSettings(form, 1, 1, 1, LabelMode(), 1, 20, unit=64)
    weights = np.full(64, WEIGHT.maximum - 10, np.int32)
    model = sparse.SparseFeatures([entries]).model([weights], run, np.array([1 << 40]), [None])
    model.update(0, np.array([-(1 << 30), second, 0, 0, 0, 0, 0, 0]))
    assert model.saturated.tolist() == [saturated]
    assert model.values()[0][0] == WEIGHT.maximum - (0 if saturated else 10)
