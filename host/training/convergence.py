"""Divergence and convergence of a run, judged by the losses of its epochs."""

import math
from collections.abc import Sequence

from p4sgd.host.errors import option
from p4sgd.host.training.events import EpochRecord

DIVERGED = 2.0
"""An epoch has diverged if it ends with more than so many times the loss of a constant model."""

_SMALL = 0.1
"""Classes may be separable if the loss is at most this part of that of a constant model."""

_NEGLIGIBLE = 1e-3
"""A loss of at most this part of that of a constant model counts as converged."""

_CLOSE = 0.01
"""Part of the final loss by which a loss may exceed it and count as converged."""


class Convergence:
    """Judges the epochs of a run by their history, which may grow, and the training loss of the best constant model;
    ``automatic`` is a learning rate that was found by trials."""

    def __init__(self, history: Sequence[EpochRecord], constant_loss: float, *, automatic: bool = False) -> None:
        self._history = history
        self._constant_loss = constant_loss
        self._automatic = automatic

    def diverged(self, record: EpochRecord) -> bool:
        """Whether training diverged in an epoch."""
        return not record.metrics["train_loss"] <= DIVERGED * self._constant_loss

    def divergence_remark(self, next_rate: float | None = None) -> str | None:
        """A remark on the last epochs that diverged: if one that did not has followed, or at the end of the run if none
        has, and the ``next_rate`` would be that of the next."""
        diverged = [self.diverged(record) for record in self._history]
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
            return f"{text}, and there is no lower one"
        if at_the_end:
            return f"{text}: try {option('learning_rate', float(f'{rate:.3g}'))}"
        remedy = "" if self._automatic else ": try that"  # a rate that nobody gave needs no other
        return f"{text} and went on from earlier weights with {rate:.3g}{remedy}"

    @property
    def separates(self) -> bool:
        """Whether classes may be separable: the loss is small, or no training sample is on the wrong side."""
        metrics = self._history[-1].metrics
        return metrics["train_loss"] <= _SMALL * self._constant_loss or metrics.get("train_accuracy") == 1.0

    def more_epochs(self, metric: str, *, adaptive: bool) -> int | None:
        """Estimate of the epochs that were missing, if the run ends now (`estimate_more_epochs`), from the epochs since
        training diverged or the schedule ``adaptive`` changed the rate, which makes the metric jump.
        """
        rate = self._history[-1].learning_rate
        jumps = (each for each in self._history if self.diverged(each) or (adaptive and each.learning_rate != rate))
        begin = max((each.epoch for each in jumps), default=0)
        losses = [record.metrics[metric] for record in self._history[begin:]]
        return estimate_more_epochs(losses, _NEGLIGIBLE * self._constant_loss)


def estimate_more_epochs(losses: Sequence[float], negligible: float = 0.0) -> int | None:
    """Epochs until a loss that still falls comes within 1 % of where it tends to, or 0.01 % of the last loss.

    The falls over the last two thirds of the epochs are continued as a geometric series (Aitken's extrapolation). If
    they do not shrink, the estimate is as many epochs as there were; it is never more than ten times as many. ``None``
    if the last loss is not the smallest, is ``negligible`` or is within 1 % already, if it would fall by less than 1 %
    in as many epochs again, or if there are fewer than five.
    """
    epochs = len(losses)
    if epochs < 5 or min(losses[:-1]) <= losses[-1] or losses[-1] <= negligible:
        return None
    step = epochs // 3
    before, last = losses[-1 - 2 * step] - losses[-1 - step], losses[-1 - step] - losses[-1]
    if last * epochs / step <= _CLOSE * losses[-1]:
        return None
    if last >= before:
        return epochs
    ratio = last / before
    rest = last * ratio / (1 - ratio)
    close = _CLOSE * max(losses[-1] - rest, _CLOSE * losses[-1])
    if rest <= close:
        return None
    return min(math.ceil(step * math.log(close / rest) / math.log(ratio)), 10 * epochs)
