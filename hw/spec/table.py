"""The loss table: a piecewise-linear function that the host loads into a worker.

The argument x is a `MARGIN` integer. ``index = clamp((x >> shift) + segments/2, 0, segments - 1)``, so the table covers
``segments`` equal segments of ``2**shift`` steps around zero, and the first and last segment's lines go on outside.
The value is ``slope[index] · x + intercept[index] · 2**SLOPE.fraction``: exact, with `VALUE_FRACTION` fraction bits.
"""

from dataclasses import dataclass

import numpy as np

from p4sgd.hw.spec.fixed import INTERCEPT, MARGIN, SLOPE, IntArray

__all__ = ["MAX_SHIFT", "VALUE_FRACTION", "LossTable"]

VALUE_FRACTION = MARGIN.fraction + SLOPE.fraction
"""Fraction bits of a table value before Round 2."""

MAX_SHIFT = 31
"""Largest `LossTable.shift`."""


@dataclass(frozen=True)
class LossTable:
    """Contents of the loss table.

    Parameters
    ----------
    shift
        log2 of a segment's width in `MARGIN` steps, 0 to `MAX_SHIFT`.
    slope
        int64 array of `SLOPE` integers, one a segment.
    intercept
        int64 array of `INTERCEPT` integers, same length.

    Raises
    ------
    ValueError
        If the arrays differ in length or a number does not fit its format.
    """

    shift: int
    slope: IntArray
    intercept: IntArray

    def __post_init__(self) -> None:
        if not 0 <= self.shift <= MAX_SHIFT:
            raise ValueError(f"shift must be 0 to {MAX_SHIFT}, not {self.shift}")
        if self.slope.ndim != 1 or self.slope.shape != self.intercept.shape:
            raise ValueError(f"slope {self.slope.shape} and intercept {self.intercept.shape} must be equally long")
        if SLOPE.overflows(self.slope) or INTERCEPT.overflows(self.intercept):
            raise ValueError(f"slopes must fit {SLOPE} and intercepts {INTERCEPT}")

    @property
    def segments(self) -> int:
        """Number of segments."""
        return int(self.slope.shape[0])

    def __call__(self, x: IntArray) -> IntArray:
        """The table's value at `MARGIN` integers; int64 with `VALUE_FRACTION` fraction bits, same shape."""
        index = np.clip((x >> self.shift) + self.segments // 2, 0, self.segments - 1)
        value: IntArray = self.slope[index] * x + (self.intercept[index] << SLOPE.fraction)
        return value
