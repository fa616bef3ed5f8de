"""Plans are the best of all, on any costs, by models that are read from their descriptions once more."""

from collections import deque
from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4sgd.host.distributed.planner import CostTable, FactorCosts, Passes, cut, plan_factors


def all_lengths(count):
    """Every way to cut so many items into messages."""
    for cuts in product([False, True], repeat=count - 1):
        edges = [0, *(edge for edge, is_cut in enumerate(cuts, 1) if is_cut), count]
        yield [stop - start for start, stop in pairwise(edges)]


def simulated(passes, lengths, mini_batches=1):
    """When the passes of each mini-batch end: what the processor and the channel do, one thing after another.

    With ``ahead`` forward passes are one mini-batch ahead of the backward passes.
    """
    now = channel = 0
    begun, ends = deque(), []
    for _ in range(mini_batches):
        forward, sizes, there = iter(passes.forward), iter(passes.sizes), []
        for length in lengths:
            now += sum(next(forward) for _ in range(length)) + passes.start_s
            channel = max(channel, now) + passes.cost(sum(next(sizes) for _ in range(length)))
            there.append(channel + passes.latency_s)
        begun.append(there)
        if len(begun) > passes.ahead:
            backward = iter(passes.backward)
            for length, arrival in zip(lengths, begun.popleft(), strict=True):
                now = max(now, arrival) + passes.take_s + sum(next(backward) for _ in range(length))
            ends.append(now)
    return ends


def draw_passes(rng):
    """Passes of whole numbers, so that sums are exact, with a cost that is any function of the size at all; half of
    them are chains of sums."""
    count, largest = rng.randint(1, 7), rng.choice([1, 3, 9])
    forward, backward = ([float(rng.randint(0, rng.choice([1, 9]))) for _ in range(count)] for _ in range(2))
    sizes = [rng.randint(1, largest) for _ in range(count)]
    costs = [float(rng.randint(0, rng.choice([4, 30]))) for _ in range(sum(sizes) + 1)]
    if rng.random() < 0.5:
        return Passes(forward, [0.0] * count, sizes, costs.__getitem__)
    alone = [float(rng.choice([0, 0, rng.randint(0, 5)])) for _ in range(3)]
    return Passes(forward, backward, sizes, costs.__getitem__, *alone)


@given(st.randoms(use_true_random=False))
def test_no_other_messages_end_the_passes_earlier(rng):
    """And of those that end as early none are fewer."""
    passes = draw_passes(rng)
    ends = {tuple(lengths): simulated(passes, lengths)[0] for lengths in all_lengths(len(passes.forward))}
    assert all(passes.end(lengths) == end for lengths, end in ends.items())
    best = passes.best()
    fewest = min(len(lengths) for lengths, end in ends.items() if end == min(ends.values()))
    assert (ends[tuple(best)], len(best)) == (min(ends.values()), fewest)


@given(st.randoms(use_true_random=False))
def test_periods_are_those_of_many_mini_batches(rng):
    passes = replace(draw_passes(rng), ahead=True)
    count = len(passes.forward)
    choices = list(all_lengths(count))
    for lengths in rng.sample(choices, min(len(choices), 3)):
        ends = simulated(passes, lengths, 240)
        assert passes.end(lengths) == pytest.approx((ends[-1] - ends[-121]) / 120)
    equal = [cut(count, length) for length in range(1, count + 1)]
    assert passes.best() == min(equal, key=lambda lengths: (passes.end(lengths), len(lengths)))


def test_cost_table():
    table = CostTable([10, 20, 21, 40], [3.0, 5.0, 2.0, 4.0])
    assert [table(size) for size in (0, 10, 15, 20, 21, 40, 59)] == [3.0, 3.0, 4.0, 5.0, 2.0, 4.0, 6.0]
    assert CostTable([10], [3.0])(100) == 3.0
    assert CostTable([0, 1], [1.0, 0.5])(9) == 0.0, "no time is below 0"


def inverted(owners, ranks, costs):
    """When all ranks have all inverses, if owners send them in the order in which they are there."""
    busy, ready = [0.0] * ranks, []
    for owner in owners:
        if owner is not None:
            busy[owner] += costs.invert
            ready.append(busy[owner])
    channel = 0.0
    for each in sorted(ready):
        channel = max(channel, each) + costs.send
    return max(channel, max(busy) + owners.count(None) * costs.invert)


@given(st.integers(1, 5), st.integers(1, 3), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_no_other_owners_have_all_inverses_earlier(count, ranks, numbers):
    compute, invert, send, add = map(float, numbers)
    costs = FactorCosts(compute, invert, send, lambda factors: add + factors)
    plan = plan_factors(count, ranks, costs)
    every = product([None, *range(ranks)], repeat=count) if ranks > 1 else [(None,) * count]
    best = min(inverted(owners, ranks, costs) for owners in every)
    owners = [factor % ranks if factor < plan.owned else None for factor in range(count)]
    assert inverted(owners, ranks, costs) == best
    assert plan.lower_bound_s == count * compute + best <= plan.predicted_s
    assert sorted(factor for message in plan.messages for factor in message) == list(range(count))
    assert all(len({owners[factor] for factor in message}) == 1 for message in plan.messages)
    now = channel = 0.0
    for message in plan.messages:
        now += len(message) * compute
        channel = max(channel, now) + costs.add(len(message))
    assert plan.predicted_s == channel + best


def test_sums_of_many_factors_are_planned_in_few_steps():
    plan = plan_factors(200, 1, FactorCosts(1.0, 1.0, 1.0, lambda factors: 0.1))
    assert all(len(message) % 4 == 0 for message in plan.messages)
