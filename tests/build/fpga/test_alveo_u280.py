"""The U280's platform: pins, constraints, clock and reset, and the pin that must never float."""

import re

import pytest
from amaranth.build import ResourceError
from amaranth.build.run import LocalBuildProducts
from amaranth.hdl import Elaboratable, Instance, Module, Signal
from amaranth.lib import io
from amaranth_boards.test.blinky import Blinky
from support import yosys
from support.platform import lines, pin_properties
from support.vendor_folders import programs

from p4sgd.build.fpga.alveo_u280 import AlveoU280Platform
from p4sgd.build.fpga.heartbeat import HeartbeatDesign

LINES = list(lines(AlveoU280Platform.resources))


@pytest.fixture(autouse=True)
def _yosys(monkeypatch):
    monkeypatch.setenv("AMARANTH_USE_YOSYS", "builtin")


class Everything(Elaboratable):
    """Requests all resources and drives or reads them all; transceivers go to a stand-in for the vendor's core."""

    def elaborate(self, platform):
        m = Module()
        for name, number in platform.resources:
            self.use(m, platform.request(name, number, dir="-"))
        return m

    def use(self, m, port):
        if not isinstance(port, io.SingleEndedPort | io.DifferentialPort):
            for member in vars(port).values():
                self.use(m, member)
        elif isinstance(port, io.SingleEndedPort) or port.p.metadata[0].attrs:
            m.submodules += io.Buffer(port.direction, port)
        else:
            side = "i" if port.direction is io.Direction.Input else "o"
            m.submodules += Instance("transceiver", **{f"{side}_p": port.p, f"{side}_n": port.n})


class Cattrip(Elaboratable):
    """Requests the HBM's alarm and does with it what it is told to."""

    def __init__(self, drive):
        self.drive = drive

    def elaborate(self, platform):
        m = Module()
        port = platform.request("hbm_cattrip", dir="-")
        if self.drive:
            alarm = Signal()
            m.submodules.hbm = Instance("hbm", o_DRAM_0_STAT_CATTRIP=alarm)
            m.submodules.buf = buf = io.Buffer("o", port)
            m.d.comb += buf.o.eq(alarm)
        return m


def plan(design, **options):
    return AlveoU280Platform().build(design, "top", do_build=False, emit_src=False, **options)


def netlist(files, folder):
    """Cells of the flattened design by name, as yosys writes them, and the bits of its ports."""
    top = yosys.netlist(files["top.v"], "top", "proc; flatten; opt_clean", folder)
    return top["cells"].values(), {name: port["bits"] for name, port in top["ports"].items()}


def test_everything_at_once_is_constrained():
    """Every pin is located once; all but the transceivers' have an I/O standard; every clock has its period."""
    pins = [pin for line in LINES for pin in line.pins]
    assert len(set(pins)) == len(pins)
    xdc = plan(Everything()).files["top.xdc"]
    located = {properties["LOC"]: properties for properties in pin_properties(xdc).values()}
    assert len(located) == len(pin_properties(xdc)) == sum(len(line.pins) for line in LINES)
    for line in LINES:
        transceiver = line.name.startswith(("qsfp28", "pcie")) and len(line.pins) == 2
        assert ("IOSTANDARD" in line.attrs) != transceiver, line
        for pin in line.pins:
            assert located[pin] == {"LOC": pin, **line.attrs}
    periods = re.findall(r'^create_clock -name \w+ -period ([\d.]+) \[get_nets "([^"]+)"\]$', xdc, re.MULTILINE)
    expected = {f"{line.name.replace('.', '__')}__p": 1e9 / line.clock for line in LINES if line.clock}
    assert len(periods) == 12
    assert {net: float(period) for period, net in periods} == pytest.approx(expected)


