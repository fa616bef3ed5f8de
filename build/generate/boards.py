"""FPGA boards: resources, dies, memory, cages and shells, and the map of a worker's memories to channels of HBM."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from p4sgd.hw.spec.cmac import FEC_LANES
from p4sgd.hw.spec.config import NamedConfig, WorkerConfig
from p4sgd.hw.spec.registry import Registry


def _need(right: bool, what: object, name: str, wanted: str) -> None:
    """ValueError unless a field of a board or its parts has a value that can be."""
    if not right:
        raise ValueError(f"{name} of {type(what).__name__} must be {wanted}, not {getattr(what, name)!r}")


def _need_numbers(what: object, *names: str) -> None:
    for name in names:
        value = getattr(what, name)
        _need(type(value) is int and value > 0, what, name, "a whole number from 1 on")


def _need_text(what: object, name: str, pattern: str, wanted: str) -> None:
    value = getattr(what, name)
    _need(isinstance(value, str) and re.fullmatch(pattern, value) is not None, what, name, wanted)


def _need_several(what: object, name: str, kind: type) -> None:
    value = getattr(what, name)
    right = isinstance(value, tuple) and len(value) > 0 and all(isinstance(each, kind) for each in value)
    _need(right, what, name, f"one or more of the class {kind.__name__} in a tuple")


@dataclass(frozen=True)
class Hbm:
    """High-bandwidth memory: pseudo channels, half of them in each stack, each with an AXI port, and bytes of each."""

    channels: int
    channel_bytes: int

    def __post_init__(self) -> None:
        _need_numbers(self, "channels", "channel_bytes")
        _need(self.channels % 2 == 0, self, "channels", "even, as half of them are in each stack")
        _need(self.channel_bytes % _PAGE == 0, self, "channel_bytes", f"a multiple of {_PAGE}")


_PAGE = 4096
"""Bytes whose multiples no burst of AXI crosses."""


@dataclass(frozen=True)
class Cage:
    """A QSFP28 cage, the MAC that reaches it, and their names in the shell."""

    mac: str  # site of the MAC (PG203)
    # Sites of its four transceivers. The first quad of the column is 124, and a quad has four of them (UG578).
    lanes: str
    reference_megahertz: str  # reference clock of the transceivers
    # Names of the shell's interfaces.
    transceivers: str
    reference_clock: str

    def __post_init__(self) -> None:
        _need_text(self, "mac", r"CMACE4_X\d+Y\d+", "a site such as CMACE4_X0Y5")
        four = "four sites such as X0Y40~X0Y43"
        _need_text(self, "lanes", r"(X\d+Y)\d+~\1\d+", four)
        first, last = re.findall(r"Y(\d+)", self.lanes)
        _need(int(last) - int(first) + 1 == FEC_LANES, self, "lanes", four)
        _need_text(self, "reference_megahertz", r"\d+(\.\d+)?", "a number in quotes")
        for name in ("transceivers", "reference_clock"):
            _need_text(self, name, r"\w+", "the name of an interface")


@dataclass(frozen=True)
class Shell:
    """A Vitis platform."""

    platform: str  # name of the platform
    # Releases of the tools that support the platform and were looked at, oldest first.
    releases: tuple[str, ...] = ("2022.1", "2022.2", "2023.1")
    other_memory: str = ""  # memory for the labels if the banks take all ports of HBM; empty if there is none
    # Pin of the platform's free-running clock, and its frequency.
    free_clock: str = "ii_level0_wire/ulp_m_aclk_freerun_ref_00"
    free_megahertz: int = 100
    # Numbers of resources that the platform leaves on each die, by the names of those of a `Board`, and where they are
    # from (``build/fpga/README.md``); empty if not known.
    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    left_source: str = ""

    def __post_init__(self) -> None:
        _need_text(self, "platform", r"\w+", "the name of a Vitis platform")
        _need_numbers(self, "free_megahertz")
        _need_several(self, "releases", str)
        known = isinstance(self.left, Mapping) and set(self.left) <= set(_RESOURCES)
        _need(known, self, "left", f"a dict with keys of {', '.join(_RESOURCES)}")


_RESOURCES = ("lut", "ff", "carry", "dsp", "bram", "uram")


@dataclass(frozen=True)
class Board:
    """A board and all resources of its FPGA, including those that the vendor's shell takes."""

    # Names of the board and of its FPGA.
    name: str
    part: str
    # Number of LUTs, flip-flops, block RAMs of 36 Kbit, UltraRAMs of 288 Kbit, DSP slices.
    lut: int
    ff: int
    bram: int
    uram: int
    dsp: int
    dies: int  # number of dies (SLRs), all of the same size; die 0 is the lowest
    # The die beside the high-bandwidth memory, and the die with the transceivers of the cages.
    memory_die: int
    network_die: int
    # High-bandwidth memory, whose channels v++ calls ``HBM[i]``; QSFP28 cages; the shell for which Vitis links.
    hbm: Hbm
    cages: tuple[Cage, ...]
    shell: Shell
    watts: int  # most power that the FPGA should take
    source: str  # documents that the numbers are taken from

    def __post_init__(self) -> None:
        for name in ("name", "part", "source"):
            _need_text(self, name, ".+", "a text")
        _need_numbers(self, "lut", "ff", "bram", "uram", "dsp", "dies", "watts")
        for name in ("memory_die", "network_die"):
            _need(getattr(self, name) in range(self.dies), self, name, f"one of {self.dies} dies, counted from 0")
        for name, kind in (("hbm", Hbm), ("shell", Shell)):
            _need(isinstance(getattr(self, name), kind), self, name, f"of the class {kind.__name__}")
        _need_several(self, "cages", Cage)
        for name, numbers in self.shell.left.items():
            can_be = range(getattr(self, name) + 1)
            each_die = isinstance(numbers, tuple) and len(numbers) == self.dies
            if not each_die or not all(number in can_be for number in numbers):
                raise ValueError(f"left of Shell must have {self.dies} numbers of {name}, not {numbers}")

    @property
    def carry(self) -> int:
        """Number of CARRY8, one for every eight LUTs (UG574)."""
        return self.lut // 8


