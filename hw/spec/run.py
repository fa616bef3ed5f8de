"""A run of a worker: its settings, the arithmetic rules that follow from them, its loss table and its events.

A run is a pass over consecutive mini-batches of the memory image, usually an epoch. Integers are exact, except at

- **Round 1**: the exact dot product of each unit to `ACTIVATION`. A worker's partial activation is the sum over its
  units, clamped so that the sum of all workers cannot overflow;
- **Round 2**: residual, from the exact table value to `RESIDUAL`. If samples have weights: their factors, to `FACTOR`,
  and the products of residuals and factors, to `DELTA`, neither of which rounds where the weight is 1;
- **Round 3**: weight update, from the exact gradient to `WEIGHT`, saturated; and, once a mini-batch, the L2 shrink.
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
    ROUND_1_SHIFT,
    SHRINK,
    SLOPE,
    WEIGHT,
    IntArray,
)

MAX_WORKERS = 32  # maximum number of workers of an aggregator's job: the packet's bitmap has a bit for each
MOST_WORKERS = MAX_WORKERS * (MAX_WORKERS - 1)  # of a run: those of racks, whose aggregators have a bit for a parent
MAX_GRADIENT_SHIFT = 31  # largest right shift of Round 3 in hardware
MAX_MICRO_BATCHES = 65535  # maximum number of micro-batches of a mini-batch
COUNT_BITS = 40  # bits of the hardware's counters of chunks in a run


UNITS = (8, 16, 32, 64)
"""Features of a unit: consecutive ones of the job, the bias last. Round 1 rounds units, each of which an engine has, so
weights do not depend on who has which."""

MAX_UNIT = UNITS[-1]  # a chunk of the widest worker, of 64 lanes; several chunks of others
UNIT_CHUNKS_BITS = 2  # bits of log2 of a unit's chunks: a unit of 64 features has 8 chunks of 8 lanes
_FEWEST_UNITS = 32  # units that `choose_unit` leaves at least, so that as many workers, or engines, get one each


def choose_unit(features: int) -> int:
    """Features of a unit for so many features, bias included: the most that leave at least 32 units, but at least 8."""
    return max((unit for unit in UNITS if -(-features // unit) >= _FEWEST_UNITS), default=UNITS[0])


def check_unit(unit: int) -> None:
    """Raise ValueError unless a unit may have so many features."""
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(map(str, UNITS))}, not {unit}")


def partial_limit(workers: int) -> int:
    """Largest magnitude of a partial activation, ⌊(2^31 − 1) / workers⌋, so that their sum cannot overflow.

    ``workers`` are those of all racks: sums of racks fit, too, and all clamp as with one aggregator. Of 32 workers each
    has ±1,024 as an activation, of 992 ±33.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"workers must be 1 to {MOST_WORKERS}, not {workers}")
    return ACTIVATION.maximum // workers


