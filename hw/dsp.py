"""Adders in the DSP slices of an FPGA."""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["DSP_BITS", "Base", "DspAdder"]

DSP_BITS = 48
"""Width of an adder and its operands."""


class Base(enum.Enum, shape=5):
    """What a `DspAdder` adds its operands to; values are bits 4 to 8 of OPMODE (UG579, "ALU")."""

    ZERO = 0b00_000
    CASCADE = 0b00_001  # the sum of the adder before in a cascade
    SUM = 0b00_010  # its own sum
    TWICE = 0b01_010  # twice its own sum


class DspAdder(wiring.Component):
    """Exact sum of three numbers, the adder of one DSP slice::

        a, unless clear_a ──▶ register ──┐
        b, unless clear_b ──▶ register ──┼──▶ base ± (a + b) ──▶ register ──┬──▶ sum
        base, negative ─────▶ register ──┘             ▲                    └──▶ cascade_out
                                                       └─ cascade_in, own sum

    Throughput is an operation a cycle, whose sum comes `LATENCY` cycles later, modulo 2^48. Gates of the operands are
    resets of the slice's registers, so they take no LUT. No register has a reset: the first sum to be used must have
    the base `Base.ZERO`, or one that comes from such sums.

    Without a platform the adder is plain logic, which any FPGA has. A platform with a method ``get_dsp_adder`` makes
    another module of it, as `p4sgd.hw.ultrascale.UltraScalePlus` does.
    """

    LATENCY = 2

    a: In(signed(DSP_BITS))
    b: In(signed(DSP_BITS))
    # The operand counts as 0.
    clear_a: In(1)
    clear_b: In(1)
    base: In(Base)
    negative: In(1)  # the operands are subtracted; not with `Base.TWICE`
    # From an adder's `cascade_out` to the next one's `cascade_in`: a column of slices has wires of its own for that. It
    # is added a cycle after `base` comes.
    cascade_in: In(signed(DSP_BITS))
    cascade_out: Out(signed(DSP_BITS))
    sum: Out(signed(DSP_BITS))

    def elaborate(self, platform: object) -> Module:
        if hasattr(platform, "get_dsp_adder"):
            module: Module = platform.get_dsp_adder(self)
            return module
        m = Module()
        a, b, total = (Signal(signed(DSP_BITS), name=name, reset_less=True) for name in ("a_in", "b_in", "total"))
        base = Signal(Base, reset_less=True)
        negative = Signal(reset_less=True)
        m.d.sync += [
            a.eq(Mux(self.clear_a, 0, self.a)),
            b.eq(Mux(self.clear_b, 0, self.b)),
            base.eq(self.base),
            negative.eq(self.negative),
        ]
        start = Signal(signed(DSP_BITS))
        with m.Switch(base):
            with m.Case(Base.CASCADE):
                m.d.comb += start.eq(self.cascade_in)
            with m.Case(Base.SUM):
                m.d.comb += start.eq(total)
            with m.Case(Base.TWICE):
                m.d.comb += start.eq(total << 1)
        m.d.sync += total.eq(Mux(negative, start - (a + b), start + (a + b)))
        m.d.comb += [self.sum.eq(total), self.cascade_out.eq(total)]
        return m
