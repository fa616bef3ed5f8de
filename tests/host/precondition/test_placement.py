"""Placements: never worse than the published ones, never better than the bound, close to the best of all."""

import random
from itertools import chain, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spd_kfac import FACTORS, broadcast_s, invert_s, resnet50

from p4sgd.host.precondition.placement import PlacementProblem

ROUNDING = 1 + 1e-12


def makespan(owners, sends, invert, send, ranks):
    """The model, read from its description: when all ranks have all inverses."""
    own = [[factor for factor in sends if owners[factor] == rank] for rank in range(ranks)]
    assert sorted(chain(*own)) == [factor for factor, owner in enumerate(owners) if owner is not None]
    inverted = {each: sum(invert[f] for f in mine[: place + 1]) for mine in own for place, each in enumerate(mine)}
    channel = 0.0
    for factor in sorted(sends, key=inverted.__getitem__):
        channel = max(channel, inverted[factor]) + send[factor]
    by_all = sum(invert[factor] for factor, owner in enumerate(owners) if owner is None)
    return max(channel, *(sum(invert[factor] for factor in mine) + by_all for mine in own))


def the_best(invert, send, ranks):
    """The least makespan over all owners and all orders."""
    factors = range(len(invert))
    return min(
        makespan(owners, order, invert, send, ranks)
        for owners in product([None, *range(ranks)], repeat=len(invert))
        for order in permutations(factor for factor in factors if owners[factor] is not None)
    )


def problem(costs, ranks):
    """Factors of sizes 0, 1, …, whose costs are given."""
    return PlacementProblem(range(len(costs)), lambda size: costs[size][0], lambda size: costs[size][1], ranks)


costs = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12)


@given(costs, st.integers(1, 5))
def test_never_worse_than_the_others_never_better_than_the_bound(costs, ranks):
    made = problem(costs, ranks)
    best = made.best()
    for other in (made.by_all(), made.round_robin(), made.balanced_sizes()):
        assert best.makespan <= other.makespan
    assert made.lower_bound() <= best.makespan * ROUNDING
    invert = [each for each, _ in costs]
    assert made.lower_bound() >= max(max(invert), sum(invert) / ranks) / ROUNDING


@given(costs, st.integers(1, 5))
def test_predicted_times_follow_the_model(costs, ranks):
    made = problem(costs, ranks)
    invert, send = zip(*costs, strict=True)
    for placement in (made.best(), made.by_all(), made.round_robin(), made.balanced_sizes()):
        assert placement.makespan == makespan(placement.owners, placement.sends, invert, send, ranks)


def test_close_to_the_best_of_all():
    """Mostly equal to it, and within the 4/3 that dealing the longest first may cost without any broadcasts."""
    rng = random.Random(20)
    ratios = []
    for _ in range(60):
        ranks = rng.choice([2, 3])
        costs = [(rng.randint(1, 20), rng.randint(1, 8)) for _ in range(rng.randint(1, 4))]
        made = problem(costs, ranks)
        best = the_best(*zip(*costs, strict=True), ranks)
        assert made.lower_bound() <= best * ROUNDING
        ratios.append(made.best().makespan / best)
    assert min(ratios) >= 1
    assert max(ratios) <= 4 / 3
    assert sum(ratio == 1 for ratio in ratios) > 0.75 * len(ratios)


def test_free_broadcasts_are_balanced_longest_first():
    made = PlacementProblem([3, 6, 4, 5], float, lambda size: 0.0, 2)
    best = made.best()
    assert best.makespan == made.lower_bound() == 9
    assert None not in best.owners


def test_what_is_cheaper_to_invert_than_to_send_is_inverted_by_all():
    best = PlacementProblem([5, 5, 5], lambda size: 1.0, lambda size: 10.0, 4).best()
    assert (best.owners, best.sends, best.makespan) == ((None, None, None), (), 3.0)


def test_one_rank_sends_nothing():
    best = PlacementProblem([5, 7], float, lambda size: 0.0, 1).best()
    assert (best.owners, best.makespan) == ((None, None), 12)


def test_no_factors():
    made = PlacementProblem([], float, float, 4)
    assert (made.best().makespan, made.lower_bound()) == (0, 0)


def test_sizes_of_resnet50():
    """Those that the authors list, and the numbers of values that the paper gives: 62.3 M and 14.6 M."""
    a, g = resnet50()
    assert len(a) == len(g) == 54
    assert (a[:6], a[-1]) == ([147, 64, 576, 64, 64, 256], 2049)
    assert (g[:4], g[-1]) == ([64, 64, 64, 256], 1000)
    assert [sum(size * (size + 1) // 2 for size in sizes) for sizes in (a, g)] == [62_348_671, 14_618_356]


@pytest.mark.parametrize("ranks", [4, 64])
def test_factors_of_resnet50(ranks):
    made = PlacementProblem(FACTORS, invert_s, broadcast_s, ranks)
    best = made.best().makespan
    others = [made.round_robin().makespan, made.balanced_sizes().makespan, made.by_all().makespan]
    assert best < min(others)
    assert made.lower_bound() <= best <= 1.1 * made.lower_bound()
