"""Backward: deltas and kept lines to exact gradients, one plane a cycle."""
