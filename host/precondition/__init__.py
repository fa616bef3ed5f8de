"""Preconditioning: features whitened in blocks of columns, before they are quantised."""

from p4sgd.host.precondition.whitening import BLOCK, Moments, Whitening, fold_weights

__all__ = ["BLOCK", "Moments", "Whitening", "fold_weights"]
