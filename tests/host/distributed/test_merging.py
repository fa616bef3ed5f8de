"""The plans of messages are the best of all, on any costs."""

import random
from collections import deque
from dataclasses import replace
from itertools import accumulate, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bench import default_seed, times
from support.frames import CHUNKS, PRECISIONS, hardware_passes
from support.googlenet import ALL_REDUCE_S
from support.googlenet import READY_S as LAYERS_READY_S
from support.googlenet import SIZES as LAYERS
from support.spd_kfac import FACTORS, READY_S, REDUCE_LATENCY_S, mg_wfbp, reduce_s

from p4sgd.host.distributed.merging import CostTable, Passes, plan_messages, schedule
from p4sgd.host.errors import UserError
from p4sgd.hw.spec.config import PRESETS
from p4sgd.hw.spec.timing import BOARDS_NETWORK, chaining_cycles, mini_batch_cycles

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


@pytest.mark.parametrize("nodes", ALL_REDUCE_S)
def test_layers_of_googlenet(nodes):
    """At costs that were measured and jump: never worse than one each, one for all, and the published rule."""
    cost = CostTable(*ALL_REDUCE_S[nodes])
    trace = LAYERS_READY_S, LAYERS, cost
    end = plan_messages(*trace)[-1].end
    ends = [schedule(lengths, *trace)[-1].end for lengths in ([1] * len(LAYERS), [len(LAYERS)])]
    assert end <= ends[0] < ends[1]
    start, rate = cost(0), (cost(1 << 20) - cost(0)) / (1 << 20)
    for known in (cost, lambda size: start + rate * size):
        assert end <= schedule(mg_wfbp(LAYERS_READY_S, LAYERS, known, start), *trace)[-1].end
    assert end >= LAYERS_READY_S[-1] + cost(LAYERS[-1]), "what no plan can avoid"


