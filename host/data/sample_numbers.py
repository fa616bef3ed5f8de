"""Numbers of samples beside their features: weights, how much each counts in means, and offsets, known addends of their
activations, such as the logarithms of exposures."""

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError
from p4sgd.hw.spec.fixed import IMPORTANCE, IntArray

FloatArray = npt.NDArray[np.float64]


WEIGHT = "weight"
OFFSET, EXPOSURE = OFFSETS = ("offset", "exposure")
"""Kinds of offsets: these themselves, or what they are the logarithms of."""

ROLES = (WEIGHT, *OFFSETS)
"""What a number of a sample may be."""

RULES = {WEIGHT: "at least 0", OFFSET: "finite", EXPOSURE: "above 0"}
"""What numbers must be, which are finite in any case."""

FARTHEST = 300.0
"""Offsets of a logarithmic link are at most this number in magnitude, so that e^±offset and its square are finite."""


def suits(values: FloatArray, role: str) -> npt.NDArray[np.bool_]:
    """Which numbers, float64 (samples,), may have a role, one of `ROLES`."""
    finite = np.isfinite(values)
    return finite if role == OFFSET else finite & (values > 0 if role == EXPOSURE else values >= 0)


def check_numbers(values: FloatArray, role: str, name: str) -> FloatArray:
    """Numbers of samples, float64 (samples,), as they are; `UserError`, with the ``name`` of their source, if they do
    not suit their role."""
    strange = np.flatnonzero(~suits(values, role))
    if strange.size:
        place = strange[0]
        must = "finite" if role == OFFSET else f"finite and {RULES[role]}"
        raise UserError(f"{name}: the {role} of sample {place + 1} is {values[place]:g}: it must be {must}")
    return values


def offsets_of(values: FloatArray, kind: str, name: str) -> FloatArray:
    """Offsets of what is given of a kind, one of `OFFSETS`; `UserError` as `check_numbers`."""
    checked = check_numbers(values, kind, name)
    return np.log(checked) if kind == EXPOSURE else checked


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
