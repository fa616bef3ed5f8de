"""Stream ends for cocotb benches, with random stalls and protocol checks.

Ports follow Amaranth's flattening: ``<name>__payload``, ``<name>__valid``, ``<name>__ready``. Payloads are integers
(unsigned bit patterns); `pack` and `unpack` convert lists of equally wide numbers.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cocotb
from cocotb.triggers import Event, ReadOnly, RisingEdge


def pack(values: Iterable[int], width: int) -> int:
    """Concatenate numbers of ``width`` bits, the first lowest; negative numbers in two's complement."""
    word = 0
    for index, value in enumerate(values):
        word |= (int(value) & ((1 << width) - 1)) << (index * width)
    return word


def unpack(word: int, width: int, count: int, *, signed: bool = True) -> list[int]:
    """Undo `pack`."""
    mask = (1 << width) - 1
    values = [word >> (index * width) & mask for index in range(count)]
    if signed:
        values = [value - (1 << width) if value >> (width - 1) else value for value in values]
    return values


class StreamSource:
    """Drives a stream into the design; ``stall`` is the chance of an idle cycle before an item.

    ``flow`` is for a stream that has no ready, as its sink is always ready; ``clock`` is that of the stream, if not
    ``dut.clk``.
    """

    def __init__(self, dut: Any, name: str, stall: float = 0.0, *, flow: bool = False, clock: Any = None) -> None:
        self._clock = dut.clk if clock is None else clock
        self._payload = getattr(dut, f"{name}__payload")
        self._valid = getattr(dut, f"{name}__valid")
        self._ready = None if flow else getattr(dut, f"{name}__ready")
        self.stall = stall
        self._queue: deque[int] = deque()
        self._idle = Event()
        self._valid.value = 0
        cocotb.start_soon(self._run())

    def send(self, items: Iterable[int]) -> None:
        """Queue items."""
        self._queue.extend(items)
        self._idle.clear()

    async def drained(self) -> None:
        """Wait until every queued item was taken."""
        while self._queue:
            await self._idle.wait()

    async def _run(self) -> None:
        while True:
            while not self._queue or random.random() < self.stall:
                await RisingEdge(self._clock)
            self._payload.value = self._queue[0]
            self._valid.value = 1
            await ReadOnly()
            while True:
                await RisingEdge(self._clock)
                taken = self._took
                if taken():
                    break
            self._valid.value = 0
            self._queue.popleft()
            if not self._queue:
                self._idle.set()

    def _took(self) -> bool:
        # Sampled at the rising edge, before the design's registers change.
        return self._ready is None or bool(self._ready.value)


class StreamSink:
    """Takes items from the design; ``stall`` is the chance of a cycle without ready. Checks the stream rules.

    What a design offers in reset (``dut.rst``), when its registers may have any values, does not count.

    ``flow`` is for a stream that has no ready, and so no stalls; ``clock`` is that of the stream, if not ``dut.clk``.
    """

    def __init__(
        self,
        dut: Any,
        name: str,
        stall: float = 0.0,
        on_item: Callable[[int], None] | None = None,
        *,
        flow: bool = False,
        clock: Any = None,
    ) -> None:
        assert not (flow and stall), f"{name}: a flow cannot be stalled"
        self._name = name
        self._clock = dut.clk if clock is None else clock
        self._payload = getattr(dut, f"{name}__payload")
        self._valid = getattr(dut, f"{name}__valid")
        self._ready = None if flow else getattr(dut, f"{name}__ready")
        self._reset = getattr(dut, "rst", None)
        self.stall = stall
        self.items: list[int] = []
        self._on_item = on_item
        if self._ready is not None:
            self._ready.value = 0
        cocotb.start_soon(self._run())

    async def receive(self, count: int, timeout_cycles: int = 100_000) -> Sequence[int]:
        """Wait until ``count`` items have come in all; returns the first ``count``."""
        for _ in range(timeout_cycles):
            if len(self.items) >= count:
                return self.items[:count]
            await RisingEdge(self._clock)
        raise AssertionError(f"{self._name}: {len(self.items)} of {count} items after {timeout_cycles} cycles")

    async def _run(self) -> None:
        offered: int | None = None
        while True:
            ready = self._ready is None or random.random() >= self.stall
            if self._ready is not None:
                self._ready.value = int(ready)
            await RisingEdge(self._clock)
            if self._reset is not None and self._reset.value:
                offered = None
            elif self._valid.value:
                item = int(self._payload.value)
                assert offered is None or offered == item, f"{self._name}: payload changed while waiting"
                offered = item
                if ready:
                    self.items.append(item)
                    offered = None
                    if self._on_item is not None:
                        self._on_item(item)
            else:
                assert offered is None, f"{self._name}: valid fell before the transfer"
