"""The settings of a run as the engines see them."""

from amaranth.hdl import unsigned
from amaranth.lib import data

from p4sgd.hw.spec import registers

__all__ = ["ENGINE_SETTINGS"]

ENGINE_SETTINGS = data.StructLayout(
    {
        "precision": unsigned(registers.FORMAT["precision"].bits),
        "stored": unsigned(registers.FORMAT["stored"].bits),
        "signed": unsigned(1),
        "chunks": unsigned(registers.CHUNKS["value"].bits),
        "micro_batches": unsigned(registers.MICRO_BATCHES["value"].bits),
        "gradient_shift": unsigned(registers.RATE["gradient_shift"].bits),
        "shrink": unsigned(registers.SHRINK_FACTOR["value"].bits),
        "threshold": unsigned(registers.THRESHOLD["value"].bits),
    }
)
"""Stable from the start of a run to its end."""
