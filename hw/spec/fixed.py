"""Fixed-point formats, of which every number between parts of the design has one.

Integers are exact between the rounding points of :mod:`p4sgd.hw.spec.run`. The rule is half up, ``floor(x + 1/2)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]  # integers of the formats below, which hold all sums of the design
WeightArray = npt.NDArray[np.int32]  # integers of `WEIGHT`, which 32 bits hold: a model may have many millions
ByteArray = npt.NDArray[np.uint8]  # bytes of memory, and features of up to `MAX_PRECISION` bits

EngineWeights: TypeAlias = Sequence[WeightArray] | WeightArray
"""Weights of a worker as its memories have them (:mod:`p4sgd.hw.spec.image`): int32 (C · lanes,) for each engine."""


def round_half_up(value: IntArray, shift: int) -> IntArray:
    """Divide by ``2**shift``, 0 to 62 or ValueError, and round half up; ``value + 2**(shift-1)`` must fit 64 bits."""
    if not 0 <= shift <= 62:
        raise ValueError(f"shift must be 0 to 62, not {shift}")
    return (value + ((1 << shift) >> 1)) >> shift


@dataclass(frozen=True)
class Fixed:
    """A fixed-point format, whose integer ``i`` stands for ``i * 2**-fraction``."""

    width: int  # 1 to 63 bits
    fraction: int  # may exceed them
    signed: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 63:
            raise ValueError(f"width must be 1 to 63 bits, not {self.width}")

    @property
    def minimum(self) -> int:
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def maximum(self) -> int:
        return (1 << (self.width - int(self.signed))) - 1

    @property
    def one(self) -> int:
        """The integer that stands for 1; the format may be too narrow to have it."""
        return 1 << self.fraction

    @property
    def ulp(self) -> float:
        """The real number that the integer 1 stands for."""
        return 2.0**-self.fraction

    def saturate(self, value: IntArray) -> IntArray:
        """Clamp integers to the format's range."""
        return np.clip(value, self.minimum, self.maximum)

    def overflows(self, value: IntArray | WeightArray) -> bool:
        """Whether `saturate` would change any integer."""
        return bool(np.any((value < self.minimum) | (value > self.maximum)))

    def from_real(self, value: npt.ArrayLike) -> IntArray:
        """Nearest integers of the format (halves up), saturated; float64 in, int64 out, same shape; no NaN."""
        real = np.asarray(value, dtype=np.float64)
        if np.isnan(real).any():
            raise ValueError(f"NaN has no {self} representation")
        scaled = np.floor(np.ldexp(real, self.fraction) + 0.5)
        return np.clip(scaled, self.minimum, self.maximum).astype(np.int64)

    def to_real(self, value: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The real numbers that integers of the format stand for; exact for widths up to 53 bits."""
        real: npt.NDArray[np.float64] = np.ldexp(value, -self.fraction, dtype=np.float64)  # of millions, without a copy
        return real

    def __str__(self) -> str:
        return f"{'s' if self.signed else 'u'}{self.width}.{self.fraction}"

    def describe(self) -> dict[str, Any]:
        """The format as plain data for generated documents."""
        return {"width": self.width, "fraction": self.fraction, "signed": self.signed}


MAX_PRECISION = 8  # maximum number of planes, that is of bits, of a feature
WEIGHT = Fixed(32, 23)  # a weight, ±256 in steps of 1.2e-7; updates saturate and set a sticky flag
ACTIVATION = Fixed(32, 16)  # a partial or whole activation z as it travels in a packet
ROUND_1_SHIFT = WEIGHT.fraction - ACTIVATION.fraction  # fraction bits that Round 1 drops besides a feature's: 7
LABEL = Fixed(32, 16)  # a label as the memory image holds it; aligned with `ACTIVATION`
MARGIN = Fixed(27, 16)  # argument of the loss table, s·z − o, saturated to ±1024: the wide port of a DSP48E2 (UG579)
SLOPE = Fixed(18, 10)  # slope of a table segment: the narrow port of a DSP48E2 multiplier (UG579)
INTERCEPT = Fixed(32, 16)  # value of a table segment's line at argument zero
RESIDUAL = Fixed(24, 16)  # residual g = s·ψ(s·z − o) − c after Round 2, saturated to ±128
RATE_MANTISSA = Fixed(8, 0, signed=False)  # mantissa of η = (learning rate / mini-batch size) = mantissa · 2^-exponent
IMPORTANCE = Fixed(17, 16, signed=False)  # weight of a sample, at most 1: its part of the largest of the run
FACTOR = Fixed(17, 9, signed=False)  # importance · mantissa: the narrow port of a DSP48E2, which is signed
DELTA = Fixed(RESIDUAL.width + RATE_MANTISSA.width, RESIDUAL.fraction)  # δ = g · factor, exact for importance 1
SHRINK = Fixed(18, 24, signed=False)  # L2 factor κ = learning rate · λ of a mini-batch, below 2^-6, in steps of 6e-8