@pytest.mark.parametrize("batch", [8, 64, 512])
def test_longer_frames_never_help_the_hardware(batch):
    """The cycles of frames of one micro-batch are those of the hardware's timing."""
    config = PRESETS["u280"]()
    for chunks, precision in product(CHUNKS, PRECISIONS):
        passes = hardware_passes(config, batch, chunks, precision)
        now = passes.end([1] * (batch // 8))
        cycles = mini_batch_cycles(config, batch, chunks, precision, BOARDS_NETWORK)
        assert now == pytest.approx(cycles - chaining_cycles(precision) + chunks * precision)
        assert passes.uniform() == 1
        assert passes.end(passes.best()) == now


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


def simulated(passes, lengths):
    """When the passes end: what the processors and the channel do, one thing after another."""
    forward, backward, sizes = (iter(each) for each in (passes.forward, passes.backward, passes.sizes))
    now = channel = 0
    there = []
    for length in lengths:
        now += sum(next(forward) for _ in range(length)) + passes.start_s
        channel = max(channel, now) + passes.cost(sum(next(sizes) for _ in range(length)))
        there.append(channel + passes.latency_s)
    if passes.side_by_side:
        now = 0
    for length, arrival in zip(lengths, there, strict=True):
        now = max(now, arrival) + passes.take_s + sum(next(backward) for _ in range(length))
    return now


def simulated_period(passes, lengths):
    """The same if forward passes are one mini-batch ahead: time from one mini-batch to the next, after many of them."""
    now = channel = 0
    ends = []
    begun = deque()
    for _ in range(240):
        forward, sizes, there = iter(passes.forward), iter(passes.sizes), []
        for length in lengths:
            now += sum(next(forward) for _ in range(length)) + passes.start_s
            channel = max(channel, now) + passes.cost(sum(next(sizes) for _ in range(length)))
            there.append(channel + passes.latency_s)
        begun.append(there)
        if len(begun) > 1:
            backward = iter(passes.backward)
            for length, arrival in zip(lengths, begun.popleft(), strict=True):
                now = max(now, arrival) + passes.take_s + sum(next(backward) for _ in range(length))
            ends.append(now)
    return (ends[-1] - ends[-121]) / 120


def draw_passes(rng):
    """Passes of whole numbers, so that sums are exact, with a cost that is any function of the size at all."""
    count = rng.randint(1, 7)
    largest = rng.choice([1, 3, 9])
    times = [[float(rng.randint(0, rng.choice([1, 9]))) for _ in range(count)] for _ in range(2)]
    sizes = [rng.randint(1, largest) for _ in range(count)]
    costs = [float(rng.randint(0, rng.choice([4, 30]))) for _ in range(sum(sizes) + 1)]
    alone = [float(rng.choice([0, 0, rng.randint(0, 5)])) for _ in range(3)]
    return Passes(*times, sizes, costs.__getitem__, *alone, side_by_side=rng.random() < 0.5)


def check_passes(passes):
    """Best of all messages, and of all of equal lengths."""
    count = len(passes.forward)
    ends = {tuple(lengths): simulated(passes, lengths) for lengths in all_lengths(count)}
    assert all(passes.end(lengths) == end for lengths, end in ends.items())
    best = passes.best()
    fewest = min(len(lengths) for lengths, end in ends.items() if end == min(ends.values()))
    assert (ends[tuple(best)], len(best)) == (min(ends.values()), fewest)
    most = 1 + count // 2
    equal = {n: ends[tuple(min(n, count - first) for first in range(0, count, n))] for n in range(1, most + 1)}
    n = passes.uniform(most)
    assert n == min(equal, key=lambda each: (equal[each], each))


@given(st.randoms(use_true_random=False))
def test_no_other_messages_end_the_passes_earlier(rng):
    check_passes(draw_passes(rng))


@given(st.randoms(use_true_random=False))
def test_periods_are_those_of_many_mini_batches(rng):
    passes = replace(draw_passes(rng), side_by_side=False, ahead=True)
    count = len(passes.forward)
    choices = list(all_lengths(count))
    for lengths in rng.sample(choices, min(len(choices), 3)):
        assert passes.end(lengths) == pytest.approx(simulated_period(passes, lengths))
    equal = [[min(n, count - first) for first in range(0, count, n)] for n in range(1, count + 1)]
    assert passes.best() == min(equal, key=lambda lengths: (passes.end(lengths), len(lengths)))
    assert passes.end(equal[passes.uniform() - 1]) == passes.end(passes.best())


@given(st.randoms(use_true_random=False), small, small)
def test_passes_never_end_later_than_with_the_published_rule(rng, latency, rate):
    passes = replace(draw_passes(rng), cost=lambda size: float(latency + rate * size))
    greedy = mg_wfbp(list(accumulate(passes.forward)), passes.sizes, passes.cost, latency)
    assert passes.end(passes.best()) <= passes.end(greedy)


@pytest.mark.slow
def test_many_random_instances():
    """Half of them chains of messages, half of them with backward passes."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = random.Random(seed)
    for _ in range(times(2_000)):
        passes = draw_passes(rng)
        check_passes(passes)
        trace = [float(each) for each in accumulate(passes.forward)], passes.sizes, passes.cost
        end = plan_messages(*trace)[-1].end
        assert end == min(schedule(lengths, *trace)[-1].end for lengths in all_lengths(len(passes.sizes)))
        latency, rate = rng.randint(0, 9), rng.randint(0, 9)
        linear = *trace[:2], lambda size, latency=latency, rate=rate: float(latency + rate * size)
        greedy = schedule(mg_wfbp(*linear, latency), *linear)
        assert plan_messages(*linear)[-1].end <= greedy[-1].end


def test_a_long_mini_batch():
    """Of 96 micro-batches, on one processor: no later than any equal lengths, and than it takes without any message."""
    cost = CostTable([1, 20, 21], [6.0, 9.0, 15.0])
    passes = Passes((1.0,) * 96, (1.5,) * 96, (1,) * 96, cost, start_s=0.5, take_s=0.25)
    best = passes.best()
    assert sum(best) == 96
    assert passes.end(best) <= passes.end([passes.uniform()] * (96 // passes.uniform()))
    assert passes.end(best) >= 96 * 2.5 + len(best) * 0.75
    assert passes.end(best) < passes.end([96])


def test_frames_that_cost_nothing_do_not_wait():
    assert Passes((1.0,) * 8, (1.0,) * 8, (1,) * 8, lambda size: 0.0, side_by_side=True).uniform() == 1


def test_frames_that_cost_the_same_for_any_size_are_as_long_as_they_may_be():
    passes = Passes((0.0,) * 8, (0.0,) * 8, (1,) * 8, lambda size: 100.0)
    assert (passes.uniform(), passes.uniform(most=5), passes.best()) == (8, 4, [8])


def test_no_passes():
    assert Passes((), (), (), float).best() == []
