"""Training: options, learning rates, the loop over epochs, metrics, checkpoints and results."""

from p4sgd.host.training.checkpoint import Checkpoint, CheckpointFile, load_checkpoint
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.result import EpochRecord, StopReason, TrainingResult
from p4sgd.host.training.trainer import train

__all__ = [
    "Checkpoint",
    "CheckpointFile",
    "EpochRecord",
    "StopReason",
    "TrainingOptions",
    "TrainingResult",
    "load_checkpoint",
    "train",
]
