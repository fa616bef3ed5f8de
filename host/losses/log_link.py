"""What losses with a logarithmic link share: predictions are e^z, and the exponential in residuals is limited."""

from abc import abstractmethod

import numpy as np

from p4sgd.host.losses.loss import FloatArray, Loss

__all__ = ["LIMIT", "LogLink", "antiderivative", "limited_exp"]


LIMIT = 4.0
"""Exponents count as at most this number in residuals. A power of two, so that the tables bend where two lines meet."""


def limited_exp(x: FloatArray) -> FloatArray:
    """e^x, but at most e^`LIMIT` = 54.6."""
    return np.exp(np.minimum(x, LIMIT))


def antiderivative(x: FloatArray) -> FloatArray:
    """An antiderivative of `limited_exp`: e^x, continued by its tangent beyond `LIMIT`."""
    return limited_exp(x) * (1.0 + np.maximum(x - LIMIT, 0.0))


class LogLink(Loss):
    """Half the deviance of numbers of which e^z, times the scale of the labels, is predicted."""

    power: float
    """Power of the mean that the variance of its Tweedie distribution grows with: 1 to 2."""

    @abstractmethod
    def deviance(self, target: FloatArray, predicted: FloatArray) -> FloatArray:
        """The deviance of each sample, in the unit of the target; float64, same shape."""
