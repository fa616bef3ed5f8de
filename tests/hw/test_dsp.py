"""Adders in DSP slices against integers, and as cells of an FPGA against themselves as plain logic."""

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import RisingEdge
from support.bench import FPGA_CELLS, default_seed, run_bench, start

from p4sgd.hw.dsp import DSP_BITS, Base, DspAdder
from p4sgd.hw.ultrascale import UltraScalePlus
from p4sgd.hw.verilog import to_verilog

LENGTH = 3
"""Adders of a cascade."""

PORTS = {"a": DSP_BITS, "b": DSP_BITS, "clear_a": 1, "clear_b": 1, "base": 5, "negative": 1}

EXTREMES = (0, -1, (1 << 47) - 1, -1 << 47, 1, 0x3FFFF, 0x20000, 0x2AAAAAAAAAAA)
"""Operands besides random ones: of all signs, and with carries between the parts A and B of a slice's operand."""


class Cascade(wiring.Component):
    """Adders in a row, with operands and controls of their own."""

    adders: In(data.ArrayLayout(data.StructLayout(PORTS), LENGTH))
    cascade_in: In(DSP_BITS)
    sums: Out(data.ArrayLayout(DSP_BITS, LENGTH))

    def elaborate(self, platform):
        m = Module()
        carried = self.cascade_in
        for place in range(LENGTH):
            m.submodules[f"adder{place}"] = adder = DspAdder()
            m.d.comb += [getattr(adder, name).eq(self.adders[place][name]) for name in PORTS if name != "base"]
            m.d.comb += [
                adder.base.eq(Base(self.adders[place].base)),
                adder.cascade_in.eq(carried),
                self.sums[place].eq(adder.sum),
            ]
            carried = adder.cascade_out
        return m


def random_operand():
    return random.choice([random.choice(EXTREMES), random.randrange(-1 << 47, 1 << 47)])


def random_inputs():
    """Of an adder in a cycle, by port."""
    base = random.choice(list(Base))
    clears = {f"clear_{name}": int(random.random() < 0.2) for name in "ab"}
    negative = 0 if base is Base.TWICE else random.getrandbits(1)
    return {"a": random_operand(), "b": random_operand(), **clears, "base": base.value, "negative": negative}


def pack(adders):
    """The port ``adders`` as a word."""
    word = shift = 0
    for inputs in adders:
        for name, bits in PORTS.items():
            word |= inputs[name] % (1 << bits) << shift
            shift += bits
    return word


@cocotb.test()
async def sums(dut):
    dut.adders.value = dut.cascade_in.value = 0
    await start(dut)
    held, totals = [(Base.ZERO, 0)] * LENGTH, [0] * LENGTH
    for _ in range(3000):
        adders, entering = [random_inputs() for _ in range(LENGTH)], random_operand()
        dut.adders.value, dut.cascade_in.value = pack(adders), entering % (1 << DSP_BITS)
        await RisingEdge(dut.clk)
        assert int(dut.sums.value) == sum(total << DSP_BITS * place for place, total in enumerate(totals))
        bases = [
            {Base.ZERO: 0, Base.CASCADE: before, Base.SUM: own, Base.TWICE: 2 * own}[base]
            for (base, _), before, own in zip(held, [entering, *totals[:-1]], totals, strict=True)
        ]
        totals = [(base + added) % (1 << DSP_BITS) for (_, added), base in zip(held, bases, strict=True)]
        held = [
            (Base(each["base"]), (-1) ** each["negative"] * sum(each[n] for n in "ab" if not each[f"clear_{n}"]))
            for each in adders
        ]


@pytest.mark.rtl
def test_adder():
    run_bench(Cascade(), __file__)


COMPARE = """
module compare;
  reg clk = 0;
  reg [INPUTS-1:0] inputs [0:CYCLES-1];
  reg [INPUTS-1:0] now = 0;
  wire [SUMS-1:0] plain, cells;
  integer cycle, errors = 0;
  plain plain_cascade(.clk(clk), .adders(now[INPUTS-1:48]), .cascade_in(now[47:0]), .sums(plain));
  cells cells_cascade(.clk(clk), .adders(now[INPUTS-1:48]), .cascade_in(now[47:0]), .sums(cells));
  always #2000 clk = ~clk;
  initial begin
    $readmemh("inputs.hex", inputs);
    #202000;  // until AMD's global reset has ended
    for (cycle = 0; cycle < CYCLES; cycle = cycle + 1) begin
      now = inputs[cycle];
      #4000 if (plain !== cells) errors = errors + 1;
    end
    $display("%0d of %0d cycles differ", errors, cycle);
    $finish;
  end
endmodule
"""

UNISIM = "P4SGD_UNISIM"
"""Variable with the folder of AMD's models (github.com/Xilinx/XilinxUnisimLibrary, verilog/src/unisims, and glbl.v)."""


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus Verilog is missing: apt-get install iverilog")
@pytest.mark.parametrize("model", ["ours", "of AMD"])
def test_cells_add_as_plain_logic_does(model, tmp_path):
    """In Icarus, with our model of the cell and with AMD's, from the first cycle on."""
    sources = [FPGA_CELLS]
    if model == "of AMD":
        if not (folder := os.environ.get(UNISIM)):
            pytest.skip(f"{UNISIM} names no folder with AMD's DSP48E2.v and glbl.v")
        sources = [Path(folder, name) for name in ("DSP48E2.v", "glbl.v")]
    random.seed(default_seed())
    cycles = 4000
    operands = [random_operand() % (1 << DSP_BITS) for _ in range(cycles)]
    words = [pack(random_inputs() for _ in range(LENGTH)) << DSP_BITS | operand for operand in operands]
    (tmp_path / "inputs.hex").write_text("".join(f"{word:x}\n" for word in words))
    sizes = {"INPUTS": LENGTH * sum(PORTS.values()) + DSP_BITS, "SUMS": LENGTH * DSP_BITS, "CYCLES": cycles}
    designs = [to_verilog(Cascade(), "plain"), to_verilog(Cascade(), "cells", platform=UltraScalePlus())]
    assert ["DSP48E2" in text for text in designs] == [False, True]
    top = re.sub("|".join(sizes), lambda match: str(sizes[match[0]]), COMPARE)
    (tmp_path / "design.v").write_text("\n".join(["`timescale 1ps/1ps", *designs, top]))
    command = ["iverilog", "-g2012", "-o", "compare", "-s", "compare", "design.v", *map(str, sources)]
    command += ["-s", "glbl"] if model == "of AMD" else []
    for each in (command, ["vvp", "compare"]):
        done = subprocess.run(each, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"0 of {cycles} cycles differ"
