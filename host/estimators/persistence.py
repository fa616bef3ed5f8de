"""Estimators in model files, which the command line writes and takes, too."""

import os
from pathlib import Path

from sklearn.utils.validation import check_is_fitted

from p4sgd.host.estimators.classifier import GLMClassifier
from p4sgd.host.estimators.parameters import value_errors
from p4sgd.host.estimators.regressor import GLMRegressor
from p4sgd.host.losses import Task
from p4sgd.host.run.checks import check_absent, check_replaces
from p4sgd.host.training import model_file


def save_model(
    estimator: GLMClassifier | GLMRegressor, path: str | os.PathLike[str], *, overwrite: bool = False
) -> None:
    """Write a model file, which ``p4sgd predict`` and ``p4sgd evaluate`` take.

    Parameters
    ----------
    estimator
        A fitted estimator.
    path
        The file.
    overwrite
        Whether it may replace a model, as with ``p4sgd train --overwrite``.

    Raises
    ------
    ValueError
        If the file exists and is not to be replaced, or is no model, or if it cannot be written.
    """
    check_is_fitted(estimator, "model_")
    with value_errors():
        check_replaces(Path(path), model_file.is_model_file, "model file")
        check_absent(Path(path), overwrite=overwrite)
        model_file.save_model(estimator.model_, Path(path))


def load_model(path: str | os.PathLike[str]) -> GLMClassifier | GLMRegressor:
    """Read a model file, such as ``p4sgd train --out`` writes.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    An estimator that predicts what ``p4sgd predict`` does, with the options of its training as parameters. Its
    `partial_fit` and ``warm_start`` go on from the weights, with a learning rate that is searched for anew.

    Raises
    ------
    ValueError
        If it cannot be read or is no model file.
    """
    with value_errors():
        model = model_file.load_model(Path(path))
    estimator = GLMClassifier() if model.labels.task is Task.CLASSIFICATION else GLMRegressor()
    estimator._load(model)
    return estimator
