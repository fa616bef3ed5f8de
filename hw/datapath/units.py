"""Round 1: sums of the rounded dot products of units."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib.wiring import In, Out

from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.fixed import MAX_PRECISION, ROUND_1_SHIFT

__all__ = ["UnitAccumulator"]


_LOW = 32  # bits of the low half of a sum


class UnitAccumulator(Component):
    """Round 1: the sum of units' dot products, each rounded half up to a step, from those of their chunks.

    The first chunk of a unit comes with half a step added to it, so that rounding is clearing the bits below the step.
    That needs no adder and no cycle of its own: they are cleared where the next unit is added, and in the output::

        i ──▶ + ──▶ sum ─┬─▶ clear ──▶ o
              ▲          │
              └─ clear ◀─┘ before a unit is added

    The sum is too wide for one carry chain, so it is kept in two halves. The carry out of the low half is a register
    and enters the high half a cycle later.

    ``in_width`` is the signed width of a chunk's dot product, ``out_width`` that of the sum, which has 7 fraction bits
    fewer; the sum of all units from one ``first`` to the next must fit. With ``whole_units`` every chunk is a unit, and
    the 7 bits that are always cleared are left out of the sum.
    """

    LATENCY = 2

    def __init__(self, in_width: int, out_width: int, *, whole_units: bool) -> None:
        if out_width <= _LOW:
            raise ValueError(f"a sum of {out_width} bits needs no split accumulator")
        self._in_width = in_width
        self._out_width = out_width
        self._whole_units = whole_units
        ports = {
            "valid": In(1),  # `i` is added in this cycle
            "first": In(1),  # With `valid`: `i` starts a new sum.
            "first_of_unit": In(1),  # With `valid`: `i` is the first chunk of a unit; always with `first`.
            "i": In(signed(in_width)),  # dot product of a chunk
            # A step is bit 7 + `step` of `i`, which is bit `step` of `o`: 0 to 8; stable.
            "step": In(range(MAX_PRECISION + 1)),
            # The sum up to the chunk that came `LATENCY` cycles ago, the last of its unit; valid while no newer
            # chunk has come.
            "o": Out(signed(out_width)),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        below = 0 if self._whole_units else ROUND_1_SHIFT  # bits of the sum below the least step
        addend = self.i[ROUND_1_SHIFT - below :].as_signed()
        width = self._out_width + below
        low = Signal(_LOW + 1, reset_less=True)  # with the carry of the latest addition
        high = Signal(signed(width - _LOW), reset_less=True)
        high_addend = Signal(signed(max(1, len(addend) - _LOW)), reset_less=True)
        valid = Signal()
        first = Signal(reset_less=True)
        m.d.sync += [valid.eq(self.valid), first.eq(self.first), high_addend.eq(addend >> _LOW)]

        # Bits that survive rounding, among those that may be below a step.
        whole = Signal(below + MAX_PRECISION, reset_less=True)
        m.d.sync += whole.eq(Const(-1 << below, signed(len(whole))) << self.step)
        kept = Signal(_LOW)
        low_addend = Signal(_LOW)
        m.d.comb += [
            kept.eq(Mux(self.first_of_unit, Cat(low[: len(whole)] & whole, low[len(whole) : _LOW]), low[:_LOW])),
            low_addend.eq(addend),
        ]
        with m.If(self.valid):
            m.d.sync += low.eq(Mux(self.first, 0, kept) + low_addend)
        # The low half is one cycle ahead of the high half. `settled` is the low half delayed to match it, and rounded.
        settled = Signal(_LOW - below, reset_less=True)
        with m.If(valid):
            m.d.sync += settled.eq(Cat(low[: len(whole)] & whole, low[len(whole) : _LOW])[below:])
            with m.If(first):
                m.d.sync += high.eq(high_addend)
            with m.Else():
                m.d.sync += high.eq(high + high_addend + low[_LOW])
        m.d.comb += self.o.eq(Cat(settled, high))
        return m
