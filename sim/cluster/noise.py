"""Pseudo-random numbers inside the simulated cluster."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Noise"]


class Noise(wiring.Component):
    """A new 32-bit number every cycle: xorshift32 (Marsaglia, "Xorshift RNGs", 2003).

    Parameters
    ----------
    instance
        Number of this generator; generators with different numbers give different sequences for one seed.

    Members
    -------
    seed : In(32)
        Stable; taken in the first cycle after reset.
    value : Out(32)
    """

    def __init__(self, instance: int) -> None:
        self._instance = instance
        super().__init__({"seed": In(32), "value": Out(32)})

    seed: Signal
    value: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Weyl's constant spreads instance numbers over the state. Zero, which xorshift would keep, is replaced, and no
        # other state: seeds must not share their sequences.
        salt = ((self._instance + 1) * 0x9E3779B9) & 0xFFFFFFFF
        started = Signal()
        first = Signal(32)
        a = Signal(32)
        b = Signal(32)
        m.d.comb += first.eq(self.seed ^ salt)
        m.d.comb += [a.eq(self.value ^ (self.value << 13)), b.eq(a ^ (a >> 17))]
        m.d.sync += [started.eq(1), self.value.eq(b ^ (b << 5))]
        with m.If(~started):
            m.d.sync += self.value.eq(Mux(first == 0, 1, first))
        return m
