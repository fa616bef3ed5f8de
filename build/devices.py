"""How much there is of everything on the FPGAs that a worker may be built for."""

from dataclasses import dataclass

__all__ = ["BOARDS", "DEVICES", "Device"]


@dataclass(frozen=True)
class Device:
    """An FPGA, all of it: what the vendor's shell takes has to be taken off.

    Attributes
    ----------
    name
        What the board is called.
    lut, ff, bram, uram, dsp
        LUTs, flip-flops, block RAMs of 36 Kbit, UltraRAMs of 288 Kbit, DSP slices.
    dies
        Dies (SLRs) on top of each other, of equal size; 0 is the lowest.
    memory_die, network_die
        The one beside the high-bandwidth memory, and the one with the transceivers of QSFP 0.
    source
        Where the numbers are from.
    """

    name: str
    lut: int
    ff: int
    bram: int
    uram: int
    dsp: int
    dies: int
    memory_die: int
    network_die: int
    source: str

    @property
    def carry(self) -> int:
        """CARRY8: one beside every eight LUTs (UG574)."""
        return self.lut // 8


DEVICES = {
    "u280": Device("Alveo U280", 1_303_680, 2_607_360, 2_016, 960, 9_024, 3, 0, 2, "DS963, XCU280; UG1120; quad 134"),
    "u50": Device("Alveo U50", 872_000, 1_743_000, 1_344, 640, 5_952, 2, 0, 1, "DS965, XCU50; UG1120; quad 131"),
    "u55c": Device("Alveo U55C", 1_304_000, 2_607_000, 2_016, 960, 9_024, 3, 0, 1, "DS978, XCU55C; UG1120; quad 130"),
}
"""Boards by the name that the command line takes.

Amounts are from the data sheet, dies from UG1120. Transceivers are from the board's constraints, which name QSFP 0's
quad: a die has four quads on a side, of which the lowest is 124 (UG578)."""

BOARDS = {"u280": "u280", "u280_deep": "u280", "u280_wide": "u280", "u50": "u50", "u55c": "u55c"}
"""The board that a configuration of `p4sgd.hw.spec.config.PRESETS` is for, if it is for one."""
