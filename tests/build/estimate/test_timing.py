"""Paths and loads of designs that are small enough to work them out by hand, and the rules for ours."""

import pytest

from p4sgd.build.estimate.synthesis import Cell, Module, Netlist, synthesize
from p4sgd.build.estimate.timing import (
    MAX_LOADS,
    ROUTE,
    SETUP,
    Kind,
    Net,
    Path,
    TimingGraph,
)
from p4sgd.hw.kernel.cmac import CmacAdapter
from p4sgd.hw.verilog import to_verilog

KINDS = (Kind.LUT, Kind.CARRY, Kind.DSP, Kind.FLIP_FLOP)
LUT, CARRY, DSP, CLOCK_TO_OUT = (kind.delay for kind in KINDS)

PATHS = """
    module top(input clk, input [15:0] a, b, output reg [15:0] sum, input [10:0] c, output reg parity,
               input signed [15:0] d, e, output reg signed [31:0] product);
      reg [15:0] x, y;
      reg [10:0] z;
      reg signed [15:0] v, w;
      wire p, q;
      always @(posedge clk) begin
        x <= a; y <= b; sum <= x + y;
        z <= c; parity <= q;
        v <= d; w <= e; product <= v * w;
      end
      xors first(.i(z[5:0]), .o(p));
      xors second(.i({p, z[10:6]}), .o(q));
    endmodule
    module xors(input [5:0] i, output o);
      assign o = ^i;
    endmodule"""

LOADS = """
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


def synthesized(verilog, top, folder):
    return TimingGraph(synthesize(verilog, top, folder / "scratch", flat=True))


@pytest.mark.slow
def test_paths_of_a_design(tmp_path):
    """An adder of 16 bits, a parity of eleven bits over two modules, and a multiplier, side by side."""
    timing = synthesized(PATHS, "top", tmp_path).timing(count=100)
    paths = {path.end.split("[")[0]: path for path in reversed(timing.paths)}  # the longest of each

    path = paths["sum"]
    assert path.end == "sum[15]"
    assert path.start.split("[")[0] in ("x", "y")
    assert (path.luts, path.multipliers, path.chains) == (1, 0, (16,)), "a LUT before the chain, in the same slice"
    assert path.delay == pytest.approx(CLOCK_TO_OUT + ROUTE + LUT + 16 * CARRY + SETUP)
    assert path.keeps_rule

    path = paths["parity"]
    assert (path.end, path.luts) == ("parity", 2), "eleven bits need two LUTs in a row, one in each module"
    assert path.delay == pytest.approx(CLOCK_TO_OUT + 2 * (ROUTE + LUT) + SETUP)

    path = paths["product"]
    assert (path.luts, path.multipliers, path.chains) == (0, 1, ())
    assert path.delay == pytest.approx(CLOCK_TO_OUT + ROUTE + DSP + ROUTE + SETUP)


def test_rules():
    chains = ((), (48,), (49,), (8, 8))
    kept = {(luts, each) for luts in (3, 4) for each in chains if Path("", "", 1.0, luts, 0, each).keeps_rule}
    assert kept == {(3, ()), (3, (48,))}
    assert [Net("rst", MAX_LOADS + more).keeps_rule for more in (0, 1)] == [True, False]


def cell(kind, name, outputs=(), **pins):
    inputs = {pin: bits for pin, bits in pins.items() if pin not in outputs}
    return Cell(name, kind, inputs, {pin: pins[pin] for pin in outputs})


def timing_of(*cells, count=10, **names):
    names = {net: name for name, net in (names or {"x": 1, "s": 4}).items()}
    return TimingGraph(Netlist({"top": Module(list(cells), names)}, "top")).timing(count)


def test_memory_in_luts_is_read_at_its_address_and_written_at_the_clock():
    """From x through the memory to s; x is the address that is written too, where its path ends."""
    memory = cell("RAM32M16", "m", ["DOA"], ADDRA=[1], ADDRH=[1], DIA=[None], DOA=[3], WE=[None], WCLK=[9])
    timing = timing_of(
        cell("FDRE", "f", ["Q"], D=[None], Q=[1], C=[9]), memory, cell("FDRE", "g", ["Q"], D=[3], Q=[4], C=[9])
    )
    ends = {path.end: path for path in timing.paths}
    assert set(ends) == {"m ADDRH", "s"}
    assert (ends["s"].start, ends["s"].luts) == ("m", 0), "out of the memory takes longer than through it"
    assert (ends["m ADDRH"].start, ends["m ADDRH"].luts) == ("x", 0)


def test_black_boxes_are_registers():
    timing = timing_of(cell("box", "b", ["o"], i=[3], o=[1], clk=[9]), cell("LUT1", "l", ["O"], I0=[1], O=[3]))
    (path,) = timing.paths
    assert (path.start, path.end, path.luts) == ("x", "b i", 1)
    assert timing.ends == 1


def test_paths_that_break_the_rule_are_shown_even_if_others_are_longer():
    """Two multipliers in a row are longer than four LUTs, but allowed."""
    timing = timing_of(
        cell("FDRE", "f", ["Q"], D=[None], Q=[10]),
        *(cell("LUT1", f"l{net}", ["O"], I0=[net], O=[net + 1]) for net in (10, 11, 12, 13)),
        cell("FDRE", "g", ["Q"], D=[14], Q=[4]),
        cell("DSP48E2", "m", ["P"], A=[10], P=[20]),
        cell("DSP48E2", "n", ["P"], A=[20], P=[21]),
        cell("FDRE", "h", ["Q"], D=[21], Q=[5]),
        count=1,
        s=4,
        product=5,
    )
    assert [(path.end, path.keeps_rule) for path in timing.paths] == [("product", True), ("s", False)]
    assert (timing.breaking, timing.ends) == (1, 2)


def test_loops_are_refused():
    with pytest.raises(ValueError, match="loop"):
        timing_of(
            cell("LUT1", "l", ["O"], I0=[1], O=[2]),
            cell("LUT1", "m", ["O"], I0=[2], O=[1]),
            cell("FDRE", "f", ["Q"], D=[1], Q=[4]),
        )


def test_loads_of_a_design(tmp_path):
    found = synthesized(LOADS, "top", tmp_path).loads()
    assert found.resettable == 8 + 1 + 3 + 1, "cleared, toggle, q of the part, and its own reset"
    assert found.nets[0] == Net("enable", 20), "of the registers that it enables; the clock has 33"
    assert all(net.keeps_rule for net in found.nets)


@pytest.mark.slow
def test_the_macs_clock_domain_keeps_the_rule(tmp_path):
    """Its clock has 322 MHz, a quarter more than that of a worker."""
    timing = synthesized(to_verilog(CmacAdapter(), "adapter"), "adapter", tmp_path).timing()
    assert timing.ends > 5_000
    assert timing.breaking == 0, timing.paths[:3]
    assert timing.paths[0].delay < 0.75 * 1000 / 322.265625, timing.paths[0]
