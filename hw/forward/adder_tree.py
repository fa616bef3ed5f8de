"""A pipelined tree of adders."""

from amaranth.hdl import Module, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["AdderTree", "tree_latency"]


def tree_latency(terms: int, *, radix: int = 3) -> int:
    """Levels, and so cycles, of an `AdderTree`: the least n with ``radix**n >= terms``."""
    levels = 0
    while radix**levels < terms:
        levels += 1
    return levels


class AdderTree(wiring.Component):
    """Exact sum of ``terms`` signed numbers, one set a cycle.

    Each level adds ``radix`` numbers and ends in a register. Latency: `latency` cycles, throughput 1.

    Parameters
    ----------
    terms
        How many numbers, at least 1.
    width
        Signed width of each.
    radix
        Numbers that one node adds, 2 or 3.

    Members
    -------
    i : In(ArrayLayout(signed(width), terms))
    o : Out(signed(width + ⌈log2 terms⌉))
        The sum of ``i``, `latency` cycles later.
    """

    def __init__(self, terms: int, width: int, *, radix: int = 3) -> None:
        if terms < 1 or radix not in (2, 3):
            raise ValueError(f"an adder tree needs terms ≥ 1 and radix 2 or 3, not {terms} and {radix}")
        self.terms = terms
        self.width = width
        self.radix = radix
        self.latency = tree_latency(terms, radix=radix)
        self.out_width = width + (terms - 1).bit_length()
        super().__init__({"i": In(data.ArrayLayout(signed(width), terms)), "o": Out(signed(self.out_width))})

    i: data.View
    o: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        level: list[Value] = [self.i[index] for index in range(self.terms)]
        for depth in range(self.latency):
            sums: list[Value] = []
            for node, first in enumerate(range(0, len(level), self.radix)):
                total = sum(level[first + 1 : first + self.radix], start=level[first])
                register = Signal.like(total, name=f"level{depth}_{node}", reset_less=True)
                m.d.sync += register.eq(total)
                sums.append(register)
            level = sums
        m.d.comb += self.o.eq(level[0])
        return m
