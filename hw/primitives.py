"""Building blocks of the datapath: carry chains, adder trees, accumulators, pipelines, memories.

Expressions of the datapath that map to one carry chain, or to a few gates.

A value some cycles later.

Which memory of the FPGA holds what.

A pipelined tree of adders.

Sums that are wider than one carry chain.
"""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.fixed import Fixed

__all__ = ["Accumulator", "AdderTree", "add", "overflows", "pipeline", "ram_style", "saturate", "tree_latency"]


def _extend(value: Value, width: int) -> Value:
    """The bits of ``value``, sign or zero extended."""
    top = value[-1] if value.shape().signed else Const(0, 1)
    return Cat(value, top.replicate(width - len(value)))


def add(a: ValueLike, b: ValueLike, *, carry: ValueLike) -> Value:
    """``a + b + carry``, signed and one bit wider than the wider of them, with a single adder for all three.

    The carry enters as the sum of two bits below: tools recognise that, but make two adders of three addends.
    """
    a, b, carry = Value.cast(a), Value.cast(b), Value.cast(carry)
    width = max(len(a), len(b)) + 1
    return (Cat(Const(1, 1), _extend(a, width)) + Cat(carry, _extend(b, width)))[1 : width + 1].as_signed()


def overflows(value: Value, form: Fixed) -> Value:
    """Whether a signed value is outside a signed format: not all bits from its sign up are equal."""
    high = value[form.width - 1 :]
    return (high[1:] ^ high[:-1]).any()


def saturate(value: Value, overflow: ValueLike, form: Fixed) -> Value:
    """A signed value clamped to a signed format; ``overflow`` is what `overflows` says of it."""
    return Mux(overflow, Mux(value[-1], form.minimum, form.maximum), value)


def pipeline(m: Module, value: Any, cycles: int, name: str, *, reset_less: bool = False) -> list[Any]:
    """Register a value ``cycles`` times.

    Parameters
    ----------
    m
        Module that gets the registers.
    value
        A value or a view.
    cycles
        How many registers.
    name
        Their name, behind which the number of cycles stands.
    reset_less
        Whether a reset leaves them alone, as something beside them says when they matter.

    Returns
    -------
    The value now, after one cycle, after two, and so on.
    """
    stages = [value]
    for cycle in range(1, cycles + 1):
        later: Any = Signal(value.shape(), name=f"{name}{cycle}", reset_less=reset_less)
        m.d.sync += later.eq(stages[-1])
        stages.append(later)
    return stages


_ULTRA_DEPTH = 4096
"""Depth of an URAM288, 72 bits wide (UG573); a RAMB36 of this width is 512 deep."""


def ram_style(depth: int) -> dict[str, str]:
    """Attributes of a memory: UltraRAM where one is filled, else what the tools choose by themselves."""
    return {"ram_style": "ultra"} if depth >= _ULTRA_DEPTH else {}


_RADIX = 3
"""Numbers that one node adds. A ternary adder takes the LUTs of a binary one (UG574, "Carry Logic"; both inputs of a
LUT pair are used), so half the nodes take half the area; and a tree has 4 levels instead of 6 for 64 terms."""


def tree_latency(terms: int) -> int:
    """Levels, and so cycles, of an `AdderTree`: the least n with ``3**n >= terms``."""
    levels = 0
    while _RADIX**levels < terms:
        levels += 1
    return levels


class AdderTree(wiring.Component):
    """Exact sum of ``terms`` signed numbers, one set a cycle.

    Each level adds three numbers and ends in a register. Latency: `latency` cycles, throughput 1.

    Parameters
    ----------
    terms
        How many numbers, at least 1.
    width
        Signed width of each.

    Members
    -------
    i : In(ArrayLayout(signed(width), terms))
    o : Out(signed(width + ⌈log2 terms⌉))
        The sum of ``i``, `latency` cycles later.
    """

    def __init__(self, terms: int, width: int) -> None:
        if terms < 1:
            raise ValueError(f"an adder tree needs terms, not {terms}")
        self.terms = terms
        self.width = width
        self.latency = tree_latency(terms)
        self.out_width = width + (terms - 1).bit_length()
        super().__init__({"i": In(data.ArrayLayout(signed(width), terms)), "o": Out(signed(self.out_width))})

    i: data.View
    o: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        level: list[Value] = [self.i[index] for index in range(self.terms)]
        for depth in range(self.latency):
            sums: list[Value] = []
            for node, first in enumerate(range(0, len(level), _RADIX)):
                total = sum(level[first + 1 : first + _RADIX], start=level[first])
                register = Signal.like(total, name=f"level{depth}_{node}", reset_less=True)
                m.d.sync += register.eq(total)
                sums.append(register)
            level = sums
        m.d.comb += self.o.eq(level[0])
        return m


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
