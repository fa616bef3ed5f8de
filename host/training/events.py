"""What a training run reports while it runs."""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p4sgd.host.devices.device import WorkerName
    from p4sgd.host.training.dealing.columns import Split
    from p4sgd.host.training.result import EpochRecord
    from p4sgd.sim.cluster.trace import Trace

__all__ = ["SILENT", "Events", "Stage"]


class Stage(Enum):
    """A stage of a training run, in order."""

    VERIFY = "verify"
    """The files of a prepared folder are compared with their checksums; left out for other data.

    Which files these are depends on the configuration, so this follows `OPEN` if the device says it itself.
    """
    OPEN = "open"
    """The device is opened: minutes, if a simulator has to be built."""
    TRAIN = "train"
    """Epochs are run."""
    WRITE = "write"
    """The model is written and the device closed."""


class Events:
    """Events of a training run. The methods do nothing; a display overrides those that it shows."""

    def stage(self, stage: Stage) -> None:
        """A stage begins."""

    def progress(self, step: Any, done: int, total: int) -> None:
        """Files of a prepared folder are being verified; see `p4sgd.host.streaming.OnProgress`."""

    def fold(self, number: int) -> None:
        """The run of a fold begins; folds count from 1."""

    def row(self, row: int, names: Sequence[str]) -> None:
        """A row begins, of a model with several: its number from 0, and the names of all rows."""

    def epoch(self, record: "EpochRecord") -> None:
        """An epoch has ended. Those of a checkpoint or a start come first."""

    def split(self, split: "Split", names: "Sequence[WorkerName]") -> None:
        """Columns are divided between dense and sparse workers; again if workers are lost or come."""

    def remark(self, text: str) -> None:
        """A remark for the user; the result has all remarks, too."""

    def warning(self, text: str) -> None:
        """A remark that workers are missing."""
        self.remark(text)

    def trace(self, trace: "Trace") -> None:
        """The trace of a simulated device that is closed, if the request asks for one."""


SILENT = Events()
"""Nobody listens."""
