"""Partials: dot products of all engines to partial activations (Round 1)."""
