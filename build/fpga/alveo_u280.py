"""Amaranth platform of the AMD Alveo U280, in the manner of amaranth-boards.

Sources:

- pins and I/O standards: the public constraints of the card, which agree: AMD's master XDC ("AU280 HBM", revision 2.04
  of 2020-12-09), AMD's board files (XilinxBoardStore, au280, production 1.1), and the AU280 folders of the repositories
  verilog-ethernet and taxi
- clocks: the clock trees at the head of AMD's master XDC
- HBM_CATTRIP: UG1314, "Alveo U280 Data Center Accelerator Card User Guide"

AMD's own files contradict each other on the UART and on the oscillators' FS; comments at these resources explain the
choice. B31, an interrupt in one file and a reset in another, is left out. The card has no LED for designs.
"""

import subprocess
from pathlib import Path
from typing import Any

from amaranth.build import Attrs, Clock, DiffPairs, Pins, PinsN, Resource, ResourceError, Subsignal
from amaranth.hdl import ClockDomain, ClockSignal, Fragment, Instance, Module
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer
from amaranth.vendor import XilinxPlatform
from amaranth_boards.resources import I2CResource, UARTResource

_LVCMOS18 = Attrs(IOSTANDARD="LVCMOS18")
_LVDS = Attrs(IOSTANDARD="LVDS")

# AC-coupled inputs of a 1.2 V bank, which need a bias.
_LVDS_AC = Attrs(IOSTANDARD="LVDS", DQS_BIAS="TRUE")

_RESET_CYCLES = 16
"""Cycles of reset after configuration: by then the global write enable has reached the flip-flops of all three dies."""

CONFIGURATION = "\n" + Path(__file__).with_name("alveo_u280.xdc").read_text()
"""XDC constraints of every design for the card."""


def program_script(bitstream: str) -> str:
    """Tcl by which Vivado loads a ``.bit`` file into the first U280 on JTAG. It is lost when the card is reset."""
    return f"""\
open_hw_manager
connect_hw_server
open_hw_target
current_hw_device [lindex [get_hw_devices xcu280*] 0]
set_property PROGRAM.FILE {{{bitstream}}} [current_hw_device]
program_hw_devices [current_hw_device]
close_hw_manager
"""


def _lanes(count: int, *, tx_p: str, tx_n: str, rx_p: str, rx_n: str) -> tuple[Subsignal, Subsignal]:
    """Transceivers."""
    sent = DiffPairs(tx_p, tx_n, dir="o", assert_width=count)
    received = DiffPairs(rx_p, rx_n, dir="i", assert_width=count)
    return Subsignal("tx", sent), Subsignal("rx", received)


def _qsfp28(number: int, **pins: str) -> Resource:
    """Four transceivers of a cage. The satellite controller has the sideband signals and I2C of the module."""
    return Resource("qsfp28", number, *_lanes(4, **pins))


def _oscillator(number: int, *, clk_p: str, clk_n: str, oe_n: str, fs: str) -> Resource:
    """SI546 oscillator, the second reference clock of a cage's transceivers; the first is "qsfp28_refclk".

    Its frequency is 156.25 MHz while ``fs`` is low and 161.1328125 MHz while it is high, according to the clock trees
    of AMD's master XDC and the repository taxi. Remarks further down in the XDC have it the other way round. The
    constraint is the higher frequency.
    """
    return Resource(
        "qsfp28_osc",
        number,
        Subsignal("clk", DiffPairs(clk_p, clk_n, dir="i"), Clock(161.1328125e6)),
        Subsignal("oe", PinsN(oe_n, dir="o"), _LVCMOS18),
        Subsignal("fs", Pins(fs, dir="o"), _LVCMOS18),
    )


