"""Learning rate and penalties in the format of a worker's registers; a first guess of the rate."""

import math
from dataclasses import dataclass

from p4sgd.host.errors import UserError
from p4sgd.host.losses import Loss
from p4sgd.hw.spec.fixed import RATE_MANTISSA, RESIDUAL, SHRINK, WEIGHT
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT, FeatureFormat


@dataclass(frozen=True)
class Rate:
    """A learning rate that the hardware can represent: B · mantissa · 2^-exponent, with B the size of a mini-batch, or
    what its samples weigh on average."""

    mantissa: int
    exponent: int
    actual: float


def choose_rate(learning_rate: float, batch: float, features: FeatureFormat) -> Rate:
    """The representable rate nearest to a learning rate; `UserError` if it is outside the range of the hardware.

    With f fraction bits of a feature, rates range from B · 2^(f−38) to B · 255 · 2^(f−7). The error is below 0.4 %,
    except for the smallest rates, whose mantissa is short.
    """
    eta, exponents, largest = learning_rate / batch, _exponents(features), RATE_MANTISSA.maximum
    candidates = []
    for exponent in exponents:
        mantissa = round(min(math.ldexp(eta, exponent), 2 * largest))
        if 1 <= mantissa <= largest:
            candidates.append((abs(math.ldexp(mantissa, -exponent) / eta - 1), exponent, mantissa))
    if not candidates:
        low, high = batch * math.ldexp(1, -exponents[-1]), largest_rate(batch, features)
        raise UserError(
            f"the learning rate {learning_rate:g} is out of the hardware's range {low:.3g} to {high:.3g} for a batch "
            f"of {batch:.4g} samples of weight 1"
        )
    _, exponent, mantissa = min(candidates)
    return Rate(mantissa, exponent, batch * math.ldexp(mantissa, -exponent))


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
    """L2 and L1 penalties as the workers apply them after each mini-batch: learning rate · l2 as a `SHRINK` integer,
    learning rate · l1 as a `WEIGHT` integer, and remarks on their rounding."""

    shrink: int
    threshold: int
    remarks: tuple[str, ...] = ()


def choose_penalties(learning_rate: float, l2: float, l1: float) -> Penalties:
    """The register values of L2 and L1 for the actual learning rate; `UserError` if κ is 2^-6 or more, or the threshold
    exceeds every weight.

    The shrink w −= round(κ·w) has a *dead zone*: weights below 2^-24 / κ in magnitude do not change, because less than
    half a weight step rounds to zero. A remark says so from a dead zone of 2^-7 on (κ ≤ 2^-17).
    """
    kappa, step = learning_rate * l2, learning_rate * l1
    limit = SHRINK.to_real(SHRINK.maximum + 1)
    if kappa >= limit:
        raise UserError(
            f"learning rate · l2 is {kappa:.3g} for the weights of the hardware and must be below 2^-6 = {limit:g}: "
            f"lower the learning rate or l2"
        )
    if step > WEIGHT.to_real(WEIGHT.maximum):
        raise UserError(
            f"learning rate · l1 is {step:.3g} for the weights of the hardware, more than any of them: lower the "
            f"learning rate or l1"
        )
    shrink, threshold = min(int(SHRINK.from_real(kappa)), SHRINK.maximum), int(WEIGHT.from_real(step))
    remarks = [
        f"{name} has no effect: learning rate · {name} = {wanted:.2g} rounds to 0 in steps of {form.ulp:.2g}"
        for name, wanted, found, form in (("l2", kappa, shrink, SHRINK), ("l1", step, threshold, WEIGHT))
        if wanted > 0 and found == 0
    ]
    if shrink and WEIGHT.ulp / 2 / kappa >= 2**-7:
        remarks.append(f"l2 leaves weights below {WEIGHT.ulp / 2 / kappa:.2g} as they are (rounding of a small step)")
    return Penalties(shrink, threshold, tuple(remarks))


def automatic_rate(loss: Loss, mean_square: float) -> float:
    """A learning rate for samples with the mean squared norm ``mean_square``, bias included, around which to search.

    A step with rate r on one sample a with residual g moves that sample's activation by r · ‖a‖² · g.
    """
    return loss.step / mean_square if mean_square > 0 else loss.step
