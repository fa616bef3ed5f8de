"""Samples that are held out: they stay as they are, in arrays that can be mapped."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data.dataset import Features
from p4sgd.host.prepared.array_file import open_array_file
from p4sgd.host.prepared.files import VALIDATION, VALIDATION_SPARSE

__all__ = ["write_held_out"]


def write_held_out(
    folder: Path, features: Features, shape: tuple[int, int], *, first: int, stored: int, written: int
) -> None:
    """Write some of the samples.

    Parameters
    ----------
    folder
        Where to.
    features
        The samples.
    shape
        Of all samples that are held out.
    first
        How many of them came before.
    stored
        Values that all of them store.
    written
        Values that those before store.
    """
    samples, columns = shape
    if isinstance(features, np.ndarray):
        with open_array_file(folder / f"{VALIDATION}.npy", features.dtype.str, shape, first * columns) as file:
            file.append(features)
        return
    pointers = features.indptr.astype(np.int64) + written
    parts: tuple[tuple[npt.NDArray[Any], str, int, int], ...] = (
        (features.data, features.data.dtype.str, stored, written),
        (features.indices, "<i4", stored, written),
        (pointers[1:] if first else pointers, "<i8", samples + 1, first + 1 if first else 0),
    )
    for name, (values, dtype, size, before) in zip(VALIDATION_SPARSE, parts, strict=True):
        with open_array_file(folder / f"{name}.npy", dtype, (size,), before) as file:
            file.append(values)
