"""Counters of events, shown all of one moment."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["COUNTER_BITS", "EventCounters"]

COUNTER_BITS = 48
"""Width of a counter: 13 days at 250 MHz."""


class EventCounters(wiring.Component):
    """Counts events, each on its own.

    Parameters
    ----------
    count
        How many counters.

    Members
    -------
    events : In(count)
        Bit i: event i has happened. It is counted in the next cycle.
    clear : In(1)
        All begin at 0 again; an event of the cycle before is not counted.
    show : In(1)
        Show the counters as they are: of one moment, however long it takes to read them.
    shown : Out(ArrayLayout(48, count))
        As they were last shown.
    """

    def __init__(self, count: int) -> None:
        super().__init__(
            {
                "events": In(count),
                "clear": In(1),
                "show": In(1),
                "shown": Out(data.ArrayLayout(COUNTER_BITS, count)),
            }
        )

    events: Signal
    clear: Signal
    show: Signal
    shown: Any

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Events are registered first: the increment is then a counter and nothing else.
        happened = Signal.like(self.events)
        m.d.sync += happened.eq(self.events)
        for index in range(len(self.events)):
            count = Signal(COUNTER_BITS, name=f"count_{index}")
            with m.If(self.clear):
                m.d.sync += count.eq(0)
            with m.Elif(happened[index]):
                m.d.sync += count.eq(count + 1)
            with m.If(self.show):
                m.d.sync += self.shown[index].eq(count)
        return m
