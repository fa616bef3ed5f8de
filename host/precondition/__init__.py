"""Preconditioning of the features by blocks of columns."""
