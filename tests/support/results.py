"""Results of training, compared bit for bit."""

import numpy as np


def assert_same(one, other, *without):
    """That two results are the same but for times and counters, and for the fields ``without``."""
    if hasattr(one, "rows"):
        assert one.names == other.names
        for mine, theirs in zip(one.rows, other.rows, strict=True):
            assert_same(mine, theirs, *without)
        assert repr(one.metrics) == repr(other.metrics)
        assert one.model.softmax == other.model.softmax
        return
    for name in ("weights", "coefficients", "slope", "offset"):
        assert np.array_equal(getattr(one.model, name), getattr(other.model, name)), name
    for name in ("intercept", "loss", "loss_parameters", "labels", "features", "space"):
        assert getattr(one.model, name) == getattr(other.model, name), name
    assert history(one) == history(other)
    for name in {"metrics", "best_epoch", "monitored", "stopped", "remarks", "more_epochs"} - set(without):
        assert repr(getattr(one, name)) == repr(getattr(other, name)), name  # NaN is as NaN
    if "activations" not in without:
        assert one.activations.keys() == other.activations.keys()
        for name, arrays in one.activations.items():
            assert all(map(np.array_equal, arrays, other.activations[name])), name


def history(result):
    """What epochs have but for times and counters, as text."""
    return [repr((each.epoch, each.learning_rate, each.metrics, each.flags)) for each in result.history]
