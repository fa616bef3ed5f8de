"""Loads of nets, and registers behind resets: of a design that is small enough to count them, and of an engine."""

import pytest

from p4sgd.build.estimate.loads import MAX_LOADS, MAX_RESETTABLE, Net, count_loads
from p4sgd.build.estimate.synthesis import Cell, Module, Netlist, synthesize
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.worker.worker import ENGINE, engine_verilog

DESIGN = """
module top(input clk, rst, first, enable, input [19:0] d, output reg [19:0] plain,
           output reg [7:0] cleared, output reg toggle, output [2:0] inside);
  reg part_rst;
  always @(posedge clk) begin
    part_rst <= rst;
    if (enable) plain <= d;                         // no reset
    cleared <= rst ? 8'h00 : first ? 8'h00 : d[7:0];  // two reasons to be cleared, of which one is a reset
    toggle <= (toggle ^ d[8]) & ~rst;               // a reset in the logic before the register
  end
  part part(.clk(clk), .part_rst(part_rst), .d(d[2:0]), .q(inside));
endmodule
module part(input clk, part_rst, input [2:0] d, output reg [2:0] q);
  always @(posedge clk) q <= part_rst ? 3'h5 : d;
endmodule"""


def test_loads_of_a_design(tmp_path):
    found = count_loads(synthesize(DESIGN, "top", tmp_path / "scratch", flat=True))
    assert found.resettable == 8 + 1 + 3 + 1, "cleared, toggle, q of the part, and its own reset"
    assert found.nets[0] == Net("enable", 20), "of the registers that it enables; the clock has 33"
    assert all(net.keeps_rule for net in found.nets)
    assert not Net("rst", MAX_LOADS + 1).keeps_rule


def test_hierarchy_is_refused():
    part = Module({}, [], {})
    top = Module({}, [Cell("part", "part", {}, {})], {})
    with pytest.raises(ValueError, match="without hierarchy"):
        count_loads(Netlist({"top": top, "part": part}, "top"))


@pytest.mark.slow
def test_the_reset_of_an_engine_reaches_few_registers(tmp_path):
    """Those that hold state: flags, pointers and counters, which hardly depend on the number of lanes."""
    config = WorkerConfig(lanes=8, chunks=2, line_fifo_depth=8, slots=2)
    found = count_loads(synthesize(engine_verilog(config), ENGINE, tmp_path / "scratch", flat=True))
    assert 50 < found.resettable <= MAX_RESETTABLE // 3
    (loads,) = [net.loads for net in found.nets if net.name == "reset"] or [0]
    assert loads <= found.resettable
