"""Pauses of a worker, at random."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.sim.cluster.noise import Noise

__all__ = ["PAUSE_BITS", "Pause"]

PAUSE_BITS = 12
"""A pause lasts 1 to 2^12 cycles: any number of them is as likely as any other."""


class Pause(wiring.Component):
    """Says when a worker is paused.

    Parameters
    ----------
    instance
        Number of its generator of random numbers.

    Members
    -------
    seed : In(32)
    chance : In(16)
        Chance that a pause begins, in each cycle without one, in 1/65536.
    paused : Out(1)
    """

    def __init__(self, instance: int) -> None:
        self._instance = instance
        super().__init__({"seed": In(32), "chance": In(16), "paused": Out(1)})

    seed: Signal
    chance: Signal
    paused: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.noise = noise = Noise(self._instance)
        left = Signal(PAUSE_BITS)  # cycles after this one
        m.d.comb += noise.seed.eq(self.seed)
        with m.If(self.paused):
            m.d.sync += [left.eq(left - 1), self.paused.eq(left != 0)]
        with m.Elif(noise.value[:16] < self.chance):
            m.d.sync += [left.eq(noise.value[16:]), self.paused.eq(1)]
        return m
