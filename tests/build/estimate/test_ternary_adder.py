"""Sums of three as LUTs with two outputs: how large, how long, and proved to add."""

from collections import Counter
from pathlib import Path

import pytest
from support.yosys import run_yosys

from p4sgd.build.estimate import synthesis
from p4sgd.build.estimate.synthesis import synthesize
from p4sgd.build.estimate.timing import TimingGraph

MAP = Path(synthesis.__file__).with_name("ternary_adder.v")

ADDER = """
module {name}(input signed [5:0] a, input [3:0] b, input signed [2:0] c, output [{width}:0] y);
  assign y = a + {b} + c;
endmodule
"""


@pytest.mark.parametrize("width", [6, 8, 9])
@pytest.mark.parametrize("b", ["b", "$signed({1'b0, b})"], ids=["unsigned", "signed"])
def test_proved_for_all_operands(width, b, tmp_path):
    """By yosys' own models of the cells; narrower than the sum, as wide, and wider."""
    text = "".join(ADDER.format(name=name, width=width - 1, b=b) for name in ("gold", "gate"))
    (tmp_path / "adders.v").write_text(text)
    (tmp_path / MAP.name).write_text(MAP.read_text())
    run_yosys(
        f"read_verilog adders.v; proc; alumacc gate; techmap -map {MAP.name} gate; select -assert-count {width}"
        " gate/t:LUT6_2; read_verilog +/xilinx/cells_sim.v; hierarchy; proc; flatten gate;"
        " miter -equiv -flatten gold gate both; sat -verify -prove trigger 0 both",
        tmp_path,
    )


@pytest.mark.slow
def test_a_lut_a_bit_and_their_path(tmp_path):
    """Sums of three only: one of four has a second adder, and a difference stays with yosys.

    The path is through a LUT to the majority, through the next bit's to the chain, and along it; not from LUT to LUT.
    """
    verilog = """
        module top(input signed [7:0] a, b, c, d, e, f, g, output signed [8:0] three, four, less,
                   input clk, input signed [15:0] h, i, j, output reg signed [17:0] s);
          reg signed [15:0] x, y, z;
          assign three = a + b + c;
          assign less = d + e - f;
          assign four = a + c + e + g;
          always @(posedge clk) begin x <= h; y <= i; z <= j; s <= x + y + z; end
        endmodule"""
    netlist = synthesize(verilog, "top", tmp_path / "scratch", flat=True)
    assert Counter(cell.type for cell in netlist.modules["top"].cells)["LUT6_2"] == 9 + 18
    path = next(path for path in TimingGraph(netlist).timing(count=99).paths if path.end.startswith("s["))
    assert (path.end, path.luts) == ("s[17]", 2)
    assert path.chains == (17,), "from the second bit to the last"
