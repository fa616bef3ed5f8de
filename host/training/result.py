"""What a training run leaves: the history of its epochs and the best model."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from p4sgd.host.training.model_file import Model

__all__ = ["EpochRecord", "StopReason", "TrainingResult"]


class StopReason(Enum):
    """Why training ended."""

    EPOCHS = "epochs"
    """All epochs were done."""
    PATIENCE = "patience"
    """The monitored loss made no progress for too long."""
    INTERRUPTED = "interrupted"
    """Ctrl-C."""


@dataclass(frozen=True)
class EpochRecord:
    """One epoch.

    Parameters
    ----------
    epoch
        Its number, from 1.
    learning_rate
        The rate that the hardware used.
    metrics
        By data and name: ``train_…`` on the full-precision training samples, ``quantised_…`` on the same samples as
        the hardware saw them and with its own weights and bias, ``validation_…`` and ``test_…`` if there are such
        data, see `p4sgd.host.training.metrics.measure` for the names; and ``objective``, the train loss with the
        penalties on the weights of features, if there are any.
    seconds
        Time of the run on the device, without metrics.
    samples_per_second
        Training samples in that time.
    flags
        Saturations that a worker reported: ``partial_clamped``, ``residual_saturated``, ``weight_saturated``.
    counters
        For each worker the hardware's counters; none if the device does not count.
    """

    epoch: int
    learning_rate: float
    metrics: dict[str, float]
    seconds: float
    samples_per_second: float
    flags: tuple[str, ...]
    counters: tuple[dict[str, int], ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data, metrics beside the epoch's number; a metric without a value (NaN) is ``None``."""
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
    """What a training run leaves.

    Parameters
    ----------
    model
        The model of the best epoch.
    history
        Every epoch that was completed.
    best_epoch
        Number of the epoch with the smallest ``monitored`` metric.
    monitored
        The metric that decides: ``validation_loss``; without validation samples ``objective``, or ``train_loss`` if
        there are no penalties. Without full-precision training samples ``quantised_loss`` stands for ``train_loss``.
    stopped
        Why training ended.
    remarks
        What the user should know: rounding of rates, saturations. One line each.
    summary
        Numbers about the run: samples, features, learning rate and so on; plain data.
    """

    model: Model
    history: tuple[EpochRecord, ...]
    best_epoch: int
    monitored: str
    stopped: StopReason
    remarks: tuple[str, ...]
    summary: dict[str, Any]

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
            "remarks": list(self.remarks),
        }
