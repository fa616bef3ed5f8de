"""FPGAs that a worker may be built for: how much there is of everything, and their high-bandwidth memory.

How much there is of everything on the FPGAs that a worker may be built for.

Which pseudo channels of a board's high-bandwidth memory each memory of a worker gets.
"""

from dataclasses import dataclass

from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["BOARDS", "DEVICES", "HBM_U280", "Device", "Hbm", "HbmMap", "map_memories"]


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


@dataclass(frozen=True)
class Hbm:
    """High-bandwidth memory.

    Attributes
    ----------
    channels
        Pseudo channels, each with an AXI port of its own; one half of them belongs to each stack.
    channel_bytes
        Bytes of one.
    """

    channels: int
    channel_bytes: int


HBM_U280 = Hbm(32, 256 << 20)
"""Of an Alveo U280: two stacks of 4 GiB (DS963; PG276)."""


@dataclass(frozen=True)
class HbmMap:
    """Pseudo channels of a worker's memories.

    Attributes
    ----------
    channels
        Of each memory, in the order of `WorkerConfig.memories`. None are left for the labels where the banks of the
        engines take all: then these belong into the board's other memory.
    bank_bytes
        Bytes of an engine's bank.
    """

    channels: tuple[range, ...]
    bank_bytes: int

    @property
    def image_bytes(self) -> int:
        """Bytes of the largest image, without its labels: of lines and weights, padding included."""
        return self.bank_bytes * (len(self.channels) - 1)


def map_memories(config: WorkerConfig, hbm: Hbm) -> HbmMap:
    """Give every bank of a worker as many channels of its own as every other, evenly spread over both stacks.

    A channel that two masters read is no faster than with one, so none is shared. Labels, 32 bytes a micro-batch, get
    the last channel.

    Raises
    ------
    ValueError
        If there are more banks than channels.
    """
    banks = config.memories - 1
    if banks > hbm.channels:
        raise ValueError(f"{banks} banks of engines do not fit into {hbm.channels} channels of memory")
    apart = hbm.channels // banks
    each = max(1, (hbm.channels - 1) // banks)
    labels = range(hbm.channels - 1, hbm.channels) if banks * each < hbm.channels else range(0)
    starts = range(0, banks * apart, apart)
    return HbmMap((*(range(start, start + each) for start in starts), labels), each * hbm.channel_bytes)
