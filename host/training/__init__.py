"""Training: options, learning rates, the loop over epochs, metrics, checkpoints and results."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p4sgd.host.training.checkpoint import Checkpoint, CheckpointFile, load_checkpoint
    from p4sgd.host.training.events import EpochRecord
    from p4sgd.host.training.options import TrainingOptions
    from p4sgd.host.training.result import ResultSet, StopReason, TrainingResult
    from p4sgd.host.training.trainer import train

__all__ = [
    "Checkpoint",
    "CheckpointFile",
    "EpochRecord",
    "ResultSet",
    "StopReason",
    "TrainingOptions",
    "TrainingResult",
    "load_checkpoint",
    "train",
]

_MODULES = {"EpochRecord": "events", "TrainingOptions": "options", "train": "trainer"}
_MODULES |= dict.fromkeys(("Checkpoint", "CheckpointFile", "load_checkpoint"), "checkpoint")
_MODULES |= dict.fromkeys(("ResultSet", "StopReason", "TrainingResult"), "result")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: those who only need the options do not wait for Numba."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
