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
"""Fields of `TrainingOptions` that prepared data depend on, or that training on them takes over."""
