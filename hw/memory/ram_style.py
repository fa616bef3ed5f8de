"""Which memory of the FPGA holds what."""

__all__ = ["ram_style"]

_ULTRA_DEPTH = 4096
"""Depth of an URAM288, 72 bits wide (UG573); a RAMB36 of this width is 512 deep."""


def ram_style(depth: int) -> dict[str, str]:
    """Attributes of a memory: UltraRAM where one is filled, else what the tools choose by themselves."""
    return {"ram_style": "ultra"} if depth >= _ULTRA_DEPTH else {}
