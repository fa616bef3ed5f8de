"""FPGA boards: resources, dies and high-bandwidth memory, and the map of a worker's memories to its channels."""

from dataclasses import dataclass

from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["BOARDS", "DEVICES", "HBM_U280", "Device", "Hbm", "HbmMap", "map_memories"]


@dataclass(frozen=True)
class Device:
    """A board and all resources of its FPGA, including those that the vendor's shell takes.

    Attributes
    ----------
    name
        Name of the board.
    lut, ff, bram, uram, dsp
        Number of LUTs, flip-flops, block RAMs of 36 Kbit, UltraRAMs of 288 Kbit, DSP slices.
    dies
        Number of dies (SLRs), all of the same size; die 0 is the lowest.
    memory_die, network_die
        The die beside the high-bandwidth memory, and the die with the transceivers of QSFP 0.
    source
        Documents that the numbers are taken from.
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
        """Number of CARRY8, one for every eight LUTs (UG574)."""
        return self.lut // 8


DEVICES = {
    "u280": Device("Alveo U280", 1_303_680, 2_607_360, 2_016, 960, 9_024, 3, 0, 2, "DS963, XCU280; UG1120; quad 134"),
    "u50": Device("Alveo U50", 872_000, 1_743_000, 1_344, 640, 5_952, 2, 0, 1, "DS965, XCU50; UG1120; quad 131"),
    "u55c": Device("Alveo U55C", 1_304_000, 2_607_000, 2_016, 960, 9_024, 3, 0, 1, "DS978, XCU55C; UG1120; quad 130"),
}
"""Boards, by the name on the command line.

Resources are taken from the data sheet, dies from UG1120. The die of the transceivers follows from the quad of QSFP 0
in the board's constraints: a die has four quads on each side, and the lowest is 124 (UG578)."""

BOARDS = {"u280": "u280", "u280_deep": "u280", "u280_wide": "u280", "u50": "u50", "u55c": "u55c"}
"""Board of each configuration in `p4sgd.hw.spec.config.PRESETS` that is made for a board."""


@dataclass(frozen=True)
class Hbm:
    """High-bandwidth memory.

    Attributes
    ----------
    channels
        Number of pseudo channels, half of them in each stack. Each has its own AXI port.
    channel_bytes
        Bytes of a channel.
    """

    channels: int
    channel_bytes: int


HBM_U280 = Hbm(32, 256 << 20)
"""HBM of an Alveo U280: two stacks of 4 GiB (DS963; PG276)."""


@dataclass(frozen=True)
class HbmMap:
    """Assignment of a worker's memories to pseudo channels.

    Attributes
    ----------
    channels
        Channels of each memory, in the order of `WorkerConfig.memories`. If the banks take the ports of all channels,
        the labels have none and belong in the board's other memory.
    bank_bytes
        Bytes of an engine's bank; the labels may lie at the end of the last.
    """

    channels: tuple[range, ...]
    bank_bytes: int

    @property
    def image_bytes(self) -> int:
        """Bytes of the largest memory image of a worker: lines and weights, padding included. Labels are part of it,
        unless they are in another memory."""
        return self.bank_bytes * (len(self.channels) - 1)


def map_memories(config: WorkerConfig, hbm: Hbm) -> HbmMap:
    """Give every bank of a worker the same number of neighbouring channels, as many as there are.

    A port reads its lines in order, so it changes channels but once in a while. Read like that, two channels are as
    fast as one: 13.1 GB/s were measured for either, of which a port takes 8 (github.com/Xilinx/Vitis-Tutorials,
    Hardware_Acceleration/Feature_Tutorials/07-using-hbm/3_BW_Explorations.md). In random order they would be slower.
    The labels get the last channel. Where the last bank has it, too, they are at its end: of 32 bytes a micro-batch, or
    64 with weights of samples, and 11 cycles or more for each, these are 1.5 GB/s at most.

    Raises
    ------
    ValueError
        If there are more banks than channels.
    """
    banks = config.memories - 1
    if banks > hbm.channels:
        raise ValueError(f"{banks} banks of engines do not fit into {hbm.channels} channels of memory")
    each = hbm.channels // banks
    labels = range(hbm.channels - 1, hbm.channels) if banks < hbm.channels else range(0)
    return HbmMap((*(range(bank * each, (bank + 1) * each) for bank in range(banks)), labels), each * hbm.channel_bytes)
