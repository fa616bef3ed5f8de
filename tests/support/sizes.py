"""Tests of a cocotb bench, for every component of a design that holds several of them.

The simulator imports this module in place of the bench, whose name is in the environment. Each test of the bench is
there once for every component, and sees the ports of that one alone.
"""

import functools
import importlib
import os
from collections.abc import Iterable
from typing import Any

import cocotb

from support import bench

BENCH = "P4SGD_BENCH_MODULE"
"""Variable with the name of the bench's module."""


class Part:
    """The ports of one component of the design."""

    def __init__(self, dut: Any, name: str) -> None:
        self._dut = dut
        self._name = name

    def __getattr__(self, port: str) -> Any:
        shared = port in ("clk", "rst") or port.startswith("_")
        return getattr(self._dut, port if shared else f"{self._name}__{port}")


def for_every_size(test: Any, names: Iterable[str]) -> Any:
    """A test of a bench, as cocotb's decorators make it, for the components of these names."""
    function = test.func

    @functools.wraps(function)
    async def test_of_one(dut: Any, size: str, **options: Any) -> None:
        bench.choose(size)
        await function(Part(dut, size), **options)

    test.func = test_of_one
    return cocotb.parametrize(size=list(names))(test)


if BENCH in os.environ:
    _module = importlib.import_module(os.environ[BENCH])
    for _name, _test in list(vars(_module).items()):
        if isinstance(_test, cocotb._decorators.TestGenerator):
            globals()[_name] = for_every_size(_test, bench.sizes())
