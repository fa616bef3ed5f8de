"""The model memory of an engine, for benches of what reads it."""

from collections.abc import Sequence
from typing import Any

from cocotb.triggers import ReadOnly, RisingEdge


async def serve_weights(dut: Any, chunks: Sequence[int]) -> None:
    """Answer on ``weights`` for ever, with a latency of two cycles; ``chunks`` are the words."""
    register = 0
    while True:
        await ReadOnly()
        enabled, address = dut.weights__enable.value, int(dut.weights__address.value)
        await RisingEdge(dut.clk)
        dut.weights__data.value = register  # the second register
        if enabled:
            register = chunks[address]
