"""Single signals of a design in a bench: set, waited for, noted."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge, Timer
from cocotb.utils import get_sim_time


def drive(dut: Any, **values: Any) -> None:
    """Set inputs by their names."""
    for name, value in values.items():
        getattr(dut, name).value = int(value)


async def pulse(dut: Any, name: str) -> None:
    """Raise an input for one cycle."""
    drive(dut, **{name: 1})
    await RisingEdge(dut.clk)
    drive(dut, **{name: 0})


async def cycles_until(dut: Any, happens: Callable[[], Any], most: int = 20_000) -> int:
    """Cycles until something happens, at most so many."""
    for cycle in range(1, most + 1):
        await RisingEdge(dut.clk)
        if happens():
            return cycle
    raise AssertionError(f"it does not happen in {most} cycles")


class Cycles(list[int]):
    """The cycles, of 4 ns, in which outputs are high, all at once; they are noted as the simulation goes on."""

    def __init__(self, dut: Any, *names: str, clock: Any = None) -> None:
        super().__init__()
        cocotb.start_soon(self._note(dut.clk if clock is None else clock, [getattr(dut, name) for name in names]))

    async def _note(self, clock: Any, signals: list[Any]) -> None:
        while True:
            await RisingEdge(clock)
            if all(signal.value for signal in signals):
                self.append(int(get_sim_time("ns")) // 4)


async def check_registered(dut: Any, inputs: Iterable[Any], outputs: Iterable[Any], cycles: int = 200) -> None:
    """Whatever the inputs do within a cycle, the outputs must stay as they are."""
    inputs, outputs = list(inputs), list(outputs)
    for _ in range(cycles):
        seen = set()
        for level in (0, 1, None, None):
            for port in inputs:
                port.value = random.getrandbits(len(port)) if level is None else level * ((1 << len(port)) - 1)
            await Timer(100, unit="ps")
            await ReadOnly()
            seen.add(tuple(int(port.value) for port in outputs))
            await Timer(100, unit="ps")
        assert len(seen) == 1
        await RisingEdge(dut.clk)
