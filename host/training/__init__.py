"""Training: options, learning rates, the loop over epochs, metrics and the result."""

from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.result import EpochRecord, StopReason, TrainingResult
from p4sgd.host.training.trainer import train

__all__ = ["EpochRecord", "StopReason", "TrainingOptions", "TrainingResult", "train"]
