"""The learning rate over the epochs."""

import pytest

from p4sgd.host.training.rate import choose_rate, smallest_rate
from p4sgd.host.training.schedule import SCHEDULES, LearningRateSchedule
from p4sgd.hw.spec.run import FeatureFormat


@pytest.mark.parametrize(
    ("name", "power", "rates"),
    [("constant", 0.5, [0.5, 0.5, 0.5]), ("invscaling", 0.5, [0.5, 0.25, 0.05]), ("adaptive", 0.5, [0.5, 0.5, 0.5])],
)
def test_rates_by_epoch(name, power, rates):
    schedule = LearningRateSchedule(name, 0.5, power)
    assert [schedule.rate(epoch) for epoch in (1, 4, 100)] == rates
    assert schedule.adapt(1, 1) == (name == "adaptive")


def test_adaptive():
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, patience=2)
    # (epochs without progress, since the best one, whether the rate changes, the rate)
    for idle, since_best, changes, rate in (
        (0, 0, False, 0.5),
        (1, 0, False, 0.5),
        (2, 2, True, 0.5 / 5),
        (3, 0, False, 0.5 / 5),
        (4, 1, True, 0.5),  # it was better, but slow: it is taken back
        (6, 1, False, 0.5),  # slow, but there is nothing better
        (8, 2, True, 0.5 / 5),
        (10, 2, True, 0.5 / 25),  # it was no better: the rate falls further
    ):
        assert (adaptive.adapt(idle, since_best), adaptive.rate(9)) == (changes, rate)
    assert [adaptive.adapt(idle, 99) for idle in range(12, 40, 2)] == [True] * 2 + [False] * 12, "to 5^-4 at least"
    seven = LearningRateSchedule("adaptive", 0.5, 0.5, patience=7)
    assert [idle for idle in range(1, 15) if seven.adapt(idle, idle)] == [7, 14]


@pytest.mark.parametrize(
    ("patience", "divisor", "progress"),
    [
        (None, 1.0, [True, False, False, False]),
        (None, 5.0, [True, True, True, False]),
        (1, 5.0, [True, False, False, False]),
    ],
)
def test_with_a_lower_rate_less_counts_as_progress_unless_training_is_to_end(patience, divisor, progress):
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, patience=patience, divisor=divisor)
    assert [adaptive.is_progress(loss, 1.0, 0.1) for loss in (0.89, 0.91, 0.97, 0.99)] == progress


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_lowered_when_training_diverges(name):
    schedule = LearningRateSchedule(name, 100.0, 0.5)
    for most, expected in ((20.0, 10.0), (0.25, 0.25), (0.25, 0.025)):
        assert not schedule.lowest
        schedule.lower(most)
        assert (schedule.first, schedule.divisor) == (pytest.approx(expected), 1.0)
    if name == "adaptive":  # its range is relative to the rate that does not diverge
        assert not schedule.adapt(2, 0), "there is nothing to take back"
        assert [schedule.adapt(idle, idle) for idle in range(1, 6)] == [True] * 4 + [False]
        assert schedule.rate(1) == pytest.approx(0.025 / 625)


def test_schedules_stop_at_the_smallest_rate():
    form = FeatureFormat(8, 8, False)
    smallest = smallest_rate(16, form)
    assert choose_rate(smallest, 16, form).actual == pytest.approx(smallest, rel=0.01)
    for power in (9.0, 700.0):  # the latter is beyond floating point
        assert LearningRateSchedule("invscaling", 0.5, power, smallest).rate(1000) == smallest
    constant = LearningRateSchedule("constant", 0.5, 0.5, smallest)
    for _ in range(20):
        constant.lower(0.5)
    assert constant.lowest
    assert constant.rate(101) == smallest
    assert LearningRateSchedule("constant", smallest / 2, 0.5, smallest).rate(9) == smallest / 2
    adaptive = LearningRateSchedule("adaptive", smallest, 0.5, smallest)
    assert not any(adaptive.adapt(idle, 0) for idle in range(9))
