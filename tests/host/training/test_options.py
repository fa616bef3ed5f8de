"""Options are checked in one place, and a message names what is wrong."""

import json
import re

import numpy as np
import pytest

from p4sgd.host.errors import UserError, in_python, option
from p4sgd.host.training.options import TrainingOptions, declarations
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import MAX_PRECISION
from p4sgd.hw.spec.run import MOST_WORKERS

RANGES = [
    ("epochs", {}, [1, np.int64(3)], [0, "3"]),
    ("batch", {}, [8, 524280], [0, 20, 524288]),
    ("precision", {}, [1, 8], [0, 9]),
    ("planes", {}, [8], [0, 9]),
    ("unit", {}, [8, 16, 32, 64], [12, 8.0]),
    ("workers", {}, [1, 992], [0, 993, np.int64(993)]),
    ("staleness", {}, [0, 1], [-1, 2]),
    ("seed", {}, [0, 10**400], [-1]),
    ("learning_rate", {}, [1e-9], [0.0, float("nan")]),
    ("l2", {}, [0.0, np.float32(0.1)], [-1.0, np.float32("nan")]),
    ("l1", {}, [0.0], [-1.0, float("inf")]),
    ("alpha", {}, [0.0], [-1.0]),
    ("l1_ratio", {"alpha": 1.0}, [0.0, 1.0], [-0.5, 1.5]),
    ("validation_fraction", {}, [0.0, 0.99], [-0.1, 1.0]),
    ("patience", {}, [1], [0]),
    ("tolerance", {}, [0.0, 0.99], [-0.1, 1.0]),
    ("power", {"schedule": "invscaling"}, [0.0, 7.0], [-1.0]),
    ("damping", {"precondition": "block"}, [0.0, 999.0], [-0.1, 1000.0]),
    ("epsilon", {"loss": "huber"}, [1e-9], [0.0, float("inf")]),
    ("epsilon", {"loss": "epsilon_insensitive"}, [0.0], [-1.0]),
    ("quantile", {"loss": "quantile"}, [0.1], [0.0, 1.0]),
    ("tweedie_power", {"loss": "tweedie"}, [1.1], [1.0, 2.0]),
    ("split", {}, ["auto", "none", 1, "7"], ["0", "some"]),
    ("merge", {}, ["auto", 1, "7"], ["0", "none"]),
    ("schedule", {}, ["constant", "invscaling", "adaptive"], ["warm"]),
    ("scaling", {}, ["auto", "standard", "robust", "minmax", "maxabs", "none"], ["best"]),
    ("missing", {}, ["error", "mean", "indicator"], ["zero"]),
    ("precondition", {}, ["none", "block"], ["full"]),
    ("parallel", {}, ["model", "data"], ["both"]),
    ("shares", {}, ["fixed", "auto"], ["all"]),
    ("skip_zeros", {}, ["auto", "never", "always"], ["no"]),
    ("on_loss", {}, ["adopt", "stop"], ["cry"]),
]


