"""The scaling of features in a model file, kept to the bit, from which training on other samples continues."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Scaling
from p4sgd.host.data.scaling import KINDS
from p4sgd.host.precondition import BLOCK, Whitening

__all__ = ["scaling_facts", "scaling_of", "scaling_tensors"]

_WHITENING = ("matrix", "exponent", "centre")


def scaling_tensors(fitted: Scaling | Whitening) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a scaling by their names in a file. Columns that are all the same become one number."""
    grid = fitted.scaling if isinstance(fitted, Whitening) else fitted
    tensors: dict[str, npt.NDArray[Any]] = {
        f"scaling_{name}": values[:1] if (values == values[0]).all() else values
        for name, values in (("offset", grid.offset), ("scale", grid.scale))
    }
    if isinstance(fitted, Whitening):
        tensors |= {f"whitening_{name}": getattr(fitted, name) for name in _WHITENING}
    return tensors


def scaling_facts(fitted: Scaling | Whitening) -> dict[str, Any]:
    """All else about a scaling, as plain data."""
    grid = fitted.scaling if isinstance(fitted, Whitening) else fitted
    return {"kind": grid.kind, "signed": fitted.signed, "keeps_zeros": grid.heat is not None}


def scaling_of(tensors: Mapping[str, npt.NDArray[Any]], facts: Any, features: int) -> Scaling | Whitening:
    """The scaling of so many features that `scaling_tensors` and `scaling_facts` were of. Its heat is not known.

    Raises `KeyError`, `TypeError` or `ValueError` if something is missing or does not fit together.
    """
    kind, signed, keeps_zeros = facts["kind"], facts["signed"], facts["keeps_zeros"]
    if kind not in KINDS or not isinstance(signed, bool) or not isinstance(keeps_zeros, bool):
        raise ValueError(f"there is no such scaling: {facts}")
    offset, scale = (
        np.broadcast_to(tensors[f"scaling_{name}"].astype(np.float64), features) for name in ("offset", "scale")
    )
    if not (np.isfinite(offset).all() and np.isfinite(scale).all()):
        raise ValueError("the scaling must be finite")
    heat = np.broadcast_to(np.int32(0), features) if keeps_zeros else None
    if "whitening_matrix" not in tensors:
        return Scaling(kind, offset, scale, signed, heat=heat)
    matrix, exponent, centre = (tensors[f"whitening_{name}"] for name in _WHITENING)
    if matrix.shape != (features, BLOCK) or exponent.shape != (features,) or centre.shape != (features,):
        raise ValueError(f"a whitening of shape {matrix.shape} for {features} features")
    grid = Scaling(kind, offset, scale, signed=True)
    return Whitening(grid, centre.astype(np.int64), matrix.astype(np.int32), exponent.astype(np.int64), signed)
