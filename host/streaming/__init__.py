"""Data sets larger than memory: prepared in a folder, in bounded memory."""

__all__ = ["OPTIONS"]


OPTIONS = (
    "loss",
    "batch",
    "precision",
    "planes",
    "scaling",
    "bias",
    "positive",
    "workers",
    "validation_fraction",
    "seed",
)
"""Fields of `TrainingOptions` that are chosen when data are prepared: they shape the data, or are kept for training."""
