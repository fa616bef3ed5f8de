"""Preparation of data sets larger than memory, in a folder that training reads."""

__all__ = ["OPTIONS"]


OPTIONS = (
    "loss",
    "tweedie_power",
    "batch",
    "precision",
    "planes",
    "scaling",
    "missing",
    "precondition",
    "damping",
    "bias",
    "positive",
    "class_weight",
    "unit",
    "workers",
    "skip_zeros",
    "validation_fraction",
    "seed",
)
"""Fields of `TrainingOptions` that are chosen when data are prepared: they shape the data or are later defaults."""