_SI570, _OSCILLATOR = "156.25", "161.1328125"
"""Reference clocks in MHz: the Si570 of a U280 after power-up (UG1314), and the oscillator of the other boards."""

_LEFT_ON_U280 = {
    "lut": (369_000, 333_000, 367_000),
    "ff": (746_000, 675_000, 729_000),
    "carry": (46_125, 41_625, 45_875),
    "dsp": (2_733, 2_877, 2_880),
    "bram": (507, 468, 512),
    "uram": (320, 320, 320),
}

_OWN = {
    "u280": Board(
        "Alveo U280",
        "xcu280-fsvh2892-2L-e",
        lut=1_303_680,
        ff=2_607_360,
        bram=2_016,
        uram=960,
        dsp=9_024,
        dies=3,
        memory_die=0,
        network_die=2,
        hbm=Hbm(32, 256 << 20),
        cages=(
            Cage("CMACE4_X0Y5", "X0Y40~X0Y43", _SI570, "io_gt_qsfp0_00", "io_clk_qsfp0_refclka_00"),
            Cage("CMACE4_X0Y6", "X0Y44~X0Y47", _SI570, "io_gt_qsfp1_00", "io_clk_qsfp1_refclka_00"),
        ),
        shell=Shell(
            "xilinx_u280_gen3x16_xdma_1_202211_1",
            other_memory="DDR[0]",
            left=_LEFT_ON_U280,
            left_source="UG1120",
        ),
        watts=160,
        source="DS963, XCU280; UG1120; quad 134",
    ),
    "u50": Board(
        "Alveo U50",
        "xcu50-fsvh2104-2L-e",
        lut=872_000,
        ff=1_743_000,
        bram=1_344,
        uram=640,
        dsp=5_952,
        dies=2,
        memory_die=0,
        network_die=1,
        hbm=Hbm(32, 256 << 20),
        cages=(Cage("CMACE4_X0Y3", "X0Y28~X0Y31", _OSCILLATOR, "io_gt_qsfp_00", "io_clk_qsfp_refclka_00"),),
        shell=Shell(
            "xilinx_u50_gen3x16_xdma_5_202210_1",
            left={
                "lut": (365_000, 365_000),
                "ff": (730_000, 730_000),
                "carry": (45_625, 45_625),
                "dsp": (2_580, 2_580),
                "bram": (564, 564),
                "uram": (304, 304),
            },
            left_source="UG1120 on the shell of 2020",
        ),
        watts=63,
        source="DS965, XCU50; UG1120; quad 131",
    ),
    "u55c": Board(
        "Alveo U55C",
        "xcu55c-fsvh2892-2L-e",
        lut=1_304_000,
        ff=2_607_000,
        bram=2_016,
        uram=960,
        dsp=9_024,
        dies=3,
        memory_die=0,
        network_die=1,
        hbm=Hbm(32, 512 << 20),
        cages=(
            Cage("CMACE4_X0Y2", "X0Y24~X0Y27", _OSCILLATOR, "io_gt_qsfp0_00", "io_clk_qsfp0_refclka_00"),
            Cage("CMACE4_X0Y4", "X0Y28~X0Y31", _OSCILLATOR, "io_gt_qsfp1_00", "io_clk_qsfp1_refclka_00"),
        ),
        shell=Shell(
            "xilinx_u55c_gen3x16_xdma_3_202210_1",
            left=_LEFT_ON_U280,
            left_source="assumed to be as much as on a U280",
        ),
        watts=100,
        source="DS978, XCU55C; UG1120; quad 130",
    ),
}