@pytest.mark.parametrize(("name", "others", "allowed", "refused"), RANGES)
def test_ranges(name, others, allowed, refused):
    for value in allowed:
        TrainingOptions(**others, **{name: value})
    for value in refused:
        with pytest.raises(UserError, match=f"^{option(name)} must be ") as caught:
            TrainingOptions(**others, **{name: value})
        assert str(value).removesuffix(".0") in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": "cubic"}, "there is no loss 'cubic'.*logistic"),
        ({"loss": "squared", "epsilon": 1.0}, "--epsilon has no effect .*squared: choose huber or epsilon_insensitive"),
        ({"quantile": 0.9}, "--quantile has no effect .*logistic: choose quantile"),
        ({"loss": "poisson", "tweedie_power": 1.5}, "--tweedie-power has no effect .*poisson: choose tweedie"),
        ({"loss": "squared", "class_weight": "balanced"}, "--class-weight has no effect on the loss squared"),
        ({"batch": 20}, "--batch .*multiple of 8, not 20: .*16 or 24"),
        ({"precision": 5, "planes": 4}, "--precision .*4 stored planes, not 5"),
        ({"l1_ratio": 0.5}, "--l1-ratio has no effect without --alpha.*--l1"),
        ({"alpha": 1.0, "l2": 0.1}, "--alpha stands for --l2 and --l1: leave --l2 out"),
        ({"alpha": 0.0, "l1": 0.1, "l1_ratio": 0.5}, "--alpha stands for --l2 and --l1: leave --l1 out"),
        ({"power": 0.7, "schedule": "adaptive"}, "--power has no effect.* adaptive.* invscaling"),
        ({"tolerance": 0.1, "schedule": "constant"}, "--tolerance has no effect.* --patience .*adaptive"),
        ({"damping": 0.1}, "--damping has no effect.*--precondition block"),
        ({"precondition": "block", "scaling": "maxabs"}, "--scaling maxabs .*--precondition block"),
        ({"precondition": "block", "l1": 0.1}, "--l1 .*--precondition block"),
        ({"precondition": "block", "alpha": 0.1, "l1_ratio": 0.1}, "--l1 .*--precondition block"),
        ({"workers": 10**400}, "--workers .*at most 992, not 10{400}$"),
    ],
)
def test_what_does_not_go_together(values, message):
    with pytest.raises(UserError) as caught:
        TrainingOptions(**values)
    assert re.match(message, str(caught.value)), str(caught.value)
    with in_python(), pytest.raises(UserError) as caught:
        TrainingOptions(**values)
    assert "--" not in str(caught.value)


def test_ranges_are_those_of_the_hardware():
    declared = declarations()
    assert (declared["precision"].most, declared["planes"].most) == (MAX_PRECISION, MAX_PRECISION)
    assert (declared["workers"].most, declared["batch"].least) == (MOST_WORKERS, BANKS)


def test_penalties():
    for options, penalties in (
        ({}, (None, 0.0)),  # the data decide
        *(({each: 0.0}, (0.0, 0.0)) for each in ("l2", "alpha")),
        ({"l1": 0.25}, (0.0, 0.25)),
        ({"loss": "squared"}, (0.0, 0.0)),
        ({"loss": "gamma"}, (None, 0.0)),
        ({"l2": 0.5, "l1": 0.25}, (0.5, 0.25)),
        ({"alpha": 0.5}, (0.5, 0.0)),
        ({"alpha": 0.5, "l1_ratio": 0.25}, (0.375, 0.125)),
        ({"alpha": 0.5, "l1_ratio": 0.0, "precondition": "block"}, (0.5, 0.0)),
    ):
        assert TrainingOptions(**options).penalties == penalties


def test_parameters_of_a_loss():
    for options, scale, parameters in (
        ({"loss": "logistic"}, 1.0, {}),
        ({"loss": "huber"}, 77.0, {"epsilon": 0.125}),
        ({"loss": "huber", "epsilon": 100.0}, 77.0, {"epsilon": pytest.approx(100 / 77, rel=0.008)}),
        ({"loss": "epsilon_insensitive", "epsilon": 1e-9}, 1.0, {"epsilon": 0.0}),
        ({"loss": "quantile"}, 77.0, {"quantile": 0.5}),
        ({"loss": "tweedie", "tweedie_power": 1.2}, 77.0, {"tweedie_power": 1.2}),
    ):
        loss = TrainingOptions(**options).loss_for(scale, "d.csv")
        assert (loss.name, loss.parameters) == (options["loss"], parameters)
    for name, epsilon in (("huber", 1e-5), ("huber", 1e6), ("epsilon_insensitive", 1e6)):
        says = r"^d.csv: --epsilon .* out of range .* deviation of 77: choose 0.00117 to 7.7e\+04$"
        with pytest.raises(UserError, match=says):
            TrainingOptions(loss=name, epsilon=epsilon).loss_for(77.0, "d.csv")


def test_defaults_are_plain_data():
    options = TrainingOptions(precision=3)
    assert TrainingOptions(**json.loads(json.dumps(options.to_json()))) == options
    assert (options.stored, TrainingOptions(precision=3, planes=8).stored) == (3, 8)
