"""The learning rate over the epochs."""

import pytest

from p4sgd.host.training.rate import choose_rate, smallest_rate
from p4sgd.host.training.schedule import SCHEDULES, LearningRateSchedule
from p4sgd.hw.spec.run import FeatureFormat


def test_schedules():
    constant = LearningRateSchedule("constant", 0.5, 0.5)
    inverse = LearningRateSchedule("invscaling", 0.5, 0.5)
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, patience=2)
    for schedule in (constant, inverse, adaptive):
        assert not schedule.adapt(0, 0)
        assert not schedule.adapt(1, 0)
    assert not constant.adapt(2, 0)
    assert [constant.rate(e) for e in (1, 4, 100)] == [0.5, 0.5, 0.5]
    assert [inverse.rate(e) for e in (1, 4, 100)] == [0.5, 0.25, 0.05]
    assert adaptive.rate(9) == 0.5
    assert adaptive.adapt(2, 2)
    assert adaptive.rate(10) == 0.5 / 5
    assert not adaptive.adapt(3, 0)
    assert adaptive.adapt(4, 1), "it was better, but slow: it is taken back"
    assert adaptive.rate(12) == 0.5
    assert not adaptive.adapt(6, 1), "slow, but there is nothing better"
    assert adaptive.adapt(8, 2)
    assert adaptive.rate(14) == 0.5 / 5
    assert adaptive.adapt(10, 2), "it was no better: the rate falls further"
    assert adaptive.rate(16) == 0.5 / 25
    changes = [adaptive.adapt(idle, 99) for idle in range(12, 40, 2)]
    assert changes == [True] * 2 + [False] * 12, "to 5^-4 at least"


def test_with_a_lower_rate_less_counts_as_progress():
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5)
    assert [adaptive.is_progress(loss, 1.0, 0.1) for loss in (0.89, 0.91)] == [True, False]
    assert adaptive.adapt(1, 1)
    assert [adaptive.is_progress(loss, 1.0, 0.1) for loss in (0.91, 0.97, 0.99)] == [True, True, False]
    ends = LearningRateSchedule("adaptive", 0.5, 0.5, patience=1, divisor=5.0)
    assert [ends.is_progress(loss, 1.0, 0.1) for loss in (0.89, 0.91)] == [True, False]


def test_adaptive_begins_again_after_divergence():
    """Its range and tolerance are relative to the rate that does not diverge."""
    adaptive = LearningRateSchedule("adaptive", 1000.0, 0.5)
    adaptive.lower(1.0)
    assert (adaptive.first, adaptive.divisor) == (1.0, 1.0)
    assert not adaptive.adapt(2, 0), "there is nothing to take back"
    assert [adaptive.adapt(idle, idle) for idle in range(1, 6)] == [True] * 4 + [False]
    assert adaptive.rate(1) == 1.0 / 625


def test_adaptive_never_exceeds_the_first_rate():
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, smallest=0.5)
    assert not any(adaptive.adapt(idle, 0) for idle in range(9))
    assert adaptive.rate(1) == 0.5


def test_an_adaptive_rate_is_as_patient_as_training():
    adaptive = LearningRateSchedule("adaptive", 0.5, 0.5, patience=7)
    assert [idle for idle in range(1, 15) if adaptive.adapt(idle, idle)] == [7, 14]
    unset = LearningRateSchedule("adaptive", 0.5, 0.5)
    assert [idle for idle in range(4) if unset.adapt(idle, idle)] == [1, 2, 3]


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_lowered_when_training_diverges(name):
    schedule = LearningRateSchedule(name, 100.0, 0.5)
    for most, expected in ((20.0, 10.0), (0.25, 0.25), (0.25, 0.025)):
        assert not schedule.lowest
        schedule.lower(most)
        assert schedule.rate(1) == pytest.approx(expected)


def test_schedules_stop_at_the_smallest_rate():
    form = FeatureFormat(8, 8, False)
    smallest = smallest_rate(16, form)
    assert not choose_rate(smallest, 16, form).coarse
    for power in (9.0, 700.0):  # the latter is beyond floating point
        assert LearningRateSchedule("invscaling", 0.5, power, smallest).rate(1000) == smallest
    constant = LearningRateSchedule("constant", 0.5, 0.5, smallest)
    for _ in range(20):
        constant.lower(0.5)
    assert constant.lowest
    assert constant.rate(101) == smallest
    assert LearningRateSchedule("constant", smallest / 2, 0.5, smallest).rate(9) == smallest / 2
