"""Estimators for those who are used to scikit-learn: data are arrays, and options are parameters of the constructor.

A fit is a training run like that of ``p4sgd train`` with the same options and data, and ends with the same weights.
"""

import os
from pathlib import Path

from sklearn.utils.validation import check_is_fitted

from p4sgd.host.estimators.classifier import GLMClassifier
from p4sgd.host.estimators.parameters import value_errors
from p4sgd.host.estimators.regressor import GLMRegressor
from p4sgd.host.losses import Task
from p4sgd.host.run.checks import check_absent, check_replaces
from p4sgd.host.training import model_file

__all__ = ["GLMClassifier", "GLMRegressor", "load_model", "save_model"]


def save_model(
    estimator: GLMClassifier | GLMRegressor, path: str | os.PathLike[str], *, overwrite: bool = False
) -> None:
    """Write a fitted estimator to a model file, which ``p4sgd predict`` and ``p4sgd evaluate`` take.

    Raises `ValueError` if the file cannot be written, or exists and is no model, or is one without ``overwrite``.
    """
    check_is_fitted(estimator, "model_")
    with value_errors():
        check_replaces(Path(path), model_file.is_model_file, "model file")
        check_absent(Path(path), overwrite=overwrite)
        model_file.save_model(estimator.model_, Path(path))


def load_model(path: str | os.PathLike[str]) -> GLMClassifier | GLMRegressor:
    """Read a model file, such as ``p4sgd train --out`` writes; `ValueError` if it cannot be read or is none.

    The estimator predicts what ``p4sgd predict`` does, and has the options of its training as parameters. Its
    `partial_fit` and ``warm_start`` go on from the weights, with a learning rate that is searched for anew.
    """
    with value_errors():
        model = model_file.load_model(Path(path))
    estimator = GLMClassifier() if model.labels.task is Task.CLASSIFICATION else GLMRegressor()
    estimator._load(model)
    return estimator
