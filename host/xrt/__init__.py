"""Boards of this machine, through XRT."""
