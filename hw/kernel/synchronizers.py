"""Synchronizers that the vendor's tools recognise."""

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Const, Module, ResetSignal, Signal

__all__ = ["MARK", "MarkedSynchronizers"]

MARK = {"ASYNC_REG": "TRUE"}
"""Attribute of a synchronizer's registers: Vivado puts them side by side, and leaves them as they are (UG901)."""


class MarkedSynchronizers:
    """Amaranth's synchronizers with marked registers: what makes Verilog takes this as its platform.

    Amaranth alone leaves the mark out, and its vendor's platform instantiates cells of a library that other tools lack.
    The first register of each is named ``stage0``; paths to it need constraints.
    """

    def get_ff_sync(self, synchronizer: Any) -> Module:
        """What becomes of an `amaranth.lib.cdc.FFSynchronizer`."""
        m = Module()
        value = synchronizer.i
        for stage in range(synchronizer._stages):
            later = Signal(
                synchronizer.i.shape(),
                name=f"stage{stage}",
                init=synchronizer._init,
                reset_less=synchronizer._reset_less,
                attrs=MARK,
            )
            m.d[synchronizer._o_domain] += later.eq(value)
            value = later
        m.d.comb += synchronizer.o.eq(value)
        return m

    def get_async_ff_sync(self, synchronizer: Any) -> Module:
        """What becomes of an `amaranth.lib.cdc.AsyncFFSynchronizer`."""
        m = Module()
        rises = synchronizer._edge == "pos"
        m.domains.async_ff = ClockDomain("async_ff", async_reset=True, local=True)
        m.d.comb += [
            ClockSignal("async_ff").eq(ClockSignal(synchronizer._o_domain)),
            ResetSignal("async_ff").eq(synchronizer.i if rises else ~synchronizer.i),
        ]
        stages = [Signal(init=1, name=f"stage{stage}", attrs=MARK) for stage in range(synchronizer._stages)]
        m.d.async_ff += Cat(stages).eq(Cat(Const(0, 1), stages[:-1]))
        m.d.comb += synchronizer.o.eq(stages[-1])
        return m
