"""A sparse worker whose samples are spread over ranks: the golden model's weights and flags on every rank."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jobs import random_job, run_on
from support.ranks import run_ranks

from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.sim.emulator import EmulatedDevice
from p4sgd.sim.sparse import data_parallel
from p4sgd.sim.sparse.data_parallel import SampleRanks
from p4sgd.sim.sparse.model import SparseFeatures

CONFIG = WorkerConfig(engines=3, lanes=16, chunks=16, sparse=True)


def sample_ranks(ranks, hot=0):
    return SampleRanks(ranks.rank, ranks.size, ranks.all_sum, ranks.all_to_all, hot=hot)


def own_job(job, ranks):
    """The job as a rank has it: samples of other ranks have no features."""
    settings = job.settings
    own = np.isin(
        np.arange(job.labels.size) // BANKS % settings.micro_batches, ranks.micro_batches(settings.micro_batches)
    )
    return dataclasses.replace(job, stored=[np.where(own[:, None], job.stored[0], 0)])


def train(job, size, hot, runs):
    def run(communicator):
        ranks = sample_ranks(communicator, hot)
        return run_on(EmulatedDevice(CONFIG, 1, sample_ranks=ranks), own_job(job, ranks), runs=runs)

    return run_ranks(size, run)


def check(job, size, hot, runs=1):
    expected = job.golden(runs)
    (weights,), (flags,) = expected.weights, expected.flags
    for (got,), (status,), _ in train(job, size, hot, runs):
        np.testing.assert_array_equal(got, weights)
        assert {name: bool(status[name]) for name in vars(flags)} == vars(flags)


@settings(max_examples=60)
@given(
    size=st.integers(1, 5),
    hot=st.sampled_from([0, 8, 40, 1 << 20]),
    seed=st.integers(0, 1 << 30),
    density=st.sampled_from([0.02, 0.2, 1.0]),
    wild=st.booleans(),
    stale=st.booleans(),
    loss=st.sampled_from(["logistic", "squared", "hinge", None]),
    runs=st.integers(1, 2),
    part=st.sampled_from([1, 1 << 22]),
)
def test_bit_identical_to_golden(size, hot, seed, density, wild, stale, loss, runs, part):
    """Wild jobs saturate weights all the time."""
    job = random_job(CONFIG, 1, seed=seed, wild=wild, stale=stale, loss=None if wild else loss)
    rng = np.random.default_rng(seed)
    job.stored[0][rng.random(job.stored[0].shape) >= density] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_parallel, "_PART", part)
        check(job, size, hot, runs)


@pytest.mark.parametrize("hot", [0, 48])
def test_steps_are_exchanged_one_by_one_only_where_weights_may_saturate(hot):
    """A weight that is saturated in the middle of a mini-batch ends elsewhere than by the sum of the steps."""
    calls = []

    class Counted(data_parallel.DataParallelModel):
        def _take_in_order(self, columns, steps):
            calls.append(columns.size)
            super()._take_in_order(columns, steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("p4sgd.sim.features.DataParallelModel", Counted)
        check(random_job(CONFIG, 1, seed=3, loss="logistic", micro_batches=4), 2, hot)
        assert not calls
        check(random_job(CONFIG, 1, seed=3, wild=True, micro_batches=4), 2, hot)
        assert calls


@settings(max_examples=60)
@given(
    size=st.integers(1, 4),
    micro_batches=st.integers(1, 8),
    hot=st.sampled_from([0, 8, 1 << 20]),
    step=st.integers(27, 32),
    reach=st.sampled_from([20, 30, 31]),
    seed=st.integers(0, 1 << 30),
)
def test_steps_of_any_size_end_where_one_after_the_other_would(size, micro_batches, hot, step, reach, seed):
    """Near the bound, too, from which on steps are exchanged one by one: weights that leave the range may come back."""
    rng = np.random.default_rng(seed)
    job = random_job(CONFIG, 1, seed=seed, micro_batches=micro_batches, mini_batches=1, unit=CONFIG.lanes)
    columns = job.stored[0].shape[1]
    job.stored[0][:] = 1
    job.settings = dataclasses.replace(job.settings, shrink=0, threshold=0)
    direction = rng.choice([-1, 1])
    job.weights = [direction * rng.integers(0, 1 << reach, columns)]
    signs = -direction * np.sort(rng.choice([-1, 1], (micro_batches, columns)), axis=0)[::-1]
    steps = signs * rng.integers(1 << step - 1, 1 << step, signs.shape)

    def given_steps(features, samples, deltas, shift):
        own = steps[samples.start // BANKS : samples.stop // BANKS]
        return np.tile(np.arange(columns, dtype=np.uint32), len(own)), own.reshape(-1)

    expected, saturated = job.weights[0], False
    for moved in steps:
        saturated |= WEIGHT.overflows(expected - moved)
        expected = WEIGHT.saturate(expected - moved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparseFeatures, "steps", given_steps)
        for (got,), (status,), _ in train(job, size, hot, 1):
            np.testing.assert_array_equal(got, expected)
            assert bool(status["weight_saturated"]) == saturated


@pytest.mark.parametrize("hot", [0, 8])
def test_penalties_of_weights_that_a_stale_forward_pass_reads(hot):
    """Weights of columns that few samples have shrink a lot between these."""
    job = random_job(CONFIG, 1, seed=4, loss="squared", stale=True, micro_batches=2, mini_batches=12, precision=8)
    job.stored[0][np.random.default_rng(4).random(job.stored[0].shape) >= 0.02] = 0
    job.settings = dataclasses.replace(job.settings, shrink=SHRINK.maximum // 4, threshold=1000)
    check(job, 3, hot)
