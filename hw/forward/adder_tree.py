"""A pipelined tree of adders."""

from amaranth.hdl import Module, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["AdderTree", "tree_latency"]

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
