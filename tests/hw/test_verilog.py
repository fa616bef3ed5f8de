"""Modules that are the same become one, and nothing else changes."""

import inspect
import re
from pathlib import Path

import pytest
from amaranth.back import verilog
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from support.yosys import run_yosys

from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.datapath.lines import LineFIFO
from p4sgd.hw.kernel.frames import FrameBuffer
from p4sgd.hw.net.timers import ResendTimer
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import modules, share_modules, to_verilog, write_verilog

SMALL = WorkerConfig.small()

TOP = r"""
(* generator = "Amaranth" *)
module top(a, b, c, d);
  \top.left  left (
    .a(a),
    .b(b)
  );
  \top.right  \right$1  (
    .a(c),
    .b(d)
  );
endmodule
"""
SIDE = r"""
(* generator = "Amaranth" *)
module \top.SIDE (a, b);
  reg \$auto$verilog_backend.cc:2355:dump_module$NUMBER  = 0;
  \top.SIDE.leaf  leaf (
    .a(a),
    .b(b)
  );
endmodule

(* generator = "Amaranth" *)
module \top.SIDE.leaf (a, b);
  assign b = a;
endmodule
"""
SIDES = {"left": "6", "right": "7"}
PAIRS = TOP + "".join(SIDE.replace("SIDE", side).replace("NUMBER", number) for side, number in SIDES.items())


def test_parents_of_shared_modules_are_shared_too():
    shared = share_modules(PAIRS)
    assert list(modules(shared)) == ["top", r"\top.left", r"\top.left.leaf"]
    assert re.findall(r"^  (\S+)  (\S+) +\($", shared, re.MULTILINE) == [
        (r"\top.left", "left"),
        (r"\top.left", r"\right$1"),
        (r"\top.left.leaf", "leaf"),
    ]
    assert share_modules(shared) == shared


def test_modules_that_differ_stay():
    different = PAIRS.replace("assign b = a;", "assign b = ~a;", 1)
    assert list(modules(share_modules(different))) == list(modules(PAIRS))


def test_ultra_ram_begins_with_zeros():
    """It cannot begin with anything else (UG573), so the text has no initial words for it."""
    text = to_verilog(LineFIFO(WorkerConfig(lanes=8, line_fifo_depth=4096)), "top")
    memory = re.compile(r'^  \(\* ram_style = "ultra" \*\)\n  reg \[\d+:0\] (\w+) \[4095:0\];\n', re.MULTILINE)
    (name,) = memory.findall(text)
    assert not re.search(rf"initial begin|{name}\[\d+\] = ", text[memory.search(text).end() :])


@pytest.mark.slow
def test_proven_equivalent(tmp_path):
    """yosys proves every register and output of the shared design equal to the one that Amaranth wrote."""
    gold = verilog.convert(DotProduct(SMALL), name="gold", emit_src=False)
    (tmp_path / "gold.v").write_text(gold)
    shared = share_modules(gold.replace("gold", "gate"))
    assert shared.count("endmodule") < gold.count("endmodule")
    (tmp_path / "gate.v").write_text(shared)
    read = "".join(
        f"read_verilog {top}.v; hierarchy -top {top}; proc; memory; flatten; opt_clean; design -stash {top}; "
        for top in ("gold", "gate")
    )
    run_yosys(
        f"{read} design -copy-from gold -as gold gold; design -copy-from gate -as gate gate; "
        "equiv_make gold gate equal; hierarchy -top equal; equiv_struct; equiv_simple; equiv_status -assert",
        tmp_path,
    )


_ZEROS = re.compile(r"^  initial begin\n(?:    \S+\[\d+\] = \d+'h0+;\n)+  end\n", re.MULTILINE)
"""Initial words of a memory, all of them 0."""


@pytest.mark.parametrize("make", [lambda: ResendTimer(SMALL), lambda: FrameBuffer(64, waits=True)])
def test_only_initial_zeros_of_memories_are_left_out(make):
    component = make()
    amaranths = share_modules(verilog.convert(component, name="top", emit_src=False, strip_internal_attrs=True))
    expected = _ZEROS.sub("", amaranths)
    assert expected != amaranths
    assert to_verilog(component, "top") == expected


class Table(wiring.Component):
    """A memory of 4 bytes."""

    index: In(2)
    byte: Out(8)

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=8, depth=4, init=[0, 18, 0, 3])
        read = memory.read_port()
        m.d.comb += [read.addr.eq(self.index), self.byte.eq(read.data)]
        return m


def test_other_initial_words_stay():
    words = re.findall(r"memory\[(\d)\] = 8'h(\w+);", to_verilog(Table(), "top"))
    assert words == [("0", "00"), ("1", "12"), ("2", "00"), ("3", "03")]


def test_sources_are_named_where_they_are():
    """Equal modules stay one, no path is of this machine, and every instance has its class and a line of it."""
    written = write_verilog(DotProduct(SMALL), "top", sources=True)
    assert list(modules(written.text)) == list(modules(to_verilog(DotProduct(SMALL), "top")))
    found = re.findall(r'src = "([^"]*)"', written.text)
    assert {name.partition("/")[0] for each in found for name in each.split("|")} <= {"hw", "amaranth", "contextlib.py"}
    names = written.modules_of_places()
    assert set(names.values()) == {name.removeprefix("\\") for name in modules(written.text)}
    root = Path(inspect.getfile(DotProduct)).resolve().parents[2]
    for place in written.places:
        file, _, line = place.line.partition(":")
        if place.path in names and file.startswith("hw/"):
            source = (root / file).read_text().splitlines()[int(line) - 1]
            assert source.startswith(f"class {place.source.rpartition('.')[2]}("), place
