"""Sums that are wider than one carry chain."""

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Accumulator"]

_LOW = 32


class Accumulator(wiring.Component):
    """Adds a number a cycle, in two halves: the carry of the low half reaches the high half a cycle later.

    Latency: `LATENCY` cycles from ``i`` to ``o``.

    Parameters
    ----------
    in_width, out_width
        Signed widths of a number and of the sum; the sum of all numbers between two ``first`` must fit.

    Members
    -------
    valid : In(1)
        ``i`` counts in this cycle.
    first : In(1)
        ``i`` begins a new sum.
    i : In(signed(in_width))
    o : Out(signed(out_width))
        The sum up to the number `LATENCY` cycles ago. Valid while no newer number has come.
    """

    LATENCY = 2

    def __init__(self, in_width: int, out_width: int) -> None:
        if out_width <= _LOW:
            raise ValueError(f"a sum of {out_width} bits needs no split accumulator")
        self._in_width = in_width
        self._out_width = out_width
        super().__init__({"valid": In(1), "first": In(1), "i": In(signed(in_width)), "o": Out(signed(out_width))})

    valid: Signal
    first: Signal
    i: Signal
    o: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        low = Signal(_LOW + 1, reset_less=True)  # with the carry of the latest addition
        high = Signal(signed(self._out_width - _LOW), reset_less=True)
        high_addend = Signal(signed(max(1, self._in_width - _LOW)), reset_less=True)
        valid = Signal()
        first = Signal(reset_less=True)
        m.d.sync += [valid.eq(self.valid), first.eq(self.first), high_addend.eq(self.i >> _LOW)]
        low_addend = Signal(_LOW)
        m.d.comb += low_addend.eq(self.i)
        with m.If(self.valid):
            with m.If(self.first):
                m.d.sync += low.eq(low_addend)
            with m.Else():
                m.d.sync += low.eq(low[:_LOW] + low_addend)
        # The low half is one cycle ahead of the high half; `settled` is the low half in step with it.
        settled = Signal(_LOW, reset_less=True)
        with m.If(valid):
            m.d.sync += settled.eq(low)
            with m.If(first):
                m.d.sync += high.eq(high_addend)
            with m.Else():
                m.d.sync += high.eq(high + high_addend + low[_LOW])
        m.d.comb += self.o.eq(Cat(settled, high))
        return m
