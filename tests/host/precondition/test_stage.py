"""The factor stage: the same bits for any number of ranks and any plan, and plans that follow their models."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mpi import MPIEXEC, needs_mpi
from support.ranks import run_ranks

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.data.dataset import DistributedDataset
from p4sgd.host.distributed import open_communicator
from p4sgd.host.distributed.merging import plan_messages, schedule
from p4sgd.host.errors import UserError
from p4sgd.host.precondition import BLOCK, Moments, Whitening, stage
from p4sgd.host.precondition.moments import MAX_SAMPLES, block_slices
from p4sgd.host.precondition.placement import PlacementProblem
from p4sgd.host.precondition.stage import Costs, make_plan, measure, whiten
from p4sgd.host.precondition.whitening import WhitenedBlock

PLACES = (
    PlacementProblem.best,
    PlacementProblem.by_all,
    PlacementProblem.round_robin,
    PlacementProblem.balanced_sizes,
)
MERGES = {
    "planned": plan_messages,
    "one a block": lambda ready, sizes, cost: schedule([1] * len(sizes), ready, sizes, cost),
    "one in all": lambda ready, sizes, cost: schedule([len(sizes)] * bool(sizes), ready, sizes, cost),
}


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


def spread(data, ranks, seed=0):
    """The same data, of which every rank has some samples; perhaps none."""
    owners = np.random.default_rng(seed).integers(0, ranks.size, data.samples).astype(np.uint8)
    own = data.features[np.flatnonzero(owners == ranks.rank)]
    return DistributedDataset(own, data.labels, data.name, owners=owners, ranks=ranks)


def fit(data, damping=0.0, planes=8):
    """The whitening from the moments of all samples at once."""
    scaling = Scaling.fit(data.features, "standard")
    moments = Moments.empty(data.feature_count)
    moments.add(data.features, scaling)
    return Whitening.fit(moments, scaling, damping, planes)


def bits(whitening):
    arrays = (whitening.centre, whitening.matrix, whitening.exponent)
    return [each.tobytes() for each in arrays], [each.dtype for each in arrays], whitening.told, whitening.signed


def costs(seed):
    """Any times, some of them 0."""
    rng = np.random.default_rng(seed)
    moments, invert, send, add = rng.integers(0, 5, 4) * 10.0 ** rng.integers(-2, 3, 4)
    return Costs(
        lambda columns: moments * columns,
        lambda columns: invert * columns,
        lambda columns: send,
        lambda columns: add + columns / 64,
    )


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(3, 90),
    features=st.integers(1, 6 * BLOCK),
    size=st.sampled_from([1, 2, 4]),
    place=st.sampled_from(PLACES),
    merge=st.sampled_from(sorted(MERGES)),
    sparse=st.booleans(),
    planes=st.sampled_from([1, 8]),
    seed=st.integers(0, 2**32),
)
def test_every_plan_gives_the_same_bits(samples, features, size, place, merge, sparse, planes, seed):
    data = make(samples, features, seed, sparse=sparse)
    expected = fit(data, planes=planes)
    sizes = [columns.stop - columns.start for columns in block_slices(features)]
    plan = make_plan(costs(seed), sizes, size, place=place, merge=MERGES[merge])

    def run(ranks):
        return whiten(spread(data, ranks, seed), expected.scaling, 0.0, planes, plan)

    for whitening, times in run_ranks(size, run):
        assert bits(whitening) == bits(expected)
        assert (times.blocks, times.sent) == (len(sizes), len(plan.placement.sends))


@pytest.mark.parametrize("sparse", [False, True])
def test_one_process_plans_nothing(sparse):
    data = make(200, 20 * BLOCK, 1, sparse=sparse)
    expected = fit(data)
    whitening, times = whiten(data, expected.scaling, 0.0, 8)
    assert bits(whitening) == bits(expected)
    assert times is None


@pytest.mark.parametrize(("size", "blocks"), [(2, 3), (3, 32)])
def test_ranks_plan_by_what_they_measure_if_there_are_many_blocks(size, blocks):
    data = make(150, blocks * BLOCK - 5, 2)
    expected = fit(data)
    results = run_ranks(size, lambda ranks: whiten(spread(data, ranks), expected.scaling, 0.0, 8))
    for whitening, times in results:
        assert bits(whitening) == bits(expected)
        assert (times is not None) == (blocks == 32)
    if blocks == 32:
        assert len({times.measured_s for _, times in results}) == 1, "that of the slowest rank"
        assert 0 < times.lower_bound_s <= times.predicted_s
        assert (times.blocks, times.planning_s > 0) == (32, True)


@pytest.mark.parametrize("samples", [2, 2000])
def test_costs_are_those_of_rank_0(samples):
    data = make(samples, 2 * BLOCK, 3)
    scaling = Scaling.fit(data.features, "standard")
    one, *others = run_ranks(3, lambda ranks: measure(spread(data, ranks), scaling))
    assert all(each == one for each in others)
    assert one.whiten(BLOCK) > 0
    assert one.moments(3 * BLOCK) == pytest.approx(3 * one.moments(BLOCK))


@settings(max_examples=60)
@given(
    blocks=st.integers(1, 40), size=st.integers(1, 5), seed=st.integers(0, 2**32), merge=st.sampled_from(sorted(MERGES))
)
def test_plans_have_every_block_once_and_one_owner_a_message(blocks, size, seed, merge):
    sizes = [BLOCK] * (blocks - 1) + [7]
    plan = make_plan(costs(seed), sizes, size, merge=MERGES[merge])
    assert sorted(block for message in plan.messages for block in message) == list(range(blocks))
    owners = [{plan.placement.owners[block] for block in message} for message in plan.messages]
    assert all(len(each) == 1 for each in owners)
    assert plan.lower_bound_s <= plan.predicted_s * (1 + 1e-9)
    for other in MERGES.values():
        others = make_plan(costs(seed), sizes, size, merge=other)
        if merge == "planned":
            assert plan.predicted_s <= others.predicted_s * (1 + 1e-9)


def test_many_blocks_are_merged_in_few_steps(monkeypatch):
    monkeypatch.setattr(stage, "_MOST_ITEMS", 4)
    plan = make_plan(costs(0), [BLOCK] * 41, 2, place=PlacementProblem.by_all, merge=MERGES["one a block"])
    assert [len(message) for message in plan.messages] == [11, 11, 11, 8]


@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_a_block_is_sent_without_rounding(damping):
    data = make(BLOCK + 30, 3 * BLOCK + 9, 4)
    whitening = fit(data, damping)
    moments = Moments.empty(data.feature_count)
    moments.add(data.features, whitening.scaling)
    for columns in block_slices(data.feature_count):
        block = stage.whiten_block(moments, whitening.scaling, columns, damping, 4)
        values = block.pack()
        assert (values.dtype, values.size) == (np.float64, WhitenedBlock.packed_size(block.centre.size))
        received = WhitenedBlock.unpack(values, block.centre.size)
        assert (received.left_out, received.problem) == (block.left_out, block.problem)
        for name in ("centre", "matrix", "exponent"):
            np.testing.assert_array_equal(getattr(received, name), getattr(block, name), strict=True)


def test_too_many_samples_are_refused(monkeypatch):
    data = make(3, 2, 5)
    monkeypatch.setattr(Dataset, "samples", MAX_SAMPLES + 1)
    with pytest.raises(UserError, match=r"2,147,483,648 samples exactly.* --precondition"):
        whiten(data, Scaling.fit(data.features), 0.1, 8)


@needs_mpi
@pytest.mark.parametrize("size", [2, 4])
def test_mpi(size):
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [MPIEXEC, "-n", str(size), sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["done"] * size), done.stderr


if __name__ == "__main__":  # as a rank
    communicator = open_communicator("mpi")
    made = make(300, 33 * BLOCK - 9, 6)
    alone = fit(made)
    widths = [columns.stop - columns.start for columns in block_slices(made.feature_count)]
    mixed = Costs(lambda n: 0.001 * n, lambda n: 0.001 * n, lambda n: 0.05, lambda n: 0.01 + n / 1e5)
    plans = [make_plan(mixed, widths, communicator.size, place=place) for place in PLACES]
    assert 0 < len(plans[0].placement.sends) < len(widths), "some are sent, some are not"
    for each in (None, *plans):
        assert bits(whiten(spread(made, communicator), alone.scaling, 0.0, 8, each)[0]) == bits(alone)
    sys.stdout.write("done\n")
