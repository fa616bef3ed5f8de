"""The U280's pins of I/O banks beside the FPGA's own: what a ball can do must fit what the board's file has it do.

AMD publishes which ball is what, as xcu280fsvh2892pkg.txt; ``P4SGD_PACKAGE_FILE`` names a copy. What transceivers have
is in `alveo_u280_pins.csv`.
"""

import os
import re
from pathlib import Path

import pytest
from support.platform import lines

from p4sgd.build.fpga.alveo_u280 import AlveoU280Platform

LINES = [
    line
    for line in lines(AlveoU280Platform.resources)
    if len(line.pins) == 1 or line.attrs  # transceivers and their clocks have no I/O standard
]


@pytest.fixture(scope="module")
def balls():
    """Name of each ball by its place, such as IO_L11P_T1U_N8_GC_75."""
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
            (pair, side), (other_pair, other_side) = (
                re.match(r"IO_L(\d+)([PN])", name).groups() for name in (positive, negative)
            )
            assert (pair, side, other_side) == (other_pair, "P", "N"), line
            assert positive.rsplit("_", 1)[1] == negative.rsplit("_", 1)[1], f"{line}: two banks"


def test_clocks_come_in_where_clocks_can(balls):
    for line in LINES:
        if line.clock:
            assert "_GC_" in balls[line.pins[0]], line


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
