"""``verilator --lint-only -Wall`` finds nothing in the Verilog of the kernels, in which all components are."""

import re
from pathlib import Path

import pytest
from support.bench import FPGA_CELLS

from p4sgd.hw.kernel.verilog import (
    CMAC_IP,
    aggregator_kernel,
    cmac_kernel,
    emulated_cmac_kernel,
    selftest_kernel,
    worker_kernel,
)
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim import verilator

MAC_MODEL = Path(__file__).with_name("kernel") / f"{CMAC_IP}.sv"
"""Stands for the vendor's MAC."""

WAIVERS = {
    # Amaranth widens operands itself, so no carry is lost; yosys then writes the operator without padding its operands.
    "WIDTHEXPAND": ".*",
    # yosys writes a test of a vector against zero as `!vector`, and the choice of one bit as `vector >> index`.
    "WIDTHTRUNC": r"Logical operator \w+ expects 1 bit on the (LHS|RHS),|.*expects 1 bits on .* RHS's SHIFTR generates",
    # yosys writes a register's reset value as an initial value too: FPGAs load it at configuration.
    "PROCASSINIT": ".*",
    "UNUSEDSIGNAL": (
        # Names of Amaranth's that yosys has merged into other names stay as wires without a reader. What is left of the
        # warning is about inputs.
        r".* \| (?!input)"
        # Components without registers, or without any that are reset.
        r"|Signal is not used: '(\w+_)?(clk|rst)'"
        # Addresses are multiples of a beat or of 4096, so their low bits are not looked at.
        r"|Bits of signal are not used: '(\w+_)?(base|address)'\[(\d|1[01]):0\]"
        # Where every chunk is a unit, chunks of units are not counted, and rounding drops the same bits always.
        r"|Signal is not used: 'unit_chunks'|Bits of signal are not used: 'i'\[6:0\]"
        # Masters with one ID do not look at those of answers.
        r"|Signal is not used: 'm_axi_\w+_[br]id'"
    ),
    # Amaranth's AsyncFIFO empties its reading side at once when its writing side, which is reset at a clock edge, is.
    # The MAC's reset is taken at once, too, and at a clock edge by what stands for the vendor's MAC here.
    "SYNCASYNCNET": r"Signal flopped as both synchronous and async: '[\w.]*(rst|\bmac__reset)'",
    # yosys assigns the default before the case statement. Where it were missing, Verilator would report LATCH.
    "CASEINCOMPLETE": ".*",
    # A port of ours that yosys writes escaped, as Verilog allows.
    "SYMRSVDWORD": "Symbol matches C\\+\\+ keyword: 'signed'",
    # A test writes each design to a file of its own; generated files hold a hierarchy.
    "DECLFILENAME": ".*",
}
"""Messages that are left out, by warning and pattern, each with its reason."""

_MESSAGE = re.compile(r"%(?:Warning|Error)(?:-(\w+))?: (?:\S+?:\d+:\d+: )?(.*)")


def lint(text, folder, top="top"):
    """Messages of Verilator about a design that no waiver covers: ``CODE: text | source line``."""
    source = folder / f"{top}.v"
    source.write_text(text)
    found = []
    output = verilator.lint([source, FPGA_CELLS, *([MAC_MODEL] if CMAC_IP in text else [])], top)
    for message in re.split(r"^(?=%)", output, flags=re.MULTILINE):
        match = _MESSAGE.match(message)
        if match is None:
            continue
        code, said = match.groups()
        line = re.search(r"^ *\d+ \|\s+(.*)", message, re.MULTILINE)
        said = f"{said} | {line[1] if line else ''}"
        if not re.match(WAIVERS.get(code, "(?!)"), said) and not said.startswith("Exiting due to"):
            found.append(f"{code}: {said}")
    return found


@pytest.mark.rtl
@pytest.mark.parametrize(
    "make",
    [
        lambda: worker_kernel(WorkerConfig.tiny(), slices=(3, 2)),
        pytest.param(lambda: worker_kernel(WorkerConfig(chunks=2, line_fifo_depth=8)), marks=pytest.mark.slow),
        lambda: aggregator_kernel(AggregatorConfig(slots=16, jobs=2, ports=2)),
        cmac_kernel,
        emulated_cmac_kernel,
        pytest.param(
            lambda: selftest_kernel(WorkerConfig.small(), cages=2, slices=(0, 1, 3, 0, 2)), marks=pytest.mark.slow
        ),
    ],
    ids=["worker", "64 lanes", "aggregator", "cmac", "emulated_cmac", "selftest"],
)
def test_lint_of_kernels(make, tmp_path):
    kernel = make()
    assert lint(kernel.text, tmp_path, kernel.top) == []


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("body", "warning"),
    [
        ("assign o = 1'd0;", "UNUSEDSIGNAL: "),
        ("assign o = {a, a};", "WIDTHTRUNC: "),
        ("wire nothing; assign o = nothing;", "UNDRIVEN: "),
        ("wire x; wire y; assign x = !y | a; assign y = !x; assign o = x;", "UNOPTFLAT: "),
        ("always @(*) if (a) o = 1;", "LATCH: "),
        ("missing m(); assign o = a;", ""),
        ("this is no Verilog", ""),
    ],
)
def test_lint_can_fail(body, warning, tmp_path):
    """The waivers hide neither the faults that -Wall is there for, nor errors."""
    kind = "reg" if "always" in body else "wire"
    found = lint(f"module top(\n  input a,\n  output {kind} o);\n  {body}\nendmodule\n", tmp_path)
    assert any(line.startswith(warning) for line in found), found
