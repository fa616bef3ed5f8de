"""The factor stage: the same bits for any number of ranks and any plan, and plans that follow their models."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import run_ranks

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.distributed.planner import FactorPlan
from p4sgd.host.precondition import BLOCK, Moments, Whitening
from p4sgd.host.precondition.stage import measure, whiten
from p4sgd.host.precondition.whitening import block_slices


def make(samples, features, seed, *, sparse=False):
    """Correlated columns of very different sizes; some constant, binary or twice there; a block without variance."""
    rng = np.random.default_rng(seed)
    x = np.cumsum(rng.normal(size=(samples, features)), axis=1) * 10.0 ** rng.uniform(-6, 6, features)
    x[:, rng.random(features) < 0.05] = 3
    x[:, rng.random(features) < 0.05] = (np.arange(samples) % 3 == 0)[:, np.newaxis]
    if features > 2 * BLOCK:
        x[:, BLOCK + 3] = x[:, BLOCK + 1]
        x[:, 2 * BLOCK : 2 * BLOCK + 20] = 1
    return Dataset(scipy.sparse.csr_array(x) if sparse else x, np.zeros(samples), "made")


def own(data, ranks, seed=0):
    """Samples of a rank; perhaps none."""
    owners = np.random.default_rng(seed).integers(0, ranks.size, data.samples)
    return data.features[np.flatnonzero(owners == ranks.rank)]


def fit(data, damping=0.0, planes=8):
    scaling = Scaling.fit(data.features, "standard")
    moments = Moments.empty(data.feature_count)
    moments.add(data.features, scaling)
    return Whitening.fit(moments, scaling, damping, planes)


def bits(whitening):
    arrays = (whitening.centre, whitening.matrix, whitening.exponent)
    return [each.tobytes() for each in arrays], [each.dtype for each in arrays], whitening.told, whitening.signed


def any_plan(rng, blocks, ranks):
    """Some of the blocks have an owner; any sums travel together."""
    owned = int(rng.integers(0, blocks + 1)) if ranks > 1 else 0
    messages = []
    for part in (*(range(rank, owned, ranks) for rank in range(ranks)), range(owned, blocks)):
        edges = np.flatnonzero(rng.random(len(part)) < 0.4)
        messages += [tuple(map(int, each)) for each in np.split(np.array(part), edges) if each.size]
    return FactorPlan(owned, tuple(messages), 1.0, 1.0)


@settings(max_examples=40)
@given(
    samples=st.integers(3, 90),
    features=st.integers(1, 6 * BLOCK),
    size=st.sampled_from([1, 2, 4]),
    sparse=st.booleans(),
    planes=st.sampled_from([1, 4, 8]),
    damping=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**32),
)
def test_every_plan_gives_the_same_bits(samples, features, size, sparse, planes, damping, seed):
    data = make(samples, features, seed, sparse=sparse)
    expected = fit(data, damping, planes)
    blocks = len(list(block_slices(features)))
    plan = any_plan(np.random.default_rng(seed), blocks, size)

    def run(ranks):
        return whiten(own(data, ranks, seed), samples, expected.scaling, damping, planes, ranks, plan)

    for whitening, times in run_ranks(size, run):
        assert bits(whitening) == bits(expected)
        assert (times.blocks, times.sent, times.messages) == (blocks, plan.owned, len(plan.messages))


@pytest.mark.parametrize(("size", "blocks", "sparse"), [(1, 20, False), (1, 20, True), (2, 3, False), (3, 32, False)])
def test_ranks_plan_by_what_they_measure_if_there_are_many_blocks(size, blocks, sparse):
    data = make(150, blocks * BLOCK - 5, 2, sparse=sparse)
    expected = fit(data)
    results = run_ranks(size, lambda ranks: whiten(own(data, ranks), 150, expected.scaling, 0.0, 8, ranks))
    for whitening, times in results:
        assert bits(whitening) == bits(expected)
        assert (times is not None) == (blocks == 32)
    if blocks == 32:
        assert len({times.measured_s for _, times in results}) == 1, "that of the slowest rank"
        assert 0 < times.lower_bound_s <= times.predicted_s
        assert (times.blocks, times.planning_s > 0) == (32, True)


def test_costs_are_those_of_rank_0():
    for samples in (2, 2000):
        data = make(samples, 2 * BLOCK, 3)
        scaling = Scaling.fit(data.features, "standard")
        one, *others = run_ranks(3, lambda ranks, data=data, how=scaling: measure(own(data, ranks), how, ranks))
        assert all(each == one for each in others)
        assert min(one.invert, one.send, one.add(4)) > 0