def most_chunks(config: WorkerConfig, precision: int, *, stale: bool = False) -> int:
    """The most chunks that pass `check_capacity`."""
    if config.sparse:
        return config.chunks
    return min(config.chunks // 2 if stale else config.chunks, config.line_fifo_depth // precision)


def check_capacity(
    config: WorkerConfig, chunks: int, precision: int, *, stale: bool = False, lines: int | None = None
) -> None:
    """Raise ValueError unless an engine has room for the weights and for the lines of a micro-batch, or would hang.

    ``lines`` are the most of a micro-batch on an engine, if the image has directories; else ``chunks · precision``.
    """
    if chunks > config.chunks:
        raise ValueError(
            f"there are {chunks} chunks an engine, this configuration holds {config.chunks}: use more workers or a "
            "larger configuration"
        )
    if config.sparse:
        return
    if stale and chunks > config.chunks // 2:
        raise ValueError(
            f"staleness keeps two versions of the weights: there are {chunks} chunks an engine, this configuration "
            f"holds {config.chunks // 2} of them twice: use more workers, a larger configuration or no staleness"
        )
    product = ""
    if lines is None:
        lines, product = chunks * precision, f" ({chunks} chunks × precision {precision})"
    if lines > config.line_fifo_depth:
        raise ValueError(
            f"a micro-batch has {lines} lines an engine{product}, the line FIFO holds {config.line_fifo_depth}: use "
            f"more workers, a lower precision or a larger configuration"
        )


@dataclass(frozen=True)
class FeatureFormat:
    """The format of features: how the image stores them, and how many of their planes a run reads."""

    stored: int  # planes in the image (S), 1 to 8
    precision: int  # planes that the run reads (P), 1 to `stored`: the most significant ones
    signed: bool  # two's complement, a = q / 2^(P-1) in [−1, 1); else unsigned, a = q / 2^P in [0, 1)

    def __post_init__(self) -> None:
        if not 1 <= self.stored <= MAX_PRECISION:
            raise ValueError(f"stored planes must be 1 to {MAX_PRECISION}, not {self.stored}")
        if not 1 <= self.precision <= self.stored:
            raise ValueError(f"precision must be 1 to the {self.stored} stored planes, not {self.precision}")

    @property
    def fraction(self) -> int:
        """Fraction bits of a feature as the run reads it: P, or P − 1 if signed."""
        return self.precision - int(self.signed)

    @property
    def forward_shift(self) -> int:
        """Right shift of Round 1, 7 to 15: fraction bits of weight and feature less those of an activation."""
        return ROUND_1_SHIFT + self.fraction


@dataclass(frozen=True)
class LabelMode:
    """The role of the label y in g = s·ψ(s·z − o) − c: s, o and c are 1, 0 and 0 unless they are taken from y."""

    sign: bool = False  # s = −1 where y < 0 (logistic, hinge)
    offset: bool = False  # o = y (Huber, quantile, squared)
    constant: bool = False  # c = y (Poisson)


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run that change its arithmetic, except the loss table."""

    features: FeatureFormat
    chunks: int  # of each engine in the image (C)
    micro_batches: int  # of a mini-batch: B / 8
    mini_batches: int
    label_mode: LabelMode
    rate_mantissa: int  # η = learning rate / B = mantissa · 2^-exponent
    rate_exponent: int
    shrink: int = 0  # L2: after each mini-batch w −= round(κ·w), κ as a `SHRINK` integer, but for the bias
    threshold: int = 0  # L1: after each mini-batch |w| is reduced by so many `WEIGHT` steps, at most to 0; likewise
    workers: int = 1  # of the job, on which the limit of a partial activation depends
    unit: int = MAX_UNIT  # features of a unit, one of `UNITS`: Round 1 rounds the dot product of each
    # Bounded staleness of 1: the forward pass of mini-batch k reads the weights after the update of mini-batch k − 2,
    # so it need not wait for that of mini-batch k − 1.
    stale: bool = False
    weighted: bool = False  # samples have weights: after the labels of each micro-batch come `IMPORTANCE` integers

    def __post_init__(self) -> None:
        check_unit(self.unit)
        ranges = {
            "chunks": (1, 65536),
            "micro_batches": (1, MAX_MICRO_BATCHES),
            "mini_batches": (1, (1 << 32) - 1),
            "rate_mantissa": (0, RATE_MANTISSA.maximum),
            "gradient_shift": (0, MAX_GRADIENT_SHIFT),
            "shrink": (0, SHRINK.maximum),
            "threshold": (0, WEIGHT.maximum),
            "workers": (1, MOST_WORKERS),
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
        """Right shift of Round 3: fraction bits of δ·q, plus η's exponent, less those of a weight."""
        return RESIDUAL.fraction + self.rate_exponent + self.features.fraction - WEIGHT.fraction

    @property
    def partial_limit(self) -> int:
        return partial_limit(self.workers)

    def check_fits(self, config: WorkerConfig, lines: int | None = None) -> None:
        """`check_capacity` of a worker that is to do the run."""
        check_capacity(config, self.chunks, self.features.precision, stale=self.stale, lines=lines)


VALUE_FRACTION = MARGIN.fraction + SLOPE.fraction  # fraction bits of a table value before Round 2
MAX_SHIFT = 31  # largest `LossTable.shift`
TABLE_SEGMENTS = 256  # of the loss table in training, on every worker: weights must not depend on the configuration


@dataclass(frozen=True)
class LossTable:
    """The loss table: a piecewise-linear function of a `MARGIN` integer x.

    With ``index = clamp((x >> shift) + segments/2, 0, segments - 1)`` it covers ``segments`` segments of ``2**shift``
    steps around zero, beyond which the first and the last line continue. The value, exact with `VALUE_FRACTION`
    fraction bits, is ``slope[index] · x + intercept[index] · 2**SLOPE.fraction``.
    """

    shift: int  # log2 of a segment's width in `MARGIN` steps, 0 to `MAX_SHIFT`
    slope: IntArray  # `SLOPE` integers: int64 (segments,)
    intercept: IntArray  # `INTERCEPT` integers, likewise

    def __post_init__(self) -> None:
        if not 0 <= self.shift <= MAX_SHIFT:
            raise ValueError(f"shift must be 0 to {MAX_SHIFT}, not {self.shift}")
        if self.slope.ndim != 1 or self.slope.shape != self.intercept.shape:
            raise ValueError(f"slope {self.slope.shape} and intercept {self.intercept.shape} must be equally long")
        if SLOPE.overflows(self.slope) or INTERCEPT.overflows(self.intercept):
            raise ValueError(f"slopes must fit {SLOPE} and intercepts {INTERCEPT}")

    @property
    def segments(self) -> int:
        return int(self.slope.shape[0])

    def refine(self, segments: int) -> "LossTable":
        """The same function as a table of more segments, by a power of two that `shift` allows, or ValueError."""
        parts = segments // self.segments
        if parts < 1 or parts & (parts - 1) or parts * self.segments != segments:
            raise ValueError(f"a table of {self.segments} segments does not fit a worker's of {segments}")
        shift = self.shift - (parts.bit_length() - 1)
        return LossTable(shift, np.repeat(self.slope, parts), np.repeat(self.intercept, parts))

    def __call__(self, x: IntArray) -> IntArray:
        """Values at `MARGIN` integers, of the same shape."""
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
"""Events of an engine, pulses: a mini-batch begins (with ``forward_begins``); a pass takes the first or last line of a
micro-batch; the first or last chunk of the model is written. The n-th of any other belongs to micro-batch n."""

EVENTS = (*ENGINE_EVENTS, "partial_sent", "sums_came", "deltas_came")
"""Events of a worker, bit i of its ``events``: those of engine 0; the endpoint takes a partial, the loss unit sums;
deltas leave it."""

STAGES = {
    "forward": ("forward_begins", "forward_ends"),
    "network": ("partial_sent", "sums_came"),
    "loss": ("sums_came", "deltas_came"),
    "backward": ("backward_begins", "backward_ends"),
    "update": ("update_begins", "update_ends"),
}
"""Stages of a micro-batch by first and last event; between stages is transport or waiting."""