def _check(name: str, declared: Any) -> Board:
    """The board that another package or file declares."""
    if not isinstance(declared, Board):
        raise TypeError(f"{name} is not of the class p4sgd.build.generate.boards.Board")
    return declared


BOARDS = Registry("p4sgd.boards", _OWN, _check)
"""Boards, by the name on the command line: all that is known of them, but for the pins of designs without a shell
(`p4sgd.build.fpga.vivado.PINS`). ``build/fpga/README.md`` has the sources."""

BOARD_OF = {"u280": "u280", "u280_deep": "u280", "u50": "u50", "u55c": "u55c"}
"""Board of each configuration in `p4sgd.hw.spec.config.PRESETS` that is made for a board."""


def board_of(config: NamedConfig) -> str | None:
    """Name of the board that a configuration is made for, None if it is for none."""
    return config.board or BOARD_OF.get(config.name)


@dataclass(frozen=True)
class HbmMap:
    """Assignment of a worker's memories to pseudo channels."""

    # Channels of each memory, in the order of `WorkerConfig.memories`: of banks, then the last one for the labels.
    channels: tuple[range, ...]
    bank_bytes: int  # bytes of an engine's bank; the labels may lie at the end of the last
    labels_share: bool  # the port of the labels' channel is that of a bank, as banks take the ports of all channels

    @property
    def image_bytes(self) -> int:
        """Bytes of the largest memory image of a worker: lines and weights, padding included."""
        return self.bank_bytes * (len(self.channels) - 1)


def map_memories(config: WorkerConfig, hbm: Hbm) -> HbmMap:
    """Give every bank of a worker the same number of neighbouring channels, as many as there are, and labels the last.

    A port reads its lines in order, so it changes channels but once in a while. Read like that, two channels are as
    fast as one: 13.1 GB/s were measured for either, of which a port takes 8 (github.com/Xilinx/Vitis-Tutorials,
    Hardware_Acceleration/Feature_Tutorials/07-using-hbm/3_BW_Explorations.md). Labels, at the end of the last bank if
    that has the last channel, take 1.5 GB/s at most. ValueError if there are more banks than channels.
    """
    banks = config.memories - 1
    if banks > hbm.channels:
        raise ValueError(f"{banks} banks of engines do not fit into {hbm.channels} channels of memory")
    each = hbm.channels // banks
    ranges = (*(range(bank * each, (bank + 1) * each) for bank in range(banks)), range(hbm.channels)[-1:])
    return HbmMap(ranges, each * hbm.channel_bytes, labels_share=banks == hbm.channels)
