"""Synchronizers that take a cycle more or not, at random, as real ones do with what changes while they sample it."""

from types import SimpleNamespace
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal

from p4sgd.hw.ultrascale import UltraScalePlus


class LateSynchronizers(UltraScalePlus):
    """Platform for ``to_verilog``. Of several bits all are late together, as the bits of a Gray code may be."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def get_ff_sync(self, synchronizer: Any) -> Module:
        self._count += 1
        settings = {"init": synchronizer._init, "reset_less": synchronizer._reset_less}
        before = Signal(synchronizer.i.shape(), name="before", **settings)
        sampled = Signal.like(before, name="sampled")
        noise = Signal(16, init=self._count * 0x9E37 & 0xFFFF, reset_less=True)  # x^16 + x^14 + x^13 + x^11 + 1
        names = ("o", "_init", "_reset_less", "_stages", "_o_domain")
        m = super().get_ff_sync(
            SimpleNamespace(i=sampled, **{name: getattr(synchronizer, name) for name in names}),
        )
        m.d.comb += sampled.eq(Mux(noise[0], before, synchronizer.i))
        m.d[synchronizer._o_domain] += [
            before.eq(synchronizer.i),
            noise.eq(Cat(noise[1:], noise[0] ^ noise[2] ^ noise[3] ^ noise[5])),
        ]
        return m
