"""Options are checked in one place, and a message names what is wrong."""

import json
import re

import pytest

from p4sgd.host.errors import UserError
from p4sgd.host.training.options import TrainingOptions

WRONG = [
    ({"loss": "cubic"}, "loss 'cubic'.*logistic"),
    ({"loss": "huber", "epsilon": 0.0}, "epsilon .*more than 0, not 0"),
    ({"loss": "epsilon_insensitive", "epsilon": -1.0}, "epsilon .*at least 0, not -1"),
    ({"loss": "huber", "epsilon": float("inf")}, "epsilon .*finite.* inf"),
    ({"loss": "squared", "epsilon": 1.0}, "epsilon .*no effect .*squared: choose huber or epsilon_insensitive"),
    ({"loss": "quantile", "quantile": 1.0}, "quantile .*below 1, not 1"),
    ({"loss": "quantile", "quantile": 0.0}, "quantile .*more than 0, not 0"),
    ({"quantile": 0.9}, "quantile .*no effect .*logistic: choose quantile"),
    ({"loss": "tweedie", "tweedie_power": 1.0}, "tweedie-power .*more than 1, not 1"),
    ({"loss": "tweedie", "tweedie_power": 2.0}, "tweedie-power .*below 2, not 2"),
    ({"loss": "poisson", "tweedie_power": 1.5}, "tweedie-power has no effect on the loss poisson: choose tweedie"),
    ({"schedule": "warm"}, "schedule 'warm'.*constant, invscaling, adaptive"),
    ({"scaling": "best"}, "scaling 'best'.*auto, standard, robust, minmax, maxabs, none"),
    ({"epochs": 0}, r"epochs .*\b1, not 0"),
    ({"batch": 0}, "batch .*8 to 524280, not 0"),
    ({"batch": 20}, "batch .*multiple of 8, not 20: .*16 or 24"),
    ({"batch": 1 << 20}, "batch .*8 to 524280"),
    ({"precision": 0}, "precision .*1 to 8, not 0"),
    ({"precision": 9}, "precision .*1 to 8, not 9"),
    ({"planes": 9}, "planes .*1 to 8, not 9"),
    ({"unit": 12}, "unit must be one of 8, 16, 32, 64, not 12"),
    ({"unit": 8.0}, "unit must be one of 8, 16, 32, 64, not 8.0"),
    ({"precision": 5, "planes": 4}, "precision .*4 stored planes, not 5"),
    ({"learning_rate": 0.0}, "learning rate .*more than 0, not 0"),
    ({"learning_rate": float("nan")}, "learning rate .*finite.* nan"),
    ({"l2": -1.0}, r"l2 .*\b0, not -1"),
    ({"l1": float("inf")}, "l1 .*finite.* inf"),
    ({"alpha": -1.0}, "alpha .*at least 0, not -1"),
    ({"alpha": 1.0, "l1_ratio": 1.5}, "l1-ratio .*at most 1, not 1.5"),
    ({"alpha": 1.0, "l1_ratio": -0.5}, "l1-ratio .*at least 0, not -0.5"),
    ({"l1_ratio": 0.5}, "l1-ratio has no effect without alpha.*--l1"),
    ({"alpha": 1.0, "l2": 0.1}, "alpha stands for l2 and l1: leave l2 out"),
    ({"alpha": 0.0, "l1": 0.1, "l1_ratio": 0.5}, "alpha stands for l2 and l1: leave l1 out"),
    ({"precondition": "block", "alpha": 0.1, "l1_ratio": 0.1}, "l1 .*block"),
    ({"validation_fraction": 1.0}, "validation fraction .*below 1, not 1"),
    ({"validation_fraction": -0.1}, r"validation fraction .*\b0, not -0\.1"),
    ({"tolerance": 1.0}, "tolerance .*below 1, not 1"),
    ({"patience": 0}, r"patience .*\b1, not 0"),
    ({"power": 0.7, "schedule": "constant"}, "power .*no effect.* constant.* invscaling"),
    ({"power": 0.7, "schedule": "adaptive"}, "power .*no effect.* adaptive"),
    ({"tolerance": 0.1, "schedule": "constant"}, "tolerance .*no effect.* patience .*adaptive"),
    ({"precondition": "full"}, "precondition 'full'.*none, block"),
    ({"precondition": "block", "damping": -0.1}, r"damping .*\b0, not -0\.1"),
    ({"precondition": "block", "scaling": "maxabs"}, "scaling maxabs .*block"),
    ({"precondition": "block", "l1": 0.1}, "l1 .*block"),
    ({"precondition": "block", "damping": 1000.0}, r"damping .*\b1000, not 1000"),
    ({"damping": 0.1}, "damping .*no effect.*block"),
    ({"workers": 33}, "workers .*1 to 32, not 33"),
    ({"seed": -1}, r"seed .*\b0, not -1"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_wrong(values, message):
    with pytest.raises(UserError) as caught:
        TrainingOptions(**values)
    assert re.search(rf"^(the |there is no )?{message}", str(caught.value))
    assert "\n" not in str(caught.value)


def test_options_that_have_an_effect():
    TrainingOptions(power=0.7, schedule="invscaling")
    TrainingOptions(tolerance=0.1, schedule="adaptive")
    TrainingOptions(tolerance=0.1, patience=3, schedule="constant")


@pytest.mark.parametrize(
    ("options", "penalties"),
    [
        ({}, (0.0, 0.0)),
        ({"l2": 0.5, "l1": 0.25}, (0.5, 0.25)),
        ({"alpha": 0.5}, (0.5, 0.0)),
        ({"alpha": 0.5, "l1_ratio": 0.25}, (0.375, 0.125)),
        ({"alpha": 0.5, "l1_ratio": 1.0}, (0.0, 0.5)),
        ({"alpha": 0.5, "l1_ratio": 0.0, "precondition": "block"}, (0.5, 0.0)),
    ],
)
def test_penalties(options, penalties):
    assert TrainingOptions(**options).penalties == penalties


@pytest.mark.parametrize(
    ("options", "scale", "parameters"),
    [
        ({"loss": "logistic"}, 1.0, {}),
        ({"loss": "huber"}, 77.0, {"epsilon": 0.125}),
        ({"loss": "huber", "epsilon": 100.0}, 77.0, {"epsilon": pytest.approx(100 / 77, rel=0.008)}),
        ({"loss": "epsilon_insensitive", "epsilon": 0.0}, 77.0, {"epsilon": 0.0}),
        ({"loss": "epsilon_insensitive", "epsilon": 1e-9}, 1.0, {"epsilon": 0.0}),
        ({"loss": "quantile"}, 77.0, {"quantile": 0.5}),
        ({"loss": "quantile", "quantile": 0.9}, 77.0, {"quantile": 0.9}),
        ({"loss": "tweedie", "tweedie_power": 1.2}, 77.0, {"tweedie_power": 1.2}),
    ],
)
def test_parameters_of_a_loss(options, scale, parameters):
    loss = TrainingOptions(**options).loss_for(scale, "d.csv")
    assert (loss.name, loss.parameters) == (options["loss"], parameters)


@pytest.mark.parametrize(("name", "epsilon"), [("huber", 1e-5), ("huber", 1e6), ("epsilon_insensitive", 1e6)])
def test_an_epsilon_that_targets_never_reach(name, epsilon):
    with pytest.raises(
        UserError, match=r"^d.csv: epsilon .* out of range .* deviation of 77: choose 0.00117 to 7.7e\+04$"
    ):
        TrainingOptions(loss=name, epsilon=epsilon).loss_for(77.0, "d.csv")


def test_defaults_are_plain_data():
    options = TrainingOptions()
    assert TrainingOptions(**json.loads(json.dumps(options.to_json()))) == options


def test_as_many_planes_as_are_read():
    assert TrainingOptions(precision=3).stored == 3
    assert TrainingOptions(precision=3, planes=8).stored == 8
