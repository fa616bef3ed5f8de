"""Running a cocotb bench of one component from a pytest function.

A test file holds both: ``@cocotb.test()`` coroutines, which run inside the simulator, and pytest functions that call
`run_bench` with the component to build. What a coroutine needs to know comes through `parameters`.
"""

import json
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amaranth.lib import wiring
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from p4sgd.hw.verilog import to_verilog
from p4sgd.sim import verilator

_VARIABLE = "P4SGD_BENCH"


def default_seed() -> int:
    """Seed of this test session: ``$P4SGD_SEED``, else a new one; printed on failure by `run_bench`."""
    return int(os.environ.get("P4SGD_SEED") or random.SystemRandom().randrange(1 << 31))


def run_bench(
    component: wiring.Component,
    file: str,
    *,
    only: str | None = None,
    sources: Sequence[Path] = (),
    **parameters: Any,
) -> None:
    """Build ``component`` and run the cocotb tests of the test file ``file`` (pass ``__file__``) against it.

    ``only`` is a regular expression: the names of the tests to run; ``sources`` are more Verilog files. A failure names
    the seed; ``P4SGD_SEED=… pytest …`` repeats it.
    """
    top = "".join(c if c.isalnum() else "_" for c in type(component).__name__.lower())
    run_verilog_bench(to_verilog(component, top), top, file, only=only, sources=sources, **parameters)


def run_verilog_bench(
    text: str, top: str, file: str, *, only: str | None = None, sources: Sequence[Path] = (), **parameters: Any
) -> None:
    """As `run_bench`, of a module in Verilog."""
    seed = default_seed()
    path = Path(file)
    model = verilator.build(text, top, sources=sources)
    with tempfile.TemporaryDirectory() as work:
        try:
            model.run(
                path.stem,
                Path(work),
                python_path=[path.parent, Path(__file__).parents[1]],
                env={_VARIABLE: json.dumps(parameters)},
                plusargs=[f"+memory={work}"],
                seed=seed,
                only=only,
            )
        except verilator.SimulationError as error:
            raise AssertionError(f"P4SGD_SEED={seed}, {parameters}\n{error}") from None


def parameters() -> dict[str, Any]:
    """Inside the simulator: the keyword arguments of `run_bench`."""
    found: dict[str, Any] = json.loads(os.environ[_VARIABLE])
    return found


async def start(dut: Any) -> None:
    """Inside the simulator: start the clock (250 MHz) and reset the design, which may be a kernel."""
    if hasattr(dut, "ap_clk"):
        Clock(dut.ap_clk, 4, unit="ns").start()
        dut.ap_rst_n.value = 0
        await ClockCycles(dut.ap_clk, 3)
        dut.ap_rst_n.value = 1
        await ClockCycles(dut.ap_clk, 3)
        return
    Clock(dut.clk, 4, unit="ns").start()
    if hasattr(dut, "rst"):
        dut.rst.value = 1
        await ClockCycles(dut.clk, 3)
        dut.rst.value = 0
    await RisingEdge(dut.clk)
