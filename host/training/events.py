"""Reports of a training run while it runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p4sgd.host.devices.device import WorkerName
    from p4sgd.host.training.dealing.split import Split
    from p4sgd.sim.cluster.trace import Trace


TITLES = {
    **{"loss": "loss", "accuracy": "accuracy", "r2": "R²", "d2": "D²"},
    **{"deviance": "mean deviance", "mse": "mean squared error"},
}
"""Titles of the metrics of an epoch, of which the first four are shown for every epoch."""


class Stage(Enum):
    """A stage of a training run, in order: files of a prepared folder are compared with their checksums, the device
    is opened, epochs are run, the model is written and the device closed."""

    VERIFY = "verify"
    OPEN = "open"
    TRAIN = "train"
    WRITE = "write"


class Note(str):
    """A remark that asks for nothing, such as how columns are dealt."""


class ConvergenceRemark(str):
    """A remark that training has diverged, or has not converged."""


class ScalingRemark(str):
    """A remark on what the scaling that is chosen makes of features."""


def plain_metrics(metrics: dict[str, float]) -> dict[str, float | None]:
    """For JSON: a metric without a value (NaN) is ``None``."""
    return {name: value if value == value else None for name, value in metrics.items()}


@dataclass(frozen=True)
class EpochRecord:
    """The record of an epoch, which counts from 1, with the learning rate that the hardware used.

    ``metrics`` are by data and metric: ``train_…`` on the training samples as the hardware reads them, with an
    intercept that is fitted to them; ``validation_…`` and ``test_…`` if there are such data, without rounding (see
    `p4sgd.host.training.metrics.measure`); and with penalties ``objective``, the train loss plus these. ``seconds`` are
    those on the device. ``flags`` are saturations that any worker reported: ``partial_clamped``,
    ``residual_saturated``, ``weight_saturated``; ``counters`` the hardware's of each worker, if the device has any.
    """

    epoch: int
    learning_rate: float
    metrics: dict[str, float]
    seconds: float
    samples_per_second: float
    flags: tuple[str, ...]
    counters: tuple[dict[str, int], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "learning_rate": self.learning_rate,
            **plain_metrics(self.metrics),
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "flags": list(self.flags),
            "counters": list(self.counters) or None,
        }


class Events:
    """Events of a training run. The methods do nothing; a display overrides those that it shows."""

    def stage(self, stage: Stage) -> None:
        """A stage begins."""

    def progress(self, step: Any, done: int, total: int) -> None:
        """Files of a prepared folder are being verified; see `p4sgd.host.streaming.OnProgress`."""

    def row(self, row: int, names: Sequence[str]) -> None:
        """A row begins, of a model with several: its number from 0, and the names of all rows."""

    def epoch(self, record: EpochRecord) -> None:
        """An epoch has ended. Those of a checkpoint or a start come first."""

    def split(self, split: "Split", names: "Sequence[WorkerName]") -> None:
        """Columns are divided between dense and sparse workers; again if workers are lost or come."""

    def remark(self, text: str) -> None:
        """A remark for the user, whose type may tell what it is about; the result has all remarks, too."""

    def warning(self, text: str) -> None:
        """A remark that workers are missing."""
        self.remark(text)

    def trace(self, trace: "Trace") -> None:
        """The trace of a simulated device that is closed, if the request asks for one."""


SILENT = Events()


class Remarks:
    """Remarks on the training of a row, each once. Checkpoints keep those in ``kept``.

    ``told`` has all that ``events`` have been told, whether they are about all rows. Of several rows ``row`` names this
    one: warnings about it come with its name, its remarks are told with those of the others in the end.
    """

    def __init__(self, kept: list[str], events: Events, told: dict[str, bool], row: str = "") -> None:
        self._kept, self._events, self._told, self._row = kept, events, told, row
        self._passing: list[str] = []

    def add(self, text: str | None, *, own: bool = False, warns: bool = False, passing: bool = False) -> None:
        """Add a remark, if it is one; ``own`` if it is about this row, ``warns`` if it is a warning, ``passing`` if a
        resumed run makes it again, so that checkpoints do not keep it."""
        kept = self._passing if passing else self._kept
        if text is None or text in kept:
            return
        kept.append(text)
        own = own and bool(self._row)
        if own and not warns:
            return
        if own:
            text = f"{self._row}: {text}"
        new, self._told[text] = text not in self._told, not own
        if new:
            (self._events.warning if warns else self._events.remark)(text)

    @property
    def all(self) -> tuple[str, ...]:
        return (*self._kept, *self._passing)
