"""The plan of messages is the best of all, on any costs."""

from itertools import accumulate, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spd_kfac import FACTORS, READY_S, REDUCE_LATENCY_S, mg_wfbp, reduce_s

from p4sgd.host.distributed.merging import CostTable, plan_messages, schedule
from p4sgd.host.errors import UserError

small = st.integers(0, 9)


@st.composite
def traces(draw):
    """When items are ready, and their sizes; whole numbers, so that sums are exact."""
    items = draw(st.lists(st.tuples(small, st.integers(1, 9)), min_size=1, max_size=7))
    return [float(each) for each in accumulate(gap for gap, _ in items)], [size for _, size in items]


def all_lengths(count):
    """Every way to cut so many items into messages."""
    for cuts in product([False, True], repeat=count - 1):
        places = [0, *(place for place, cut in enumerate(cuts, 1) if cut), count]
        yield [stop - start for start, stop in pairwise(places)]


@given(traces(), st.lists(small, min_size=63, max_size=63))
def test_no_other_messages_end_earlier(trace, costs):
    """The cost is any function of the size at all, also one that falls."""
    ready, sizes = trace
    cost = lambda size: float(costs[size - 1])  # noqa: E731
    best = min(schedule(lengths, ready, sizes, cost)[-1].end for lengths in all_lengths(len(sizes)))
    assert plan_messages(ready, sizes, cost)[-1].end == best


@given(traces(), small)
def test_messages_carry_everything_in_order_once_it_is_ready(trace, latency):
    ready, sizes = trace
    planned = plan_messages(ready, sizes, lambda size: latency + 2.0 * size)
    assert [item for message in planned for item in message.items] == list(range(len(sizes)))
    free = 0.0
    for message in planned:
        assert message.size == sum(sizes[item] for item in message.items)
        assert message.start >= free
        assert message.start >= max(ready[item] for item in message.items)
        assert message.end == message.start + latency + 2.0 * message.size
        free = message.end


@given(traces(), small, small)
def test_never_slower_than_the_published_rule(trace, latency, rate):
    ready, sizes = trace
    cost = lambda size: float(latency + rate * size)  # noqa: E731
    greedy = schedule(mg_wfbp(ready, sizes, cost, latency), ready, sizes, cost)
    assert plan_messages(ready, sizes, cost)[-1].end <= greedy[-1].end


def test_the_published_rule_waits_once_too_often():
    """It joins the third and fourth item to the first two, which could have gone while these were computed."""
    ready, sizes = [0.0, 0.0, 3.0, 6.0, 10.0], [2, 6, 5, 6, 1]
    cost = lambda size: 4.0 + size  # noqa: E731
    greedy = schedule(mg_wfbp(ready, sizes, cost, 4.0), ready, sizes, cost)
    assert [len(message.items) for message in greedy] == [4, 1]
    assert greedy[-1].end == (6 + 4 + 19) + (4 + 1)
    planned = plan_messages(ready, sizes, cost)
    assert [len(message.items) for message in planned] == [2, 3]
    assert planned[-1].end == (4 + 8) + (4 + 12)


def test_items_that_are_ready_out_of_order_wait_for_those_before():
    planned = plan_messages([5.0, 1.0], [1, 1], float)
    assert [(message.start, message.end) for message in planned] == [(5.0, 7.0)]


def test_nothing_to_send():
    assert plan_messages([], [], float) == []


def test_factors_of_resnet50():
    """On the published trace: better than one message a factor, one message in all, and the published rule."""
    values = [size * (size + 1) // 2 for size in FACTORS]
    end = plan_messages(READY_S, values, reduce_s)[-1].end
    others = ([1] * len(values), [len(values)], mg_wfbp(READY_S, values, reduce_s, REDUCE_LATENCY_S))
    ends = [schedule(lengths, READY_S, values, reduce_s)[-1].end for lengths in others]
    assert end < min(ends)
    assert end >= max(READY_S[-1] + reduce_s(values[-1]), sum(values) * 1.4335e-9), "what no plan can avoid"


def test_cost_table():
    table = CostTable([10, 20, 21, 40], [3.0, 5.0, 2.0, 4.0])
    assert [table(size) for size in (0, 10, 15, 20, 21, 40, 59)] == [3.0, 3.0, 4.0, 5.0, 2.0, 4.0, 6.0]
    assert CostTable([10], [3.0])(100) == 3.0
    assert CostTable([0, 1], [1.0, 0.5])(9) == 0.0, "no time is below 0"


@pytest.mark.parametrize(
    ("sizes", "seconds", "says"),
    [
        ([], [], "0 sizes"),
        ([1, 2], [1.0], "2 sizes and 1 times"),
        ([1, 1], [1.0, 1.0], "entry 2: size 1 follows 1"),
        ([5, 9, 7], [1.0, 1.0, 1.0], "entry 3: size 7 follows 9"),
        ([-1], [1.0], "entry 1: .*size .*-1"),
        ([1.5], [1.0], "entry 1: .*whole number.*1.5"),
        ([True], [1.0], "entry 1: .*whole number"),
        ([1, 2], [1.0, -1.0], "entry 2: .*time .*-1"),
        ([1], [float("nan")], "entry 1: .*time .*nan"),
        ([1], [float("inf")], "entry 1: .*time .*inf"),
        ([1], ["fast"], "entry 1: .*time .*'fast'"),
    ],
)
def test_bad_cost_tables(sizes, seconds, says):
    with pytest.raises(UserError, match=says):
        CostTable(sizes, seconds)