def test_the_card_is_configured():
    files = plan(HeartbeatDesign(), add_constraints="set_property EXAMPLE TRUE [current_design]").files
    assert "create_project -force -name top -part xcu280-fsvh2892-2L-e\n" in files["top.tcl"]
    for words in ("CONFIG_VOLTAGE 1.8", "CONFIG_MODE SPIx4", "BITSTREAM.CONFIG.SPI_32BIT_ADDR YES", "EXAMPLE TRUE"):
        assert f"set_property {words} [current_design]\n" in files["top.xdc"] + "\n"


def test_default_clock_and_reset(tmp_path):
    """The domain comes from the 100 MHz through one global buffer; reset is a chain that begins set."""
    platform = AlveoU280Platform()
    assert platform.default_clk_frequency == 100e6
    cells, ports = netlist(plan(HeartbeatDesign()).files, tmp_path)
    (buffer,) = (cell for cell in cells if cell["type"] == "IBUFDS")
    assert buffer["connections"]["I"] == ports["clk100_0__p"]
    assert buffer["connections"]["IB"] == ports["clk100_0__n"]
    (clock,) = (cell["connections"] for cell in cells if cell["type"] == "BUFG")
    assert clock["I"] == buffer["connections"]["O"]
    chain = [cell for cell in cells if cell["type"] == "FDPE"]
    assert len(chain) == 16
    (button,) = (cell["connections"] for cell in cells if cell["type"] == "IBUF")
    assert button["I"] == ports["rst_0__io"]  # low while it is pressed
    (inverter,) = (cell["connections"] for cell in cells if cell["connections"].get("A") == button["O"])
    for cell in chain:
        assert int(cell["parameters"]["INIT"], 2) == 1
        assert cell["connections"]["C"] == clock["O"]
        assert cell["connections"]["PRE"] == inverter["Y"]
    assert not [cell for cell in cells if cell["type"].startswith("STARTUP")]


def driver(files, folder):
    """What is at the input of the buffer that drives HBM_CATTRIP, which is never switched off."""
    cells, ports = netlist(files, folder)
    drivers = [cell for cell in cells if cell["connections"].get("O") == ports["hbm_cattrip_0__io"]]
    assert [cell["type"] for cell in drivers] == ["OBUFT"]
    assert drivers[0]["connections"]["T"] == ["0"]
    properties = pin_properties(files["top.xdc"])["hbm_cattrip_0__io"]
    assert properties == {"LOC": "D32", "IOSTANDARD": "LVCMOS18", "PULLDOWN": "TRUE"}
    return cells, drivers[0]["connections"]["I"]


@pytest.mark.parametrize("design", [HeartbeatDesign, Blinky, Everything])
def test_cattrip_is_low_unless_the_design_drives_it(design, tmp_path):
    _, level = driver(plan(design()).files, tmp_path)
    assert level == ["0"]


def test_cattrip_is_the_hbm_s_where_the_design_says_so(tmp_path):
    cells, level = driver(plan(Cattrip(drive=True)).files, tmp_path)
    (hbm,) = (cell for cell in cells if cell["type"] == "hbm")
    assert level == hbm["connections"]["DRAM_0_STAT_CATTRIP"]
    with pytest.raises(ResourceError, match="hbm_cattrip is requested but not driven"):
        plan(Cattrip(drive=False))


def test_a_bitstream_is_loaded_by_vivado(tmp_path, monkeypatch):
    (tmp_path / "top.bit").write_bytes(b"bits")
    said = tmp_path / "said"
    script = f'for last; do :; done; grep PROGRAM.FILE "$last" > {said} && cat "${{last%.tcl}}.bit" >> {said}'
    programs(tmp_path / "bin", monkeypatch, vivado=script)
    AlveoU280Platform().toolchain_program(LocalBuildProducts(str(tmp_path)), "top")
    assert re.fullmatch(r"set_property PROGRAM.FILE \{.*\.bit\} \[current_hw_device\]\nbits", said.read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"top.bit", "bin", "said"}
