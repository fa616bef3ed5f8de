"""What a worker is told before a run, and the arithmetic rules that follow from it.

What a worker is told before a run, and the arithmetic rules that follow from it.

A run is a pass over consecutive mini-batches of the memory image (an epoch, usually). Integers are exact, except at

- **Round 1**: partial activation, from the exact dot product to `ACTIVATION`, clamped so that the sum of all workers
  cannot wrap;
- **Round 2**: residual, from the exact table value to `RESIDUAL`;
- **Round 3**: weight update, from the exact gradient to `WEIGHT`, saturated; and, once a mini-batch, the L2 shrink.

The loss table: a piecewise-linear function that the host loads into a worker.

The argument x is a `MARGIN` integer. ``index = clamp((x >> shift) + segments/2, 0, segments - 1)``, so the table covers
``segments`` equal segments of ``2**shift`` steps around zero, and the first and last segment's lines go on outside.
The value is ``slope[index] · x + intercept[index] · 2**SLOPE.fraction``: exact, with `VALUE_FRACTION` fraction bits.

What a worker tells of its micro-batches as they pass: one-cycle pulses, and the stages that lie between them.

Every event comes once a micro-batch and in the order of the micro-batches, so the n-th pulse of each belongs to
micro-batch n; only ``mini_batch_begins`` comes once a mini-batch.
"""

from dataclasses import dataclass

import numpy as np

from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import (
    ACTIVATION,
    INTERCEPT,
    MARGIN,
    MAX_PRECISION,
    RATE_MANTISSA,
    RESIDUAL,
    SHRINK,
    SLOPE,
    WEIGHT,
    IntArray,
)

__all__ = [
    "COUNT_BITS",
    "ENGINE_EVENTS",
    "EVENTS",
    "MAX_GRADIENT_SHIFT",
    "MAX_MICRO_BATCHES",
    "MAX_SHIFT",
    "MAX_WORKERS",
    "STAGES",
    "VALUE_FRACTION",
    "FeatureFormat",
    "LabelMode",
    "LossTable",
    "RunSettings",
    "check_capacity",
    "partial_limit",
]


MAX_WORKERS = 32
"""Workers of a job: bits of the packet's bitmap."""

MAX_GRADIENT_SHIFT = 31
"""Largest right shift of Round 3 that the hardware has."""

MAX_MICRO_BATCHES = 65535
"""Most micro-batches of a mini-batch."""

COUNT_BITS = 40
"""Bits in which the hardware counts the chunks of each engine over a run."""


