"""How much there is of everything on the FPGAs that a worker may be built for."""

from dataclasses import dataclass

__all__ = ["DEVICES", "Device"]


@dataclass(frozen=True)
class Device:
    """An FPGA, all of it: what the vendor's shell takes has to be taken off.

    Attributes
    ----------
    name
        What the board is called.
    lut, ff, bram, uram, dsp
        LUTs, flip-flops, block RAMs of 36 Kbit, UltraRAMs of 288 Kbit, DSP slices.
    source
        Where the numbers are from.
    """

    name: str
    lut: int
    ff: int
    bram: int
    uram: int
    dsp: int
    source: str

    @property
    def carry(self) -> int:
        """CARRY8: one beside every eight LUTs (UG574)."""
        return self.lut // 8


DEVICES = {
    "u280": Device("Alveo U280", 1_303_680, 2_607_360, 2_016, 960, 9_024, "DS963, XCU280"),
    "u50": Device("Alveo U50", 872_000, 1_743_000, 1_344, 640, 5_952, "DS965, XCU50"),
    "u55c": Device("Alveo U55C", 1_304_000, 2_607_000, 2_016, 960, 9_024, "DS978, XCU55C"),
}
"""Boards by the name that the command line takes."""
