"""Estimators for those who are used to scikit-learn: data are arrays, and options are parameters of the constructor.

A fit is a training run like that of ``p4sgd train`` with the same options and data, and ends with the same weights.
"""

from p4sgd.host.estimators.classifier import GLMClassifier
from p4sgd.host.estimators.persistence import load_model, save_model
from p4sgd.host.estimators.regressor import GLMRegressor

__all__ = ["GLMClassifier", "GLMRegressor", "load_model", "save_model"]