def partial_limit(workers: int) -> int:
    """Largest magnitude of a partial activation: ⌊(2^31 − 1) / workers⌋, so that the sum never wraps.

    Raises
    ------
    ValueError
        If ``workers`` is not 1 to `MAX_WORKERS`.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise ValueError(f"workers must be 1 to {MAX_WORKERS}, not {workers}")
    return ACTIVATION.maximum // workers


def check_capacity(config: WorkerConfig, chunks: int, precision: int, *, stale: bool = False) -> None:
    """Refuse what an engine has no room for.

    Parameters
    ----------
    config
        Configuration of the worker.
    chunks, precision, stale
        As in `RunSettings` and `FeatureFormat`.

    Raises
    ------
    ValueError
        If the model memory is too small, or if the lines of a micro-batch exceed the line FIFO: the backward pass
        starts only after the forward pass of its micro-batch is complete, so such a run would never end.
    """
    if chunks > config.chunks:
        raise ValueError(
            f"there are {chunks} chunks an engine, this configuration holds {config.chunks}: "
            f"use more workers or a larger configuration"
        )
    if stale and chunks > config.chunks // 2:
        raise ValueError(
            f"staleness keeps two versions of the weights: there are {chunks} chunks an engine, this configuration "
            f"holds {config.chunks // 2} of them twice: use more workers, a larger configuration or no staleness"
        )
    lines = chunks * precision
    if lines > config.line_fifo_depth:
        raise ValueError(
            f"a micro-batch has {lines} lines an engine ({chunks} chunks × precision {precision}), the line FIFO holds "
            f"{config.line_fifo_depth}: use more workers, a lower precision or a larger configuration"
        )


@dataclass(frozen=True)
class FeatureFormat:
    """How the features of an image are stored and how many of their planes a run reads.

    Parameters
    ----------
    stored
        Planes in the image (S), 1 to 8.
    precision
        Planes that the run reads (P), 1 to ``stored``: features are floored to their P most significant bits.
    signed
        Two's complement, a = q / 2^(P-1) in [−1, 1), the first plane counting negatively;
        else unsigned, a = q / 2^P in [0, 1).

    Raises
    ------
    ValueError
        If a number is outside its range.
    """

    stored: int
    precision: int
    signed: bool

    def __post_init__(self) -> None:
        if not 1 <= self.stored <= MAX_PRECISION:
            raise ValueError(f"stored planes must be 1 to {MAX_PRECISION}, not {self.stored}")
        if not 1 <= self.precision <= self.stored:
            raise ValueError(f"precision must be 1 to the {self.stored} stored planes, not {self.precision}")

    @property
    def fraction(self) -> int:
        """Fraction bits of a feature as the run reads it: P, or P − 1 when signed."""
        return self.precision - int(self.signed)

    @property
    def forward_shift(self) -> int:
        """Right shift of Round 1: fraction bits of weight and feature beyond those of an activation (7 to 15)."""
        return WEIGHT.fraction + self.fraction - ACTIVATION.fraction


@dataclass(frozen=True)
class LabelMode:
    """What the label y means in g = s·ψ(s·z − o) − c; each of s, o, c is neutral (1, 0, 0) unless taken from y.

    Parameters
    ----------
    sign
        s = −1 where y < 0 (logistic, hinge).
    offset
        o = y (Huber, quantile, squared).
    constant
        c = y (Poisson).
    """

    sign: bool = False
    offset: bool = False
    constant: bool = False


@dataclass(frozen=True)
class RunSettings:
    """Everything about a run that changes its arithmetic, except the loss table.

    Parameters
    ----------
    features
        Format of the features.
    chunks
        Chunks of each engine that the image has (C).
    micro_batches
        Micro-batches of a mini-batch: B / 8.
    mini_batches
        Mini-batches of the run.
    label_mode
        Meaning of the labels.
    rate_mantissa, rate_exponent
        η = learning rate / B = mantissa · 2^-exponent.
    shrink
        L2: κ as a `SHRINK` integer; after each mini-batch w −= round(κ·w).
    threshold
        L1: after each mini-batch |w| is lowered by this many `WEIGHT` steps, at most to 0.
    workers
        Workers of the job, for the clamp of Round 1.
    stale
        Bounded staleness of 1: the forward pass of mini-batch k reads the weights that mini-batch k − 1 read too, plus
        the update of mini-batch k − 2; so it need not wait for the update of mini-batch k − 1.

    Raises
    ------
    ValueError
        If a number is outside its range; the message says which range.
    """

    features: FeatureFormat
    chunks: int
    micro_batches: int
    mini_batches: int
    label_mode: LabelMode
    rate_mantissa: int
    rate_exponent: int
    shrink: int = 0
    threshold: int = 0
    workers: int = 1
    stale: bool = False

    def __post_init__(self) -> None:
        ranges = {
            "chunks": (1, 65536),
            "micro_batches": (1, MAX_MICRO_BATCHES),
            "mini_batches": (1, (1 << 32) - 1),
            "rate_mantissa": (0, RATE_MANTISSA.maximum),
            "gradient_shift": (0, MAX_GRADIENT_SHIFT),
            "shrink": (0, SHRINK.maximum),
            "threshold": (0, WEIGHT.maximum),
            "workers": (1, MAX_WORKERS),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")
        total = self.chunks * self.micro_batches * self.mini_batches
        if total >= 1 << COUNT_BITS:
            raise ValueError(
                f"a run of {self.mini_batches} mini-batches of {self.batch} samples with {self.chunks} chunks reads "
                f"{total} chunks an engine, the hardware counts to 2^{COUNT_BITS} - 1: use fewer mini-batches"
            )

    @property
    def batch(self) -> int:
        """Samples of a mini-batch (B)."""
        return BANKS * self.micro_batches

    @property
    def gradient_shift(self) -> int:
        """Right shift of Round 3: fraction bits of δ·q, with η's exponent, beyond those of a weight."""
        return RESIDUAL.fraction + self.rate_exponent + self.features.fraction - WEIGHT.fraction

    @property
    def partial_limit(self) -> int:
        """Largest magnitude of this run's partial activations."""
        return partial_limit(self.workers)

    def check_fits(self, config: WorkerConfig) -> None:
        """Refuse a run that a worker of this configuration cannot do; see `check_capacity`."""
        check_capacity(config, self.chunks, self.features.precision, stale=self.stale)


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


ENGINE_EVENTS = (
    "mini_batch_begins",
    "forward_begins",
    "forward_ends",
    "backward_begins",
    "backward_ends",
    "update_begins",
    "update_ends",
)
"""Of an engine: with ``forward_begins`` a mini-batch begins; the forward and the backward pass took the first and the
last line of a micro-batch; the first and the last chunk of the model were written."""

EVENTS = (*ENGINE_EVENTS, "partial_sent", "sums_came", "deltas_came")
"""Of a worker, whose engine 0 speaks for all: also, the endpoint took a partial, the loss unit took sums, deltas left
it. Number i is bit i of the worker's ``events``."""

STAGES = {
    "forward": ("forward_begins", "forward_ends"),
    "network": ("partial_sent", "sums_came"),
    "loss": ("sums_came", "deltas_came"),
    "backward": ("backward_begins", "backward_ends"),
    "update": ("update_begins", "update_ends"),
}
"""What a micro-batch goes through, each with its first and its last event. What lies between two stages is the way
from one to the other, or waiting."""
