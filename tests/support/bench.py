"""Running a cocotb bench of one component from a pytest function.

A test file holds both: ``@cocotb.test()`` coroutines, which run inside the simulator, and pytest functions that call
`run_bench` with the component to build. What a coroutine needs to know comes through `parameters`.
"""

import dataclasses
import json
import os
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, Timer

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.timing import RESET_CYCLES
from p4sgd.hw.verilog import to_verilog
from p4sgd.sim import verilator

_VARIABLE = "P4SGD_BENCH"

FPGA_CELLS = Path(__file__).with_name("fpga_cells.v")
"""Cells of an UltraScale+ FPGA that are in generated Verilog for AMD's tools."""


def default_seed() -> int:
    """Seed of a test: ``$P4SGD_SEED``, else a new one; printed, so that the report of a failure has it."""
    seed = int(os.environ.get("P4SGD_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"P4SGD_SEED={seed}")
    return seed


def times(cases: int) -> int:
    """``cases``, or ``$P4SGD_TIMES`` times as many: how many random ones a test tries.

    They are new ones every time, so that a few find in the end what many would find at once.
    """
    return cases * int(os.environ.get("P4SGD_TIMES") or 1)


def run_bench(
    component: wiring.Component, file: str, *, only: str | None = None, sources: Sequence[Path] = (), **parameters: Any
) -> None:
    """Build ``component`` and run the cocotb tests of the test file ``file`` (pass ``__file__``) against it.

    ``only`` is a regular expression: the names of the tests to run; ``sources`` are more Verilog files. Among the
    parameters may be ``scrambled``, as of `run_verilog_bench`. A failure names the seed; ``P4SGD_SEED=… pytest …``
    repeats it.
    """
    top = "".join(c if c.isalnum() else "_" for c in type(component).__name__.lower())
    run_verilog_bench(to_verilog(component, top), top, file, only=only, sources=sources, **parameters)


def run_sizes(
    components: Mapping[str, tuple[wiring.Component, Mapping[str, Any]]], file: str, *, only: str | None = None
) -> None:
    """As `run_bench`, of several components with the parameters of each, all in one simulator.

    To build and to start a simulator takes longer than most tests of a small component. Every test runs once for each
    component, and its name ends with that of the component.
    """
    top = SideBySide({name: component for name, (component, _) in components.items()})
    sizes = {name: dict(parameters) for name, (_, parameters) in components.items()}
    _run(to_verilog(top, "sizes"), "sizes", file, sizes, only=only, each=True)


class SideBySide(wiring.Component):
    """Components that have nothing to do with each other; the ports of each are a member of its name."""

    def __init__(self, components: Mapping[str, wiring.Component]) -> None:
        self._components = components
        super().__init__({name: Out(component.signature) for name, component in components.items()})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for name, component in self._components.items():
            m.submodules[name] = component
            # Not wiring.connect(), which Amaranth 0.5 does not do for flipped members that are arrays.
            outside = component.signature.flatten(getattr(self, name))
            inside = component.signature.flatten(component)
            for (_, _, port), (_, member, own) in zip(outside, inside, strict=True):
                m.d.comb += port.eq(own) if member.flow is Out else own.eq(port)
        return m


def run_verilog_bench(
    text: str,
    top: str,
    file: str,
    *,
    only: str | None = None,
    sources: Sequence[Path] = (),
    scrambled: bool = False,
    **parameters: Any,
) -> None:
    """As `run_bench`, of a module in Verilog; ``scrambled`` if its registers begin with random values."""
    text = verilator.random_registers(text) if scrambled else text
    _run(text, top, file, parameters, only=only, sources=sources)


def _run(
    text: str,
    top: str,
    file: str,
    parameters: Mapping[str, Any],
    *,
    only: str | None,
    sources: Sequence[Path] = (),
    each: bool = False,
) -> None:
    seed = default_seed()
    path = Path(file)
    waves = os.environ.get("P4SGD_WAVES")  # conftest.py sees that there is but one test
    model = verilator.build(verilator.random_memories(text), top, sources=sources, waves=bool(waves))
    env = {_VARIABLE: json.dumps(parameters, default=dataclasses.asdict)}
    env |= {"P4SGD_BENCH_MODULE": path.stem} if each else {}
    with tempfile.TemporaryDirectory() as work, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        try:
            model.run(
                "support.sizes" if each else path.stem,
                Path(work),
                env=env,
                plusargs=[f"+memory={work}"],
                seed=seed,
                only=only,
            )
        except verilator.SimulationError as error:
            raise AssertionError(f"P4SGD_SEED={seed}, {parameters}\n{error}") from None
        finally:
            if waves and (written := Path(work, verilator.WAVEFORM)).exists():
                shutil.move(written, waves)


def worker_config() -> WorkerConfig:
    """Inside the simulator: the configuration that is the parameter ``config``."""
    return WorkerConfig(**parameters()["config"])


def parameters() -> dict[str, Any]:
    """Inside the simulator: the keyword arguments of `run_bench`, or those of the component under test."""
    found: dict[str, Any] = json.loads(os.environ[_VARIABLE])
    return found if _size is None else found[_size]


_size: str | None = None


def sizes() -> list[str]:
    """Inside the simulator: the names of the components of `run_sizes`."""
    return list(json.loads(os.environ[_VARIABLE]))


def choose(size: str) -> None:
    """Inside the simulator: from now on the component of this name is tested."""
    global _size
    _size = size


async def start(dut: Any) -> None:
    """Inside the simulator: start the clock (250 MHz) and reset the design, which may be a kernel."""
    if hasattr(dut, "ap_clk"):
        dut.ap_rst_n.value = 1
        await Timer(1, unit="ns")
        dut.ap_rst_n.value = 0  # cocotbext-axi waits for an edge
        await Timer(1, unit="ns")
        Clock(dut.ap_clk, 4, unit="ns").start()
        await ClockCycles(dut.ap_clk, 8)  # it passes some registers
        dut.ap_rst_n.value = 1
        await ClockCycles(dut.ap_clk, RESET_CYCLES + 8)
        return
    Clock(dut.clk, 4, unit="ns").start()
    if hasattr(dut, "rst"):
        dut.rst.value = 1
        await ClockCycles(dut.clk, RESET_CYCLES)
        dut.rst.value = 0
    await RisingEdge(dut.clk)
