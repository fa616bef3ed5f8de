"""Penalties of sparse workers that catch up, against the golden model."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.hw.spec.run import FeatureFormat, LabelMode, RunSettings
from p4sgd.sim import golden
from p4sgd.sim.sparse.penalties import Penalty, catch_up_columns, penalise

WEIGHTS = st.one_of(
    st.integers(WEIGHT.minimum, WEIGHT.maximum), st.integers(-(1 << 20), 1 << 20), st.integers(-300, 300)
)


@settings(max_examples=300)
@given(
    weights=st.lists(st.tuples(WEIGHTS, st.integers(0, 200)), max_size=20),
    repeat=st.sampled_from([1, 40]),
    shrink=st.one_of(st.integers(0, SHRINK.maximum), st.integers(0, 1 << 10), st.sampled_from([1, 2, SHRINK.maximum])),
    threshold=st.one_of(st.integers(0, 20), st.integers(0, 1 << 20), st.just(WEIGHT.maximum)),
)
def test_many_steps_of_a_penalty_at_once(weights, repeat, shrink, threshold):
    """Each weight misses other steps; with repetitions there are more than those that catch up at the same time."""
    form, most = FeatureFormat(8, 8, False), 200
    run = RunSettings(form, 1, 1, 1, LabelMode(), 1, 20, shrink=shrink, threshold=threshold)
    given_weights, missing = (np.array([pair[number] for pair in weights] * repeat, np.int64) for number in (0, 1))
    wanted = given_weights.copy()
    for step in range(most):
        wanted = np.where(missing > step, golden.regularize(wanted, run), wanted)
    found, done = given_weights.astype(np.int32), (most - missing).astype(np.int32)
    catch_up_columns(np.arange(found.size, dtype=np.uint32), most, Penalty.of(shrink, threshold), found, done)
    assert found.tolist() == wanted.tolist()
    assert (done == most).all()


@settings(max_examples=300)
@given(
    weights=st.lists(WEIGHTS, max_size=50),
    shrink=st.one_of(st.integers(0, SHRINK.maximum), st.integers(0, 1 << 10), st.just(SHRINK.maximum)),
    threshold=st.one_of(st.integers(0, 20), st.integers(0, 1 << 20), st.just(WEIGHT.maximum)),
    first=st.integers(0, 50),
)
def test_penalties_of_many_weights_side_by_side(weights, shrink, threshold, first):
    form = FeatureFormat(8, 8, False)
    run = RunSettings(form, 1, 1, 1, LabelMode(), 1, 20, shrink=shrink, threshold=threshold)
    found = np.array(weights, np.int32)
    first = min(first, found.size)
    wanted = np.append(found[:first], golden.regularize(found[first:].astype(np.int64), run))
    penalise(np.array([[first, found.size]]), Penalty.of(shrink, threshold), found)
    assert found.tolist() == wanted.tolist()


@settings(max_examples=300)
@given(
    weight=WEIGHTS,
    shrink=st.integers(0, SHRINK.maximum),
    threshold=st.one_of(st.just(0), st.integers(0, 20), st.integers(0, 1 << 20)),
    steps=st.lists(st.integers(0, (1 << 31) - 1), min_size=2, max_size=2),
)
def test_as_many_steps_as_a_run_has_are_those_of_its_parts(weight, shrink, threshold, steps):
    penalty, first, last = Penalty.of(shrink, threshold), min(steps), max(steps)
    columns = np.zeros(1, np.uint32)
    whole, parts, done = np.array([weight], np.int32), np.array([weight], np.int32), np.zeros(1, np.int32)
    catch_up_columns(columns, last, penalty, whole, done.copy())
    catch_up_columns(columns, first, penalty, parts, done)
    catch_up_columns(columns, last, penalty, parts, done)
    assert whole == parts
