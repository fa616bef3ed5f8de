"""Options are checked in one place, and a message names what is wrong."""

import json
import re

import numpy as np
import pytest

from p4sgd.host.errors import UserError, in_python, option
from p4sgd.host.training.options import TrainingOptions, declarations
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import MAX_PRECISION
from p4sgd.hw.spec.run import MAX_WORKERS

WRONG = [
    ({"loss": "cubic"}, "there is no loss 'cubic'.*logistic"),
    ({"loss": "huber", "epsilon": 0.0}, "--epsilon .*more than 0, not 0"),
    ({"loss": "epsilon_insensitive", "epsilon": -1.0}, "--epsilon .*at least 0, not -1"),
    ({"loss": "huber", "epsilon": float("inf")}, "--epsilon .*finite.* inf"),
    ({"loss": "squared", "epsilon": 1.0}, "--epsilon has no effect .*squared: choose huber or epsilon_insensitive"),
    ({"loss": "quantile", "quantile": 1.0}, "--quantile .*below 1, not 1"),
    ({"loss": "quantile", "quantile": 0.0}, "--quantile .*more than 0, not 0"),
    ({"quantile": 0.9}, "--quantile has no effect .*logistic: choose quantile"),
    ({"loss": "tweedie", "tweedie_power": 1.0}, "--tweedie-power .*more than 1, not 1"),
    ({"loss": "tweedie", "tweedie_power": 2.0}, "--tweedie-power .*below 2, not 2"),
    ({"loss": "poisson", "tweedie_power": 1.5}, "--tweedie-power has no effect .*poisson: choose tweedie"),
    ({"loss": "squared", "class_weight": "balanced"}, "--class-weight has no effect on the loss squared"),
    ({"schedule": "warm"}, "--schedule .*constant, invscaling, adaptive, not 'warm'"),
    ({"scaling": "best"}, "--scaling .*auto, standard, robust, minmax, maxabs, none, not 'best'"),
    ({"missing": "zero"}, "--missing .*error, mean, indicator, not 'zero'"),
    ({"precondition": "full"}, "--precondition .*none, block, not 'full'"),
    ({"parallel": "both"}, "--parallel .*model, data, not 'both'"),
    ({"shares": "all"}, "--shares .*fixed, auto, not 'all'"),
    ({"skip_zeros": "no"}, "--skip-zeros .*auto, never, always, not 'no'"),
    ({"on_loss": "cry"}, "--on-loss .*adopt, stop, not 'cry'"),
    ({"split": "0"}, "--split .*auto or none or a number of columns, at least 1, not '0'"),
    ({"merge": "0"}, "--merge .*auto or a number of micro-batches, at least 1, not '0'"),
    ({"merge": "none"}, "--merge .*auto or a number of micro-batches, at least 1, not 'none'"),
    ({"epochs": 0}, "--epochs .*at least 1, not 0"),
    ({"batch": 0}, "--batch .*at least 8, not 0"),
    ({"batch": 20}, "--batch .*multiple of 8, not 20: .*16 or 24"),
    ({"batch": 1 << 20}, "--batch .*8 to 524280"),
    ({"precision": 0}, "--precision .*at least 1, not 0"),
    ({"precision": 9}, "--precision .*at most 8, not 9"),
    ({"planes": 9}, "--planes .*at most 8, not 9"),
    ({"unit": 12}, "--unit must be one of 8, 16, 32, 64, not 12"),
    ({"unit": 8.0}, "--unit must be one of 8, 16, 32, 64, not 8.0"),
    ({"precision": 5, "planes": 4}, "--precision .*4 stored planes, not 5"),
    ({"learning_rate": 0.0}, "--lr .*more than 0, not 0"),
    ({"learning_rate": float("nan")}, "--lr .*finite.* nan"),
    ({"power": -1.0, "schedule": "invscaling"}, "--power .*at least 0, not -1"),
    ({"l2": -1.0}, "--l2 .*at least 0, not -1"),
    ({"l1": float("inf")}, "--l1 .*finite.* inf"),
    ({"alpha": -1.0}, "--alpha .*at least 0, not -1"),
    ({"alpha": 1.0, "l1_ratio": 1.5}, "--l1-ratio .*at most 1, not 1.5"),
    ({"alpha": 1.0, "l1_ratio": -0.5}, "--l1-ratio .*at least 0, not -0.5"),
    ({"l1_ratio": 0.5}, "--l1-ratio has no effect without --alpha.*--l1"),
    ({"alpha": 1.0, "l2": 0.1}, "--alpha stands for --l2 and --l1: leave --l2 out"),
    ({"alpha": 0.0, "l1": 0.1, "l1_ratio": 0.5}, "--alpha stands for --l2 and --l1: leave --l1 out"),
    ({"validation_fraction": 1.0}, "--validation-fraction .*below 1, not 1"),
    ({"validation_fraction": -0.1}, r"--validation-fraction .*at least 0, not -0\.1"),
    ({"tolerance": 1.0}, "--tolerance .*below 1, not 1"),
    ({"patience": 0}, "--patience .*at least 1, not 0"),
    ({"power": 0.7, "schedule": "constant"}, "--power has no effect.* constant.* invscaling"),
    ({"power": 0.7, "schedule": "adaptive"}, "--power has no effect.* adaptive"),
    ({"tolerance": 0.1, "schedule": "constant"}, "--tolerance has no effect.* --patience .*adaptive"),
    ({"precondition": "block", "damping": -0.1}, r"--damping .*at least 0, not -0\.1"),
    ({"precondition": "block", "damping": 1000.0}, "--damping .*below 1000, not 1000"),
    ({"damping": 0.1}, "--damping has no effect.*--precondition block"),
    ({"precondition": "block", "scaling": "maxabs"}, "--scaling maxabs .*--precondition block"),
    ({"precondition": "block", "l1": 0.1}, "--l1 .*--precondition block"),
    ({"precondition": "block", "alpha": 0.1, "l1_ratio": 0.1}, "--l1 .*--precondition block"),
    ({"workers": 0}, "--workers .*at least 1, not 0"),
    ({"workers": 33}, "--workers .*at most 32, not 33"),
    ({"staleness": 2}, "--staleness .*at most 1, not 2"),
    ({"seed": -1}, "--seed .*at least 0, not -1"),
    ({"workers": 10**400}, "--workers .*at most 32, not 10{400}$"),
    ({"workers": np.int64(33)}, "--workers .*at most 32, not 33$"),
    ({"l2": np.float32("nan")}, "--l2 .*finite.* nan"),
    ({"epochs": "3"}, "--epochs must be a number, not '3'"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_wrong(values, message):
    with pytest.raises(UserError) as caught:
        TrainingOptions(**values)
    assert re.match(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_messages_are_in_the_words_of_who_speaks():
    with in_python(), pytest.raises(UserError) as caught:
        TrainingOptions(damping=0.1)
    assert str(caught.value).startswith("damping has no effect without precondition='block': ")
    assert (option("bias", False), option("learning_rate", 0.5), option("header")) == (
        "--no-bias",
        "--lr 0.5",
        "--header/--no-header",
    )


def test_ranges_are_those_of_the_hardware():
    declared = declarations()
    assert (declared["precision"].most, declared["planes"].most) == (MAX_PRECISION, MAX_PRECISION)
    assert (declared["workers"].most, declared["batch"].least) == (MAX_WORKERS, BANKS)


def test_options_that_have_an_effect():
    TrainingOptions(epochs=np.int64(3), l2=np.float32(0.1), seed=10**400)
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
        UserError, match=r"^d.csv: --epsilon .* out of range .* deviation of 77: choose 0.00117 to 7.7e\+04$"
    ):
        TrainingOptions(loss=name, epsilon=epsilon).loss_for(77.0, "d.csv")


def test_defaults_are_plain_data():
    options = TrainingOptions()
    assert TrainingOptions(**json.loads(json.dumps(options.to_json()))) == options


def test_as_many_planes_as_are_read():
    assert TrainingOptions(precision=3).stored == 3
    assert TrainingOptions(precision=3, planes=8).stored == 8
