"""Weights of samples: how much each counts in means, real for the host, `IMPORTANCE` integers for the hardware."""

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError
from p4sgd.hw.spec.fixed import IMPORTANCE, IntArray

FloatArray = npt.NDArray[np.float64]


def check_weights(weights: FloatArray, name: str) -> None:
    """Refuse weights of samples, float64 (samples,), that are NaN, infinite or negative; ``name`` is their source."""
    strange = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if strange.size:
        place = strange[0]
        problem = f"the weight of sample {place + 1} is {weights[place]:g}"
        raise UserError(f"{name}: {problem}: it must be finite and at least 0")


def counting(weights: FloatArray | None, samples: int, name: str) -> npt.NDArray[np.intp]:
    """Indices of the samples whose weight is not 0, of so many samples; `UserError` if there are none."""
    if weights is None:
        return np.arange(samples)
    places = np.flatnonzero(weights)
    if not places.size:
        raise none_counts(name)
    return places


def none_counts(name: str) -> UserError:
    """The error of samples that all have the weight 0."""
    return UserError(f"{name}: the weights of all samples are 0, so that none counts")


def average(values: FloatArray | npt.NDArray[np.bool_], weights: FloatArray | None) -> float:
    """The weighted mean of values, (samples,). One of weight 0 does not count, even if it is NaN or infinite."""
    if weights is None:
        return float(np.mean(values))
    counted = weights > 0
    return float(np.average(values[counted].astype(np.float64), weights=weights[counted]))


def relative(weights: FloatArray | None, name: str) -> FloatArray | None:
    """Weights divided by the largest: float64 (samples,). ``None`` if all are equal, which is as good as none.

    Raises `UserError` if all are 0.
    """
    if weights is None:
        return None
    largest = float(weights.max())
    if largest == 0:
        raise none_counts(name)
    return None if weights.min() == largest else weights / largest


def importances(weights: FloatArray | None) -> IntArray | None:
    """`IMPORTANCE` integers of weights from `relative`, rounded; ``None`` if there are none."""
    return None if weights is None else IMPORTANCE.from_real(weights)
