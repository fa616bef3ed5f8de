"""Clock and reset of a kernel."""

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Module, ResetSignal, Signal, Value

__all__ = ["kernel_clock"]


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
        put on the way to all that is reset; after configuration, too, the kernel begins in reset.
    """
    m.domains.sync = ClockDomain("sync")
    m.domains.ap = ClockDomain("ap", reset_less=True)
    taken, reset = Signal(init=1, name="reset_taken"), Signal(init=1, name="reset")
    m.d.comb += [ClockSignal("sync").eq(ap_clk), ClockSignal("ap").eq(ap_clk), ResetSignal("sync").eq(reset)]
    m.d.ap += Cat(taken, reset).eq(Cat(~ap_rst_n, taken))
