"""Learning rate, penalties and settings of a run in the format of a worker's registers; a first guess of the rate."""

import math
from dataclasses import dataclass

from p4sgd.host.errors import UserError
from p4sgd.host.losses import Loss, get_loss
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import RATE_MANTISSA, RESIDUAL, SHRINK, WEIGHT
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT, FeatureFormat, RunSettings

_COARSE = 0.01
"""Relative error of a learning rate above which there is a remark."""


@dataclass(frozen=True)
class Rate:
    """A learning rate that the hardware can represent: B · mantissa · 2^-exponent, with B the size of a mini-batch, or
    what its samples weigh on average.

    Parameters
    ----------
    mantissa, exponent
        η = learning rate / B = mantissa · 2^-exponent.
    wanted, actual
        The learning rate asked for and the one that is represented.
    """

    mantissa: int
    exponent: int
    wanted: float
    actual: float

    @property
    def error(self) -> float:
        """Relative error of the actual rate."""
        return abs(self.actual / self.wanted - 1)

    @property
    def coarse(self) -> bool:
        """Whether the error is above 1 %, which is possible only near the smallest rate."""
        return self.error > _COARSE


def choose_rate(learning_rate: float, batch: float, features: FeatureFormat) -> Rate:
    """The representable rate nearest to a learning rate.

    The exponent is bounded by the right shift of Round 3, 0 to 31. With f fraction bits of a feature, rates range from
    B · 2^(f−38) to B · 255 · 2^(f−7). The error is below 0.4 %, except for the smallest rates, whose mantissa is short.

    Raises
    ------
    UserError
        If the rate is outside the range of the hardware.
    """
    eta = learning_rate / batch
    exponents = _exponents(features)
    largest = RATE_MANTISSA.maximum
    candidates = []
    for exponent in exponents:
        mantissa = round(math.ldexp(eta, exponent)) if math.ldexp(eta, exponent) < 2 * largest else 2 * largest
        if 1 <= mantissa <= largest:
            candidates.append((abs(math.ldexp(mantissa, -exponent) / eta - 1), exponent, mantissa))
    if not candidates:
        low, high = batch * math.ldexp(1, -exponents[-1]), largest_rate(batch, features)
        whole = float(batch).is_integer()
        of = f"a batch of {batch:g}" if whole else f"batches whose samples weigh {batch:.3g}, the heaviest of them 1"
        raise UserError(
            f"the learning rate {learning_rate:g} is out of the hardware's range {low:.3g} to {high:.3g} for {of}"
        )
    _, exponent, mantissa = min(candidates)
    return Rate(mantissa, exponent, learning_rate, batch * math.ldexp(mantissa, -exponent))


def largest_rate(batch: float, features: FeatureFormat) -> float:
    """The largest learning rate that the hardware can represent."""
    return batch * math.ldexp(RATE_MANTISSA.maximum, -_exponents(features)[0])


def smallest_rate(batch: float, features: FeatureFormat) -> float:
    """The smallest learning rate with a full mantissa, the lower bound of schedules."""
    return batch * math.ldexp((RATE_MANTISSA.maximum + 1) / 2, -_exponents(features)[-1])


def _exponents(features: FeatureFormat) -> range:
    """Exponents of η for which Round 3 has a right shift."""
    bias = RESIDUAL.fraction + features.fraction - WEIGHT.fraction
    return range(-bias, MAX_GRADIENT_SHIFT - bias + 1)


@dataclass(frozen=True)
class Penalties:
    """L2 and L1 penalties as the workers apply them after each mini-batch.

    Parameters
    ----------
    shrink
        κ = learning rate · l2 as a `SHRINK` integer.
    threshold
        learning rate · l1 as a `WEIGHT` integer.
    remarks
        What the user should know about their rounding, if anything.
    """

    shrink: int
    threshold: int
    remarks: tuple[str, ...] = ()


def choose_penalties(learning_rate: float, l2: float, l1: float) -> Penalties:
    """The register values of L2 and L1 for the actual learning rate.

    The shrink w −= round(κ·w) has a *dead zone*: it does not change weights below 2^-24 / κ in magnitude, because less
    than half a weight step rounds to zero. That is far below any weight that matters, unless κ is tiny: a remark says
    so from a dead zone of 2^-7 on (κ ≤ 2^-17). κ itself comes in steps of 2^-24.

    Raises
    ------
    UserError
        If κ is 2^-6 or more, or the threshold exceeds every weight.
    """
    kappa = learning_rate * l2
    limit = SHRINK.to_real(SHRINK.maximum + 1)
    if kappa >= limit:
        raise UserError(
            f"learning rate · l2 is {kappa:.3g} for the weights of the hardware and must be below 2^-6 = {limit:g}: "
            f"lower the learning rate or l2"
        )
    shrink = min(int(SHRINK.from_real(kappa)), SHRINK.maximum)
    step = learning_rate * l1
    threshold = int(WEIGHT.from_real(step))
    if step > WEIGHT.to_real(WEIGHT.maximum):
        raise UserError(
            f"learning rate · l1 is {step:.3g} for the weights of the hardware, more than any of them: lower the "
            f"learning rate or l1"
        )
    remarks = []
    if kappa > 0 and shrink == 0:
        remarks.append(f"l2 has no effect: learning rate · l2 = {kappa:.2g} rounds to 0 in steps of {SHRINK.ulp:.2g}")
    elif kappa > 0 and WEIGHT.ulp / 2 / kappa >= 2**-7:
        remarks.append(f"l2 leaves weights below {WEIGHT.ulp / 2 / kappa:.2g} as they are (rounding of a small step)")
    if step > 0 and threshold == 0:
        remarks.append(f"l1 has no effect: learning rate · l1 = {step:.2g} rounds to 0 in steps of {WEIGHT.ulp:.2g}")
    return Penalties(shrink, threshold, tuple(remarks))


def run_settings(
    options: TrainingOptions,
    features: FeatureFormat,
    rate: Rate,
    penalties: Penalties,
    *,
    chunks: int,
    mini_batches: int,
    workers: int,
    unit: int,
    weighted: bool = False,
) -> RunSettings:
    """The settings of a run with these options.

    Parameters
    ----------
    options
        Options of the training run.
    features
        Format of the features.
    rate, penalties
        Learning rate and penalties of the run.
    chunks
        Chunks of the fullest image; see `Session.configure`.
    mini_batches
        Number of mini-batches.
    workers
        Number of workers of the job.
    unit
        Features of a unit.
    weighted
        Whether samples have weights.
    """
    return RunSettings(
        features=features,
        chunks=chunks,
        micro_batches=options.batch // BANKS,
        mini_batches=mini_batches,
        label_mode=get_loss(options.loss).label_mode,
        rate_mantissa=rate.mantissa,
        rate_exponent=rate.exponent,
        shrink=penalties.shrink,
        threshold=penalties.threshold,
        workers=workers,
        unit=unit,
        stale=bool(options.staleness),
        weighted=weighted,
    )


def automatic_rate(loss: Loss, mean_square: float) -> float:
    """A learning rate for samples with the mean squared norm ``mean_square``, bias included, around which to search.

    A step with rate r on one sample a with residual g moves that sample's activation by r · ‖a‖² · g. The rate
    ``loss.step`` / ‖a‖² therefore gives steps of equal size for any number of features, any sparsity and any scale.
    """
    return loss.step / mean_square if mean_square > 0 else loss.step