def _rdimm(number: int, *, a: str, dqs_p: str, dqs_n: str, rst: str, clk_p: str, clk_n: str, **pins: str) -> Resource:
    """16 GB of DDR4 with ECC: one rank of x4 chips, so there are 18 strobes and no data masks.

    Subsignals are those of `amaranth_boards.resources.DDR4Resource`, which cannot be used: it requires masks, and has a
    common I/O standard for reset and address. Strobe i belongs to ``dq[4 * i : 4 * i + 4]``, the order of Vivado's
    memory controller, not of JEDEC.
    """
    *address, we, cas, ras = a.split()  # JEDEC's A14 to A16
    low = pins | {"we": we, "cas": cas, "ras": ras}
    strobes = DiffPairs(dqs_p, dqs_n, dir="io", assert_width=18)
    clock = DiffPairs(clk_p, clk_n, dir="o", assert_width=1)
    return Resource(
        "ddr4",
        number,
        Subsignal("rst", PinsN(rst, dir="o", assert_width=1), Attrs(IOSTANDARD="LVCMOS12")),
        Subsignal("clk", clock, Attrs(IOSTANDARD="DIFF_SSTL12_DCI")),
        Subsignal("clk_en", Pins(pins["clk_en"], dir="o", assert_width=1)),
        *(Subsignal(name, PinsN(low[name], dir="o", assert_width=1)) for name in ("cs", "we", "ras", "cas", "act")),
        Subsignal("parity", Pins(pins["parity"], dir="o", assert_width=1)),
        Subsignal("a", Pins(" ".join(address), dir="o", assert_width=14)),
        Subsignal("ba", Pins(pins["ba"], dir="o", assert_width=2)),
        Subsignal("bg", Pins(pins["bg"], dir="o", assert_width=2)),
        Subsignal("dqs", strobes, Attrs(IOSTANDARD="DIFF_POD12_DCI")),
        Subsignal("dq", Pins(pins["dq"], dir="io", assert_width=72), Attrs(IOSTANDARD="POD12_DCI")),
        Subsignal("odt", Pins(pins["odt"], dir="o", assert_width=1)),
        Attrs(IOSTANDARD="SSTL12_DCI"),
    )


