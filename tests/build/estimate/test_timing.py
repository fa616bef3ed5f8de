"""Paths of designs that are small enough to work them out by hand."""

import pytest

from p4sgd.build.estimate.synthesis import Cell, Module, Netlist, Port, synthesize
from p4sgd.build.estimate.timing import CLOCK_TO_OUT, DELAY, ROUTE, SETUP, Kind, Path, analyse
from p4sgd.hw.kernel.cmac import CmacAdapter
from p4sgd.hw.verilog import to_verilog

LUT, CARRY, DSP = (DELAY[kind] for kind in (Kind.LUT, Kind.CARRY, Kind.DSP))


@pytest.mark.slow
def test_paths_of_a_design(tmp_path):
    """An adder of 16 bits, a parity of eleven bits over two modules, and a multiplier, side by side."""
    verilog = """
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
        module xors(input [5:0] i, output o); assign o = ^i; endmodule"""
    timing = analyse(synthesize(verilog, "top", tmp_path / "scratch", flat=True), count=100)
    paths = {path.end.split("[")[0]: path for path in reversed(timing.paths)}  # the longest of each

    path = paths["sum"]
    assert path.end == "sum[15]"
    assert path.start.split("[")[0] in ("x", "y")
    assert (path.luts, path.multipliers, path.chains) == (1, 0, (16,)), "a LUT before the chain, in the same slice"
    assert path.delay == pytest.approx(CLOCK_TO_OUT + ROUTE + LUT + 16 * CARRY + SETUP)
    assert path.keeps_rule
    assert path.megahertz == pytest.approx(1000 / path.delay)

    path = paths["parity"]
    assert (path.end, path.luts) == ("parity", 2), "eleven bits need two LUTs in a row, one in each module"
    assert path.delay == pytest.approx(CLOCK_TO_OUT + 2 * (ROUTE + LUT) + SETUP)

    path = paths["product"]
    assert (path.luts, path.multipliers, path.chains) == (0, 1, ())
    assert path.delay == pytest.approx(CLOCK_TO_OUT + ROUTE + DSP + ROUTE + SETUP)


def test_rule():
    def path(luts, *chains):
        return Path("", "", 1.0, luts, 0, chains)

    assert path(3, 48).keeps_rule
    assert not path(4).keeps_rule
    assert not path(0, 49).keeps_rule
    assert not path(0, 8, 8).keeps_rule


def cell(kind, name, outputs=(), **pins):
    return Cell(name, kind, {}, {pin: Port(pin in outputs, bits) for pin, bits in pins.items()})


def graph(*cells):
    return analyse(Netlist({"top": Module({}, list(cells), {1: "x", 4: "s"})}, "top"))


def test_memory_in_luts_is_read_at_its_address_and_written_at_the_clock():
    """From x through the memory to s; x is the address that is written too, where its path ends."""
    memory = cell("RAM32M16", "m", ["DOA"], ADDRA=[1], ADDRH=[1], DIA=[None], DOA=[3], WE=[None], WCLK=[9])
    timing = graph(cell("FDRE", "f", "Q", D=[None], Q=[1], C=[9]), memory, cell("FDRE", "g", "Q", D=[3], Q=[4], C=[9]))
    ends = {path.end: path for path in timing.paths}
    assert set(ends) == {"m ADDRH", "s"}
    assert (ends["s"].start, ends["s"].luts) == ("m", 0), "out of the memory takes longer than through it"
    assert (ends["m ADDRH"].start, ends["m ADDRH"].luts) == ("x", 0)


def test_black_boxes_are_registers():
    timing = graph(cell("box", "b", "o", i=[3], o=[1], clk=[9]), cell("LUT1", "l", "O", I0=[1], O=[3]))
    ((path),) = timing.paths
    assert (path.start, path.end, path.luts) == ("x", "b i", 1)
    assert timing.ends == 1


def test_paths_that_break_the_rule_are_shown_even_if_others_are_longer():
    """Two multipliers in a row are longer than four LUTs, but allowed."""
    chain = [cell("LUT1", f"l{net}", "O", I0=[net], O=[net + 1]) for net in (10, 11, 12, 13)]
    netlist = Netlist(
        {
            "top": Module(
                {},
                [
                    cell("FDRE", "f", "Q", D=[None], Q=[10]),
                    *chain,
                    cell("FDRE", "g", "Q", D=[14], Q=[4]),
                    cell("DSP48E2", "m", "P", A=[10], P=[20]),
                    cell("DSP48E2", "n", "P", A=[20], P=[21]),
                    cell("FDRE", "h", "Q", D=[21], Q=[5]),
                ],
                {4: "s", 5: "product"},
            )
        },
        "top",
    )
    timing = analyse(netlist, count=1)
    assert [(path.end, path.keeps_rule) for path in timing.paths] == [("product", True), ("s", False)]
    assert (timing.breaking, timing.ends) == (1, 2)


def test_hierarchy_is_refused():
    inner = Module({}, [], {})
    with pytest.raises(ValueError, match="hierarchy"):
        analyse(Netlist({"top": inner, "inner": inner}, "top"))


def test_loop():
    with pytest.raises(ValueError, match="loop"):
        graph(
            cell("LUT1", "l", "O", I0=[1], O=[2]),
            cell("LUT1", "m", "O", I0=[2], O=[1]),
            cell("FDRE", "f", "Q", D=[1], Q=[4]),
        )


@pytest.mark.slow
def test_the_macs_clock_domain_keeps_the_rule(tmp_path):
    """Its clock has 322 MHz, a quarter more than that of a worker."""
    timing = analyse(synthesize(to_verilog(CmacAdapter(), "adapter"), "adapter", tmp_path / "scratch", flat=True))
    assert timing.ends > 5_000
    assert timing.breaking == 0, timing.paths[:3]
    assert timing.paths[0].delay < 0.75 * 1000 / 322.265625, timing.paths[0]
