"""The clock of the boards."""

__all__ = ["CLOCK_NS"]

CLOCK_NS = 4
"""Clock period, ns: the 250 MHz that the boards aim at. Cycles in registers are of this clock, on every device."""
