"""Exact models of the hardware, the emulator, and the RTL cluster."""
