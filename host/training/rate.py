"""Learning rates: in the format of a worker's registers, with penalties; over the epochs; and what the losses of these
say about them, divergence and convergence."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from p4sgd.host.errors import UserError, option
from p4sgd.host.losses import Loss
from p4sgd.host.training.events import ConvergenceRemark, EpochRecord
from p4sgd.hw.spec.fixed import RATE_MANTISSA, RESIDUAL, SHRINK, WEIGHT
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT, FeatureFormat

_ADAPTIVE_DIVISOR = 5.0  # that of scikit-learn
_LARGEST_DIVISOR = 5.0**4  # with a smaller rate weights would hardly move
_DIVERGENCE_DIVISOR = 10.0

_QUICKLY = 0.75
"""Falls of a loss shrink quickly if each is at most this part of the one before."""

DIVERGED = 2.0
"""An epoch has diverged if it ends with more than so many times the loss of a constant model."""

_SMALL = 0.1
"""Classes may be separable if the loss is at most this part of that of a constant model."""

_NEGLIGIBLE = 1e-3
"""A loss of at most this part of that of a constant model counts as converged."""

_WORSE = 0.05
"""Part of the least loss on held-out samples by which the last one is above it if the model overfits."""

ENOUGH_EPOCHS = 5
"""Fewest epochs that tell where a loss tends to."""

_CLOSE = 0.01
"""Part of the final loss by which a loss may exceed it and count as converged."""


@dataclass(frozen=True)
class Rate:
    """A learning rate that the hardware can represent: B · mantissa · 2^-exponent, with B the size of a mini-batch, or
    what its samples weigh on average."""

    mantissa: int
    exponent: int
    actual: float


@functools.lru_cache(64)  # that of an epoch is mostly that of the one before
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


@functools.lru_cache(64)
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


def _rest(before: float, last: float) -> float:
    """What a loss would still fall by after two falls, if all further ones shrank alike, as a geometric series does
    (Aitken's extrapolation); 0 if they do not shrink."""
    return last * last / (before - last) if 0 < last < before else 0.0


class LearningRateSchedule:
    """The learning rate of each epoch, at least ``smallest``: of the ``first`` one, as it is since training diverged
    last, ``constant``; divided by epoch^``power`` with ``invscaling``; and by the ``divisor`` so far of ``adaptive``,
    which waits for ``patience`` epochs without progress, ``None`` is 1."""

    def __init__(
        self,
        name: str,
        first: float,
        power: float,
        smallest: float = 0.0,
        patience: int | None = None,
        divisor: float = 1.0,
    ) -> None:
        self.first, self.divisor = first, divisor
        self._name, self._power, self._patience = name, power, patience
        self._smallest = min(smallest, first)

    def rate(self, epoch: int) -> float:
        """The rate of an epoch, counted from 1."""
        # epoch^-power underflows to 0, where epoch^power would overflow.
        factor = float(epoch) ** -self._power if self._name == "invscaling" else 1.0
        return max(self.first * factor / self.divisor, self._smallest)

    @property
    def lowest(self) -> bool:
        """Whether the rate cannot be lowered further."""
        return self.first / self.divisor <= self._smallest

    def lower(self, most: float) -> None:
        """Begin again with a tenth of the rate, or with ``most`` if that is less: training diverged."""
        lower = min(self.first / self.divisor / _DIVERGENCE_DIVISOR, most)
        self.first, self.divisor = max(lower, self._smallest), 1.0

    def is_progress(self, losses: Sequence[float], best: float, tolerance: float) -> bool:
        """Whether the last of these losses, those of epochs with the present rate, is less than the best one before by
        more than the tolerance, a fraction of that. Unless training is to end after a patience, ``adaptive`` divides
        the tolerance like the rate, and it is progress, too, if half of it would still be gained by falls that shrink
        on as the last two, quickly: then a few epochs will do, and it is too early for a lower rate."""
        *before, loss = losses
        if self._name != "adaptive" or self._patience:
            return loss < best * (1 - tolerance)
        enough = tolerance / self.divisor * best
        if loss < best - enough or len(before) < 2:
            return loss < best - enough
        fall, last = before[-2] - before[-1], before[-1] - loss
        return loss < best and last <= _QUICKLY * fall and _rest(fall, last) > enough / 2

    def adapt(self, idle: int, since_best: int) -> bool:
        """Change the rate of ``adaptive`` after ``idle`` epochs without progress; returns whether it did, so that
        training goes back to the best weights.

        Each time its patience is over it divides the rate by 5, which gets rid of noise. If that has only made a slow
        fall slower, it takes it back, and keeps the rate for as long as it finds better weights, the last
        ``since_best`` epochs ago. A rate that has found none is divided once more: from the same weights it would give
        the same epochs again.
        """
        times, rest = divmod(idle, self._patience or 1)
        if self._name != "adaptive" or not times or rest:
            return False
        if times > 1 and since_best < (self._patience or 1):
            if times > 2 or self.divisor == 1:
                return False
            self.divisor /= _ADAPTIVE_DIVISOR
            return True
        lower = self.divisor * _ADAPTIVE_DIVISOR
        if self.lowest or lower > _LARGEST_DIVISOR:
            return False
        self.divisor = lower
        return True


class Convergence:
    """Judges the epochs of a run by their history, which may grow, and the training loss of the best constant model;
    ``automatic`` is a learning rate that was found by trials. The first epochs, ``before`` the run, are not its own."""

    def __init__(
        self, history: Sequence[EpochRecord], constant_loss: float, *, automatic: bool = False, before: int = 0
    ) -> None:
        self._history, self._constant_loss, self._automatic = history, constant_loss, automatic
        self._before = before

    def diverged(self, record: EpochRecord) -> bool:
        """Whether training diverged in an epoch."""
        return not record.metrics["train_loss"] <= DIVERGED * self._constant_loss

    def divergence_remark(self, next_rate: float | None = None) -> ConvergenceRemark | None:
        """A remark on the last epochs that diverged: if one that did not has followed, or at the end of the run if none
        has, and the ``next_rate`` would be that of the next."""
        diverged = [self.diverged(record) and record.epoch > self._before for record in self._history]
        last = max((epoch for epoch, each in enumerate(diverged, 1) if each), default=0)
        first = max((epoch for epoch, each in enumerate(diverged[:last], 1) if not each), default=0)
        at_the_end = last == len(self._history)
        if first == last or at_the_end != (next_rate is not None):
            return None
        rate = next_rate or self._history[last].learning_rate
        epochs = f"epoch {last}" if last == first + 1 else f"epochs {first + 1} to {last}"
        text = (
            f"the {'automatic ' * self._automatic}learning rate {self._history[first].learning_rate:.3g} is too large: "
            f"training diverged in {epochs}"
        )
        if rate >= self._history[last - 1].learning_rate:
            return ConvergenceRemark(f"{text}, and there is no lower one")
        if at_the_end:
            return ConvergenceRemark(f"{text}: try {option('learning_rate', float(f'{rate:.3g}'))}")
        remedy = "" if self._automatic else ": try that"  # a rate that nobody gave needs no other
        return ConvergenceRemark(f"{text} and went on from earlier weights with {rate:.3g}{remedy}")

    @property
    def separates(self) -> bool:
        """Whether classes may be separable: the loss is small, or no training sample is on the wrong side."""
        metrics = self._history[-1].metrics
        return metrics["train_loss"] <= _SMALL * self._constant_loss or metrics.get("train_accuracy") == 1.0

    def overfits(self, metric: str) -> tuple[int, float] | None:
        """The epoch with the least loss on held-out samples, and by what part the last one is above it, if that is
        clear and the training loss has fallen since; ``None`` if not, or if there are no such samples."""
        losses = [record.metrics.get(metric, math.nan) for record in self._history]
        least = min(range(len(losses)), key=losses.__getitem__)
        rise = losses[-1] / losses[least] - 1 if losses[least] > 0 else 0.0
        falls = self._history[-1].metrics["train_loss"] < self._history[least].metrics["train_loss"]
        return (least + 1, rise) if rise > _WORSE and falls else None

    def more_epochs(self, metric: str, *, adaptive: bool) -> int | None:
        """`estimate_more_epochs` if the run ends now, from the epochs since training diverged or the schedule
        ``adaptive`` changed the rate, which makes the metric jump."""
        rate = self._history[-1].learning_rate
        jumps = (each for each in self._history if self.diverged(each) or (adaptive and each.learning_rate != rate))
        begin = max((each.epoch for each in jumps), default=0)
        losses = [record.metrics[metric] for record in self._history[begin:]]
        return estimate_more_epochs(losses, _NEGLIGIBLE * self._constant_loss)


def estimate_more_epochs(losses: Sequence[float], negligible: float = 0.0) -> int | None:
    """Epochs until a loss that still falls comes within 1 % of where it tends to, or 0.01 % of the last loss.

    The falls over the last two thirds of the epochs are continued as in `_rest`. If they do not shrink, the estimate is
    as many epochs as there were; it is never more than ten times as many. ``None`` if the last loss is not the
    smallest, is ``negligible`` or is within 1 % already, if it would fall by less than 1 % in as many epochs again, or
    if there are fewer than five.
    """
    epochs = len(losses)
    if epochs < ENOUGH_EPOCHS or min(losses[:-1]) <= losses[-1] or losses[-1] <= negligible:
        return None
    step = epochs // 3
    before, last = losses[-1 - 2 * step] - losses[-1 - step], losses[-1 - step] - losses[-1]
    if last * epochs / step <= _CLOSE * losses[-1]:
        return None
    if last >= before:
        return epochs
    ratio, rest = last / before, _rest(before, last)
    close = _CLOSE * max(losses[-1] - rest, _CLOSE * losses[-1])
    if rest <= close:
        return None
    return min(math.ceil(step * math.log(close / rest) / math.log(ratio)), 10 * epochs)