class AlveoU280Platform(XilinxPlatform):
    """Alveo U280: XCU280 with 8 GB of HBM2, two QSFP28 cages, PCI Express x16, two DDR4 modules.

    Vivado 2023.1 is the last release reported to support the FPGA.

    Pins of transceivers have no buffers of `amaranth.lib.io`: connect ``port.p`` and ``port.n`` to the vendor's core.
    If the card finds ``hbm_cattrip`` high or open, it switches the FPGA off. A design with the HBM core requests this
    resource and drives it with ``DRAM_0_STAT_CATTRIP | DRAM_1_STAT_CATTRIP``; in any other the platform drives it low.
    The domain ``sync``, unless the design defines it, is 100 MHz from ``clk100``, in reset for the first 16 cycles and
    while the card's button is pressed. STARTUPE3 is left to the design.
    """

    device = "xcu280"
    package = "fsvh2892"
    speed = "2L-e"
    default_clk = "clk100"
    default_rst = "rst"
    resources = [  # noqa: RUF012 - as all boards declare them
        Resource("clk100", 0, DiffPairs("G31", "F31", dir="i"), Clock(100e6), _LVDS),  # SYSCLK3
        Resource("clk156", 0, DiffPairs("G30", "F30", dir="i"), Clock(156.25e6), _LVDS),  # USER_SI570_CLOCK
        Resource("ddr4_refclk", 0, DiffPairs("BJ43", "BJ44", dir="i"), Clock(100e6), _LVDS_AC),  # SYSCLK0
        Resource("ddr4_refclk", 1, DiffPairs("BH6", "BJ6", dir="i"), Clock(100e6), _LVDS_AC),  # SYSCLK1
        Resource("rst", 0, PinsN("L30", dir="i"), _LVCMOS18),  # CPU_RESET: SW1, and the satellite controller
        Resource("hbm_cattrip", 0, Pins("D32", dir="o"), Attrs(IOSTANDARD="LVCMOS18", PULLDOWN="TRUE")),
        # By USB, FT4232H channel C. The names of AMD's board files, and the designs that use this port, have it
        # so; AMD's master XDC calls A28 an output.
        UARTResource(0, rx="A28", tx="B33", attrs=_LVCMOS18),
        # The satellite controller (an MSP432): the card management's UART, I2C slaves of the FPGA, and spare wires.
        UARTResource("satellite_uart", 0, rx="E28", tx="D29", attrs=_LVCMOS18),
        I2CResource(0, scl="C30", sda="C33", attrs=_LVCMOS18),
        I2CResource("sysmon_i2c", 0, scl="A30", sda="B28", attrs=_LVCMOS18),
        Resource("satellite_gpio", 0, Pins("K28 J29 K29 J31", dir="io"), _LVCMOS18),
        _qsfp28(
            0, tx_p="L48 L44 K46 J48", tx_n="L49 L45 K47 J49", rx_p="L53 K51 J53 H51", rx_n="L54 K52 J54 H52"
        ),  # quad 134
        _qsfp28(
            1, tx_p="G48 E48 C48 A49", tx_n="G49 E49 C49 A50", rx_p="G53 F51 E53 D51", rx_n="G54 F52 E54 D52"
        ),  # quad 135
        # From the SI570, which only the satellite controller can set to another frequency.
        Resource("qsfp28_refclk", 0, DiffPairs("T42", "T43", dir="i"), Clock(156.25e6)),
        Resource("qsfp28_refclk", 1, DiffPairs("P42", "P43", dir="i"), Clock(156.25e6)),
        _oscillator(0, clk_p="R40", clk_n="R41", oe_n="H32", fs="G32"),
        _oscillator(1, clk_p="M42", clk_n="M43", oe_n="H30", fs="G33"),
        # Lane 0 is the highest transceiver of quad 227, lane 15 the lowest of quad 224.
        Resource(
            "pcie",
            0,
            *_lanes(
                16,
                tx_p="AL11 AM9 AN11 AP9 AR11 AR7 AT9 AU11 AU7 AV9 AW11 AY9 BA11 BB9 BC11 BC7",
                tx_n="AL10 AM8 AN10 AP8 AR10 AR6 AT8 AU10 AU6 AV8 AW10 AY8 BA10 BB8 BC10 BC6",
                rx_p="AL2 AM4 AN6 AN2 AP4 AR2 AT4 AU2 AV4 AW6 AW2 AY4 BA6 BA2 BB4 BC2",
                rx_n="AL1 AM3 AN5 AN1 AP3 AR1 AT3 AU1 AV3 AW5 AW1 AY3 BA5 BA1 BB3 BC1",
            ),
            Subsignal("rst", PinsN("BH26", dir="i"), _LVCMOS18),
        ),
        Resource("pcie_power_brake", 0, PinsN("C32", dir="i"), _LVCMOS18),
        # The host's clock for lanes 0-7 and for lanes 8-15 or all 16, then the card's own for the same.
        Resource("pcie_refclk", 0, DiffPairs("AL15", "AL14", dir="i"), Clock(100e6)),
        Resource("pcie_refclk", 1, DiffPairs("AR15", "AR14", dir="i"), Clock(100e6)),
        Resource("pcie_refclk", 2, DiffPairs("AK13", "AK12", dir="i"), Clock(100e6)),
        Resource("pcie_refclk", 3, DiffPairs("AP13", "AP12", dir="i"), Clock(100e6)),
        # High holds both modules in self-refresh, cut off from the FPGA's resets (XAPP1321).
        Resource("ddr4_reset_gate", 0, Pins("H33", dir="o"), _LVCMOS18),
        _rdimm(
            0,
            rst="BG33",
            clk_p="BH46",
            clk_n="BJ46",
            clk_en="BH42",
            cs="BK46",
            act="BH41",
            odt="BG44",
            parity="BF45",
            a="BF46 BG43 BK45 BF42 BL45 BF43 BG42 BL43 BK43 BM42 BG45 BD41 BL42 BE44 BE43 BL46 BH44",
            ba="BH45 BM47",
            bg="BF41 BE41",
            dq="BN32 BP32 BL30 BM30 BP29 BP28 BP31 BN31 BJ31 BH31 BF32 BF33 BH29 BH30 BF31 BG32 "
            "BK31 BL31 BK33 BL33 BL32 BM33 BN34 BP34 BH34 BH35 BF35 BF36 BJ33 BJ34 BG34 BG35 "
            "BM52 BL53 BL52 BL51 BN50 BN51 BN49 BM48 BE50 BE49 BE51 BD51 BF52 BF51 BG50 BF50 "
            "BH50 BJ51 BH51 BH49 BK50 BK51 BJ49 BJ48 BN44 BN45 BM44 BM45 BP43 BP44 BN47 BP47 "
            "BG54 BG53 BE53 BE54 BH52 BG52 BK54 BK53",
            dqs_p="BN29 BM28 BJ29 BG29 BL35 BM34 BK34 BH32 BM49 BP48 BF47 BG48 BH47 BK48 BN46 BN42 BH54 BJ52",
            dqs_n="BN30 BM29 BK30 BG30 BM35 BN35 BK35 BJ32 BM50 BP49 BF48 BG49 BJ47 BK49 BP46 BP42 BJ54 BJ53",
        ),
        _rdimm(
            1,
            rst="BH12",
            clk_p="BJ3",
            clk_n="BJ2",
            clk_en="BE1",
            cs="BL3",
            act="BG3",
            odt="BH2",
            parity="BH1",
            a="BF7 BK1 BF6 BF5 BE3 BE6 BE5 BG7 BJ1 BG2 BJ8 BE4 BL2 BK5 BK8 BJ4 BF8",
            ba="BG8 BK4",
            bg="BF3 BF2",
            dq="A11 A10 A9 A8 B12 B10 C12 B11 E11 D11 E12 F11 F10 E9 F9 G11 "
            "H12 G13 H13 H14 J11 J12 J15 J14 A14 C15 A15 B15 F15 E14 F14 F13 "
            "BM3 BM4 BM5 BL6 BN4 BN5 BN6 BN7 BJ9 BK9 BK10 BL10 BM9 BN9 BN10 BM10 "
            "BM15 BM14 BL15 BM13 BN12 BM12 BP13 BP14 BJ13 BJ12 BH15 BH14 BK14 BK15 BL12 BL13 "
            "BE9 BE10 BF10 BE11 BG13 BG12 BG9 BG10",
            dqs_p="B13 C10 D10 H10 H15 K14 D15 E13 BL7 BP7 BL8 BP9 BN15 BP12 BJ14 BJ11 BF12 BH10",
            dqs_n="A13 C9 D9 G10 G15 K13 D14 D12 BM7 BP6 BM8 BP8 BN14 BP11 BK13 BK11 BF11 BH9",
        ),
    ]
    connectors: list[Any] = []  # noqa: RUF012

    def create_missing_domain(self, name: str) -> Module | None:
        """The domain ``sync``, without the STARTUPE3 by which Amaranth starts designs for this family."""
        if name != "sync":
            return None
        m = Module()
        m.submodules.clk_buf = clk_buf = io.Buffer(io.Direction.Input, self.request(self.default_clk, dir="-"))
        m.submodules.rst_buf = rst_buf = io.Buffer(io.Direction.Input, self.request(self.default_rst, dir="-"))
        m.domains.sync = ClockDomain()
        m.submodules.bufg = Instance("BUFG", i_I=clk_buf.i, o_O=ClockSignal())
        m.submodules.rst_sync = ResetSynchronizer(rst_buf.i, domain="sync", stages=_RESET_CYCLES)
        return m

    def prepare(self, elaboratable: Any, name: str = "top", **kwargs: Any) -> Any:
        """Elaborate a design, and drive ``hbm_cattrip`` low unless the design has requested it."""
        fragment = Fragment.get(elaboratable, self)
        try:
            port = self.request("hbm_cattrip", dir="-")
        except ResourceError:
            pass  # the design's
        else:
            fragment.add_subfragment(Fragment.get(io.Buffer(io.Direction.Output, port), self), "hbm_cattrip")
        return super().prepare(fragment, name, **kwargs)

    def toolchain_prepare(self, fragment: Any, name: str, **kwargs: Any) -> Any:
        """Add the card's configuration to the constraints; ResourceError if the design has requested ``hbm_cattrip``
        and does not drive it."""
        (pin,) = self.lookup("hbm_cattrip").ios[0].names
        if pin not in (used for _, used, _ in self.iter_port_constraints_bits()):
            raise ResourceError("hbm_cattrip is requested but not driven, which makes the card switch itself off")
        constraints = CONFIGURATION + kwargs.pop("add_constraints", "")
        return super().toolchain_prepare(fragment, name, add_constraints=constraints, **kwargs)

    def toolchain_program(self, products: Any, name: str, **kwargs: Any) -> None:
        """Load a bitstream by JTAG, with Vivado."""
        with products.extract(f"{name}.bit") as bitstream:
            script = Path(bitstream).with_suffix(".tcl")
            script.write_text(program_script(bitstream))
            try:
                subprocess.run(["vivado", "-mode", "batch", "-nojournal", "-nolog", "-source", script], check=True)
            finally:
                script.unlink()
