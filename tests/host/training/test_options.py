"""Options are checked in one place, and a message names what is wrong."""

import json

import pytest

from p4sgd.host.errors import UserError
from p4sgd.host.training.options import TrainingOptions

WRONG = [
    ({"loss": "cubic"}, "there is no loss 'cubic'; there are logistic"),
    ({"schedule": "warm"}, "there is no schedule 'warm'; there are constant, invscaling, adaptive"),
    ({"scaling": "none"}, "there is no scaling 'none'; there are auto, minmax, maxabs"),
    ({"epochs": 0}, "epochs must be at least 1, not 0"),
    ({"batch": 0}, "batch must be 8 to 524280, not 0"),
    ({"batch": 20}, "batch must be a multiple of 8, not 20: take 16 or 24"),
    ({"batch": 1 << 20}, "batch must be 8 to 524280"),
    ({"precision": 0}, "precision must be 1 to 8, not 0"),
    ({"precision": 9}, "precision must be 1 to 8, not 9"),
    ({"planes": 9}, "planes must be 1 to 8, not 9"),
    ({"precision": 5, "planes": 4}, "precision must be at most the 4 stored planes, not 5"),
    ({"learning_rate": 0.0}, "learning rate must be more than 0, not 0"),
    ({"learning_rate": float("nan")}, "learning rate must be a finite number, not nan"),
    ({"l2": -1.0}, "l2 must be at least 0, not -1"),
    ({"l1": float("inf")}, "l1 must be a finite number, not inf"),
    ({"validation_fraction": 1.0}, "the validation fraction must be below 1, not 1"),
    ({"validation_fraction": -0.1}, "validation fraction must be at least 0, not -0.1"),
    ({"patience": 0}, "patience must be at least 1, not 0"),
    ({"power": 0.7}, "power has no effect on the schedule constant: only invscaling has one"),
    ({"power": 0.7, "schedule": "adaptive"}, "power has no effect on the schedule adaptive"),
    ({"tolerance": 0.1}, "tolerance has no effect without patience or the schedule adaptive"),
    ({"workers": 33}, "workers must be 1 to 32, not 33"),
    ({"seed": -1}, "seed must be at least 0, not -1"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_wrong(values, message):
    with pytest.raises(UserError) as caught:
        TrainingOptions(**values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_options_that_have_an_effect():
    TrainingOptions(power=0.7, schedule="invscaling")
    TrainingOptions(tolerance=0.1, schedule="adaptive")
    TrainingOptions(tolerance=0.1, patience=3)


def test_defaults_are_plain_data():
    options = TrainingOptions()
    assert TrainingOptions(**json.loads(json.dumps(options.to_json()))) == options


def test_as_many_planes_as_are_read():
    assert TrainingOptions(precision=3).stored == 3
    assert TrainingOptions(precision=3, planes=8).stored == 8
