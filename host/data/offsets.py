"""Offsets of samples: known addends of their activations, such as the logarithm of an exposure."""

import numpy as np
import numpy.typing as npt

from p4sgd.host.errors import UserError

FloatArray = npt.NDArray[np.float64]

OFFSET, EXPOSURE = KINDS = ("offset", "exposure")
"""What is given: the addends themselves, or numbers above 0 whose logarithms they are."""

FARTHEST = 300.0
"""Offsets of a logarithmic link are at most this number in magnitude, so that e^±offset and its square are finite."""


def suits(given: FloatArray, kind: str) -> npt.NDArray[np.bool_]:
    """Whether each number, float64 (samples,), may be of a kind: offsets are finite, and exposures above 0, too."""
    return np.isfinite(given) & (given > (0.0 if kind == EXPOSURE else -np.inf))


def offsets_of(given: FloatArray, kind: str, name: str) -> FloatArray:
    """Offsets of what is given, float64 (samples,); `UserError`, with the ``name`` of the source, if it is no such."""
    wrong = np.flatnonzero(~suits(given, kind))
    if wrong.size:
        must = "finite and above 0" if kind == EXPOSURE else "finite"
        raise UserError(f"{name}: the {kind} of sample {wrong[0] + 1} is {given[wrong[0]]:g}: it must be {must}")
    return np.log(given) if kind == EXPOSURE else given
