"""The U280's pins beside the FPGA's own: what a ball of the package can do must fit what the board's file has it do.

AMD publishes which ball is what, as xcu280fsvh2892pkg.txt; ``P4SGD_PACKAGE_FILE`` names a copy.
"""

import os
import re
from pathlib import Path

import pytest
from support.platform import lines

from p4sgd.build.boards.alveo_u280 import AlveoU280Platform

LINES = list(lines(AlveoU280Platform.resources))


@pytest.fixture(scope="module")
def balls():
    """Name of each ball by its place, such as IO_L11P_T1U_N8_GC_75 or MGTYTXP0_134."""
    file = os.environ.get("P4SGD_PACKAGE_FILE")
    if not file:
        pytest.skip("P4SGD_PACKAGE_FILE does not name AMD's xcu280fsvh2892pkg.txt")
    rows = re.findall(r"^([A-Z]{1,2}\d{1,2})\s+(\S+)", Path(file).read_text(), re.MULTILINE)
    assert len(rows) > 400, f"{file} is no package file"
    return dict(rows)


def test_both_pins_of_a_pair_belong_together(balls):
    for line in LINES:
        if len(line.pins) == 2:
            positive, negative = (balls[pin] for pin in line.pins)
            if positive.startswith("IO_L"):
                (pair, side), (other_pair, other_side) = (
                    re.match(r"IO_L(\d+)([PN])", name).groups() for name in (positive, negative)
                )
                assert (pair, side, other_side) == (other_pair, "P", "N"), line
                assert positive.rsplit("_", 1)[1] == negative.rsplit("_", 1)[1], f"{line}: two banks"
            else:
                assert negative == re.sub(r"P(\d?_\d+)$", r"N\1", positive), line


def test_clocks_come_in_where_clocks_can(balls):
    for line in LINES:
        if line.clock:
            assert re.search("_GC_|^MGTREFCLK", balls[line.pins[0]]), line


def test_banks_have_one_voltage(balls):
    """The digits of an I/O standard; a differential input as LVDS may be anywhere."""
    voltages = {}
    for line in LINES:
        standard = line.attrs.get("IOSTANDARD")
        if standard and standard != "LVDS":
            for pin in line.pins:
                bank = balls[pin].rsplit("_", 1)[1]
                voltages.setdefault(bank, set()).add(re.search(r"\d\d", standard)[0])
    assert voltages == {bank: {"12"} for bank in ("64", "65", "66", "68", "69", "70")} | {"67": {"18"}, "75": {"18"}}
    for line in LINES:
        if line.attrs.get("IOSTANDARD") == "LVDS":
            bank = balls[line.pins[0]].rsplit("_", 1)[1]
            assert ("DQS_BIAS" in line.attrs) == (voltages[bank] == {"12"}), line


@pytest.mark.parametrize("module", [0, 1])
def test_data_lie_beside_their_strobe(balls, module):
    """A strobe and its four bits share a bank and one half of a byte group of it."""

    def half(name, index):
        (line,) = (line for line in LINES if (line.name, line.index) == (f"ddr4_{module}.{name}", index))
        return re.search(r"_(T\d[LU])_.*_(\d+)$", balls[line.pins[0]]).groups()

    for strobe in range(18):
        assert {half("dq", 4 * strobe + bit) for bit in range(4)} == {half("dqs", strobe)}


@pytest.mark.parametrize("direction", ["tx", "rx"])
def test_lanes_are_those_of_their_quads(balls, direction):
    """A cage has a quad, lane by lane; PCI Express runs down from the highest channel of quad 227."""
    for line in LINES:
        match line.name.partition("."):
            case ("qsfp28_0" | "qsfp28_1" as cage, _, name) if name == direction:
                place = f"{line.index}_{134 + int(cage[-1])}"
            case ("pcie_0", _, name) if name == direction:
                place = f"{3 - line.index % 4}_{227 - line.index // 4}"
            case _:
                continue
        assert balls[line.pins[0]] == f"MGTY{direction.upper()}P{place}", line


def test_reference_clocks_are_those_of_their_quads(balls):
    clocks = {line.name: balls[line.pins[0]] for line in LINES if line.clock}
    for cage, quad in enumerate((134, 135)):
        assert clocks[f"qsfp28_refclk_{cage}"] == f"MGTREFCLK0P_{quad}"
        assert clocks[f"qsfp28_osc_{cage}.clk"] == f"MGTREFCLK1P_{quad}"
    for number, name in enumerate(("0P_227", "0P_225", "1P_227", "1P_225")):
        assert clocks[f"pcie_refclk_{number}"] == f"MGTREFCLK{name}"
