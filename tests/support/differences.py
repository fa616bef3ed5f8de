"""The first difference between what a design computed and what an exact model says, by its place."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from p4sgd.hw.spec.config import BANKS


def assert_same(stage: str, got: npt.ArrayLike, expected: npt.ArrayLike, *axes: str | Sequence[str]) -> None:
    """Compare integers of a stage of the datapath, such as ``gradient``; a failure names the first that differs.

    ``axes`` say what the indices count, or name what is at each index. A ``sample`` is shown with its micro-batch and
    bank.
    """
    mine, its = np.asarray(got, np.int64), np.asarray(expected, np.int64)
    count = min(len(mine), len(its))
    different = np.argwhere(mine[:count] != its[:count])
    if different.size:
        first = tuple(different[0].tolist())
        value, wanted = int(mine[first]), int(its[first])
        raise AssertionError(
            f"{stage} of {', '.join(map(_place, axes, first))}: got {value}, expected {wanted} ({value - wanted:+d}); "
            f"{len(different)} of {its[:count].size} differ"
        )
    assert len(mine) == len(its), f"{stage}: {len(mine)} of {len(its)} came, all right so far"


def _place(axis: str | Sequence[str], index: int) -> str:
    if not isinstance(axis, str):
        return axis[index]
    return f"{axis} {index}" + (f" (micro-batch {index // BANKS}, bank {index % BANKS})" if axis == "sample" else "")
