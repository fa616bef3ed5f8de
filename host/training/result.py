"""The result of a training run: the history of its epochs and the best model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from p4sgd.host.training.model_file import Model

__all__ = ["EpochRecord", "StopReason", "TrainingResult", "estimate_more_epochs"]


class StopReason(Enum):
    """Why training ended."""

    EPOCHS = "epochs"
    """All epochs were run."""
    PATIENCE = "patience"
    """The monitored loss made no progress for ``patience`` epochs."""
    INTERRUPTED = "interrupted"
    """Ctrl-C."""


@dataclass(frozen=True)
class EpochRecord:
    """The record of an epoch.

    Parameters
    ----------
    epoch
        Its number, from 1.
    learning_rate
        The learning rate that the hardware used.
    metrics
        By data and metric: ``train_…`` on the full-precision training samples; ``quantised_…`` on the same samples as
        the hardware reads them, with its own weights and bias; ``validation_…`` and ``test_…`` if there are such data
        (see `p4sgd.host.training.metrics.measure` for the metrics); with penalties, ``objective``: the train loss plus
        the penalties on the weights of features; and ``fitted_loss``, the quantised loss with a fitted intercept, by
        which divergence is told and, with the penalties, progress if there are no validation samples.
    seconds
        Time of the run on the device, without computing metrics.
    samples_per_second
        Training samples per second of that time.
    flags
        Saturations that any worker reported: ``partial_clamped``, ``residual_saturated``, ``weight_saturated``.
    counters
        The hardware's counters of each worker; empty if the device has none.
    """

    epoch: int
    learning_rate: float
    metrics: dict[str, float]
    seconds: float
    samples_per_second: float
    flags: tuple[str, ...]
    counters: tuple[dict[str, int], ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data, with the metrics on the same level; a metric without a value (NaN) is ``None``."""
        return {
            "epoch": self.epoch,
            "learning_rate": self.learning_rate,
            **{name: value if value == value else None for name, value in self.metrics.items()},
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "flags": list(self.flags),
            "counters": list(self.counters) or None,
        }


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training run.

    Parameters
    ----------
    model
        The model of the best epoch.
    history
        All completed epochs.
    best_epoch
        The epoch with the smallest ``monitored`` metric.
    monitored
        The metric that chooses the best epoch: ``validation_loss``; without validation samples ``objective``, or
        ``train_loss`` if there are no penalties (``quantised_loss`` if there are no full-precision samples, or with
        the scaling ``robust``).
    stopped
        Why training ended.
    remarks
        What the user should know, a line each: rounding of rates, saturations, divergence, too few epochs.
    more_epochs
        Estimate of the epochs that were missing to convergence (`estimate_more_epochs`) if all epochs were run; else
        ``None``.
    summary
        Facts about the run, as plain data: samples, features, learning rate and so on.
    """

    model: Model
    history: tuple[EpochRecord, ...]
    best_epoch: int
    monitored: str
    stopped: StopReason
    remarks: tuple[str, ...]
    summary: dict[str, Any]
    more_epochs: int | None = None

    @property
    def best(self) -> EpochRecord:
        """The record of the best epoch."""
        return self.history[self.best_epoch - 1]

    def to_json(self) -> dict[str, Any]:
        """As plain data, for reports."""
        return {
            **self.summary,
            "epochs": [record.to_json() for record in self.history],
            "best_epoch": self.best_epoch,
            "monitored": self.monitored,
            "stopped": self.stopped.value,
            "more_epochs": self.more_epochs,
            "remarks": list(self.remarks),
        }


_CLOSE = 0.01
"""Part of the final loss by which a loss may exceed it and count as converged."""


def estimate_more_epochs(losses: Sequence[float], negligible: float = 0.0) -> int | None:
    """Epochs until a loss that still falls comes within 1 % of where it tends to, or 0.01 % of the last loss.

    The falls over the last two thirds of the epochs are continued as a geometric series (Aitken's extrapolation). If
    they do not shrink, the estimate is as many epochs as there were; it is never more than ten times as many.

    Parameters
    ----------
    losses
        The loss after each epoch.
    negligible
        A loss at which training counts as converged. If classes can be separated, the loss falls for ever.

    Returns
    -------
    ``None`` if the last loss is not the smallest, is negligible or is within 1 % already, if it would fall by less than
    1 % in as many epochs again, or if there are fewer than five.
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
