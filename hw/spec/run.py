"""What a worker is told before a run, and the arithmetic rules that follow from it.

A run is a pass over consecutive mini-batches of the memory image (an epoch, usually). Integers are exact, except at

- **Round 1**: partial activation, from the exact dot product to `ACTIVATION`, clamped so that the sum of all workers
  cannot wrap;
- **Round 2**: residual, from the exact table value to `RESIDUAL`;
- **Round 3**: weight update, from the exact gradient to `WEIGHT`, saturated; and, once a mini-batch, the L2 shrink.
"""

from dataclasses import dataclass

from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, MAX_PRECISION, RATE_MANTISSA, RESIDUAL, SHRINK, WEIGHT

__all__ = [
    "COUNT_BITS",
    "MAX_GRADIENT_SHIFT",
    "MAX_MICRO_BATCHES",
    "MAX_WORKERS",
    "FeatureFormat",
    "LabelMode",
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
