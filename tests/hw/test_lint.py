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
from p4sgd.hw.verilog import WAIVERS
from p4sgd.sim import verilator

MAC_MODEL = Path(__file__).with_name("kernel") / f"{CMAC_IP}.sv"
"""Stands for the vendor's MAC."""

UNUSED = re.compile(
    # What is left is about inputs: what else has no reader, p4sgd.vlt says.
    r".* \| (?!input)"
    # Components without registers, or without any that are reset.
    r"|Signal is not used: '(\w+_)?(clk|rst)'"
    # Addresses are multiples of a beat or of 4096, so their low bits are not looked at.
    r"|Bits of signal are not used: '(\w+_)?(base|address)'\[(\d|1[01]):0\]"
    # Where every chunk is a unit, chunks of units are not counted, and rounding drops the same bits always.
    r"|Signal is not used: 'unit_chunks'|Bits of signal are not used: 'i'\[6:0\]"
    # An engine of few lanes looks at the low bits of the number of the lane that is exempt.
    r"|Bits of signal are not used: 'exempt_lane'\[5:\d\]"
    # Masters with one ID do not look at those of answers.
    r"|Signal is not used: 'm_axi_\w+_[br]id'"
)
"""Messages of UNUSEDSIGNAL that are left out, with Verilator's line of the source, each with its reason."""

_MESSAGE = re.compile(r"%(?:Warning|Error)(?:-(\w+))?: (?:(\S+?):\d+:\d+: )?(.*)")


def lint(text, folder, top="top"):
    """Messages of Verilator about a design that no waiver covers: ``CODE: text | source line``."""
    waivers, source = folder / "some.vlt", folder / f"p4sgd_{top}.v"
    source.write_text(text)
    waivers.write_text(re.sub(r"^lint_off -rule UNUSEDSIGNAL .*\n", "", WAIVERS.read_text(), flags=re.MULTILINE))
    found = []
    others = [FPGA_CELLS, *([MAC_MODEL] if CMAC_IP in text else [])]
    output = verilator.lint([waivers, source, *others], top)
    for message in re.split(r"^(?=%)", output, flags=re.MULTILINE):
        match = _MESSAGE.match(message)
        if match is None or match[2] in map(str, others):
            continue
        code, _, said = match.groups()
        line = re.search(r"^ *\d+ \|\s+(.*)", message, re.MULTILINE)
        said = f"{said} | {line[1] if line else ''}"
        if not (code == "UNUSEDSIGNAL" and UNUSED.match(said)) and not said.startswith("Exiting due to"):
            found.append(f"{code}: {said}")
    return found


@pytest.mark.rtl
@pytest.mark.parametrize(
    "make",
    [
        # The quick tests lint worker and aggregator in tests/build/generate/test_own_tools.py.
        pytest.param(lambda: worker_kernel(WorkerConfig.tiny(), slices=(3, 2)), marks=pytest.mark.slow),
        pytest.param(lambda: worker_kernel(WorkerConfig(chunks=2, line_fifo_depth=8)), marks=pytest.mark.slow),
        pytest.param(lambda: aggregator_kernel(AggregatorConfig(slots=16, jobs=2, ports=2)), marks=pytest.mark.slow),
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
