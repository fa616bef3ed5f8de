"""Clock and reset of a kernel, and its synchronizers.

Clock and reset of a kernel, and its registers while they are in reset.

Synchronizers that the vendor's tools recognise.
"""

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Const, Module, ResetSignal, Signal, Value

__all__ = ["MARK", "MarkedSynchronizers", "connect_control", "kernel_clock"]


def kernel_clock(m: Module, ap_clk: Value, ap_rst_n: Value) -> None:
    """Make the clock domain ``sync`` of a kernel's ports.

    Parameters
    ----------
    m
        Module that gets the domain, for itself and all below it.
    ap_clk
        The kernel's clock.
    ap_rst_n
        Its reset, active low and synchronous to it. Two registers follow, which the place-and-route tool may copy and
        put on the way to all that is reset; after configuration, too, the kernel begins in reset. So it ends here after
        others may have sent something, which what is in reset must not take (`connect_control`).
    """
    m.domains.sync = ClockDomain("sync")
    m.domains.ap = ClockDomain("ap", reset_less=True)
    taken, reset = Signal(init=1, name="reset_taken"), Signal(init=1, name="reset")
    m.d.comb += [ClockSignal("sync").eq(ap_clk), ClockSignal("ap").eq(ap_clk), ResetSignal("sync").eq(reset)]
    m.d.ap += Cat(taken, reset).eq(Cat(~ap_rst_n, taken))


def connect_control(m: Module, control: Any, registers: Any) -> None:
    """Connect a kernel's AXI4-Lite port to its registers, which get no request while they are in reset.

    A master may send its first request a cycle after ``ap_rst_n`` has risen. Registers say that they are ready in
    reset, too, so that request would be taken and never answered: here it waits.

    Parameters
    ----------
    m
        Module with the domain of `kernel_clock`.
    control
        The port, In(AXI4-Lite) of the kernel, as a member of it.
    registers
        In(AXI4-Lite) of a submodule, in the domain ``sync``.
    """
    awake = ~ResetSignal("sync")
    for name in ("aw", "w", "ar"):
        there, here = getattr(control, name), getattr(registers, name)
        m.d.comb += [
            here.payload.eq(there.payload),
            here.valid.eq(there.valid & awake),
            there.ready.eq(here.ready & awake),
        ]
    for name in ("b", "r"):
        there, here = getattr(control, name), getattr(registers, name)
        m.d.comb += [there.payload.eq(here.payload), there.valid.eq(here.valid), here.ready.eq(there.ready)]


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
