"""The platform against a table of the card's pins, by the names that public constraints give them.

`alveo_u280_pins.csv` has port, pin, I/O standard and site of 409 pins. Transceivers and their clocks have a site and no
standard, all others a standard and no site. Ports and sites are called as in the repository taxi's constraints for the
card: a site is what the FPGA's package has at the pin, then the transceiver, or where the clock is from.
"""

import csv
import re
from pathlib import Path

import pytest
from support.platform import lines

from p4sgd.build.fpga.alveo_u280 import AlveoU280Platform
from p4sgd.build.fpga.vivado import PINS
from p4sgd.build.generate.boards import BOARDS

LINES = {str(line): line for line in lines(AlveoU280Platform.resources)}

with Path(__file__).with_name("alveo_u280_pins.csv").open() as file:
    ROWS = list(csv.DictReader(file))

SITES = {row["pin"]: row["site"] for row in ROWS}

NAMES = {
    r"clk_100mhz_([01])_(?P<side>[pn])": r"ddr4_refclk_\1",
    r"clk_100mhz_2_(?P<side>[pn])": "clk100_0",
    r"clk_si570_(?P<side>[pn])": "clk156_0",
    "reset": "rst_0",
    # As the USB's side says it; that of the satellite is the FPGA's.
    "usb_uart_txd": "uart_0.rx",
    "usb_uart_rxd": "uart_0.tx",
    "msp_uart_([tr]x)d": r"satellite_uart_0.\1",
    "msp_gpio": "satellite_gpio_0",
    "hbm_cattrip": "hbm_cattrip_0",
    r"qsfp([01])_mgt_refclk_0_(?P<side>[pn])": r"qsfp28_refclk_\1",
    r"qsfp([01])_mgt_refclk_1_(?P<side>[pn])": r"qsfp28_osc_\1.clk",
    "qsfp([01])_refclk_oe_b": r"qsfp28_osc_\1.oe",
    "qsfp([01])_refclk_fs": r"qsfp28_osc_\1.fs",
    "qsfp([01])_([rt]x)_(?P<side>[pn])": r"qsfp28_\1.\2",
    r"pcie_refclk_([0-3])_(?P<side>[pn])": r"pcie_refclk_\1",
    "pcie_reset_n": "pcie_0.rst",
    "pcie_([rt]x)_(?P<side>[pn])": r"pcie_0.\1",
    "ddr4_c([01])_adr": r"ddr4_\1.a",
    "ddr4_c([01])_(ba|bg|dq|odt)": r"ddr4_\1.\2",
    "ddr4_c([01])_dqs_(?P<side>[tc])": r"ddr4_\1.dqs",
    "ddr4_c([01])_ck_(?P<side>[tc])": r"ddr4_\1.clk",
    "ddr4_c([01])_cke": r"ddr4_\1.clk_en",
    "ddr4_c([01])_(cs|act)_n": r"ddr4_\1.\2",
    "ddr4_c([01])_par": r"ddr4_\1.parity",
    "ddr4_c([01])_reset_n": r"ddr4_\1.rst",
}
"""What the platform calls a port of the table."""

COMMANDS = {14: "we", 15: "cas", 16: "ras"}
"""Address lines of DDR4 that are commands too (JESD79-4)."""


def platform_name(port):
    """Line of the platform, and which of its pins: 0, or 1 for the negative one of a pair."""
    name, index = re.fullmatch(r"(\w+?)(?:\[(\d+)\])?", port).groups()
    for pattern, ours in NAMES.items():
        if match := re.fullmatch(pattern, name):
            ours, index = match.expand(ours), int(index or 0)
            if ours.endswith(".a") and index in COMMANDS:
                ours, index = ours.removesuffix("a") + COMMANDS[index], 0
            return f"{ours}[{index}]", int(match.groupdict().get("side") in ("n", "c"))
    raise AssertionError(f"the platform has nothing for {port}")


def site(line):
    """What the package has at both pins of a pair, if that is a pair, and what is behind."""
    (positive, behind), (negative, behind_too) = (SITES[pin].split(" ", 1) for pin in LINES[line].pins)
    assert negative == re.sub(r"P(\d?_\d+)$", r"N\1", positive), line
    assert behind == behind_too, line
    return positive, behind


def channel(line):
    """The transceiver of a lane, as X0Y40."""
    _, behind = site(line)
    column, row, column_too, quad = re.fullmatch(
        r"GTYE4_CHANNEL_X(\d)Y(\d+) / GTYE4_COMMON_X(\d)Y(\d+)", behind
    ).groups()
    assert (column, int(row) // 4) == (column_too, int(quad)), line
    return f"X{column}Y{row}"


def test_every_pin_of_the_table():
    assert len(ROWS) == 409
    for row in ROWS:
        name, side = platform_name(row["port"])
        line = LINES[name]
        assert line.pins[side] == row["pin"], row["port"]
        assert line.attrs.get("IOSTANDARD", "") == row["iostandard"], row["port"]
        assert bool(row["iostandard"]) != bool(row["site"]), row["port"]
    named = [platform_name(row["port"]) for row in ROWS]
    assert len(set(named)) == len(ROWS), "none stands for two"
    assert len(SITES) == len(ROWS)


@pytest.mark.parametrize("cage", [0, 1])
def test_a_mac_has_the_transceivers_of_its_cage(cage):
    channels = [channel(f"qsfp28_{cage}.rx[{lane}]") for lane in range(4)]
    column, first = re.fullmatch(r"X(\d)Y(\d+)", channels[0]).groups()
    assert channels == [f"X{column}Y{int(first) + lane}" for lane in range(4)]
    assert BOARDS["u280"].cages[cage].lanes == f"{channels[0]}~{channels[3]}"


def test_the_host_s_quad_is_that_of_lane_0():
    name, _ = site("pcie_0.rx[0]")
    assert f"GTY_Quad_{name.rsplit('_', 1)[1]}" == PINS["u280"].host_quad
