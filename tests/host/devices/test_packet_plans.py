"""Plans of packets from measured times, against all lengths by hand."""

import itertools
import random

import pytest
from support.bench import default_seed

from p4sgd.host.devices.merging import plan_packets
from p4sgd.host.distributed.planner import CostTable


class Modelled:
    """Workers whose packets of n micro-batches take ``cost(n)``; other programs add up to ``noise`` times as much."""

    def __init__(self, count, computing, cost, noise=0.0, around=0.0):
        self.count, self.computing, self.cost, self.noise, self.around = count, computing, cost, noise, around
        self.rng = random.Random(1)
        self.runs = []

    def total(self, length):
        """What a mini-batch takes in packets of so many micro-batches and the rest in one."""
        whole, rest = divmod(self.count, length)
        return self.computing + whole * self.cost(length) + (self.cost(rest) if rest else 0.0)

    def measure(self, mini_batches, length):
        self.runs.append((mini_batches, length))
        total = self.total(length)
        # Some of each length are undisturbed.
        total *= 1 + (self.noise * self.rng.random() if self.rng.random() < 0.5 else 0.0)
        return total, mini_batches * total + self.around


def random_costs(rng, count):
    """Costs that never fall with the size, and jump where they like; linear between those that are measured."""
    sizes = sorted({count, *(1 << power for power in range(count.bit_length()))})
    return CostTable(sizes, list(itertools.accumulate(rng.uniform(0, 1e-4) for _ in sizes)))


def test_the_plan_is_the_best_of_some_lengths():
    """Or the fewest packets, if these are less than a tenth slower."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = random.Random(seed)
    planned = set()
    for _ in range(300):
        count, most = rng.randint(2, 60), rng.randint(1, 46)
        model = Modelled(count, rng.uniform(0, 1e-3), random_costs(rng, count))
        fewest = -(-count // -(-count // most))
        times = plan_packets(model.measure, count, fewest, min(count, most))
        length = times.messages[0]
        assert sum(times.messages) == count
        assert set(times.messages[:-1]) <= {length}
        best = min(map(model.total, (fewest, *(1 << power for power in range(6) if 1 << power <= min(count, most)))))
        assert times.predicted_s == pytest.approx(model.total(length))
        assert times.one_message_s == (pytest.approx(model.total(count)) if fewest == count else None)
        assert model.total(length) <= (best if length != fewest else best / 0.9) * (1 + 1e-9)
        assert length == fewest or model.total(length) <= 0.9 * model.total(fewest)
        planned.add(length == fewest)
    assert planned == {True, False}, "both are the best somewhere"


def test_disturbed_times_are_predicted_longer_and_planned_the_same():
    """With a run of each length that nothing disturbed, the plan is that of a machine with nothing else to do."""
    count, cost = 8, CostTable((1, 8), (1e-4, 1.2e-4))
    still, busy = Modelled(count, 1e-3, cost), Modelled(count, 1e-3, cost, noise=4.0)
    expected, times = (plan_packets(each.measure, count, count, count) for each in (still, busy))
    assert expected.messages == times.messages == (8,)
    assert expected.predicted_s == pytest.approx(still.total(8))
    assert 1.3 * expected.predicted_s < times.predicted_s < 5 * expected.predicted_s


def test_a_given_length_is_predicted_and_not_planned():
    model = Modelled(7, 2e-4, CostTable((1, 7), (1e-5, 2e-5)))
    times = plan_packets(model.measure, 7, 3, 0)
    assert times.messages == (3, 3, 1)
    assert times.predicted_s == pytest.approx(model.total(3), rel=0.05)
    assert times.one_message_s is None, "not measured"
    assert {length for _, length in model.runs} == {3}


def test_long_mini_batches_are_measured_less():
    """A run that is measured has one of them, and there is a single round."""
    model = Modelled(4, 2.0, CostTable((1,), (1e-4,)))
    plan_packets(model.measure, 4, 4, 4)
    assert model.runs == [(1, 4), (1, 1), (1, 2), (1, 4)]


def test_workers_that_are_far_away_are_measured_less():
    """Until two seconds have passed, most of them for requests."""
    model = Modelled(4, 1e-3, CostTable((1,), (1e-4,)), around=0.3)
    times = plan_packets(model.measure, 4, 4, 4)
    assert len(model.runs) == 2 + 3 * 3, "of three lengths, 0.9 s a round"
    assert times.messages == (4,)
