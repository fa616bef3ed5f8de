"""Sparse workers: lists of the features that are not 0, and the golden model's arithmetic on them."""
