"""Clock and reset of a kernel."""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Module, ResetSignal, Signal, Value
from amaranth.lib.wiring import In

from p4sgd.hw.bus.axi import Axi4LiteSignature

__all__ = ["PORTS", "connect_control", "kernel_clock"]

PORTS = {"ap_clk": In(1), "ap_rst_n": In(1), "control": In(Axi4LiteSignature())}
"""Ports of every kernel: clock; reset, active low and synchronous; registers."""


def kernel_clock(m: Module, ap_clk: Value, ap_rst_n: Value) -> None:
    """Make the clock domain ``sync`` of a kernel from its clock and reset ports.

    The reset passes registers, which tools may copy and distribute over the chip, and lasts at least two cycles. A
    kernel begins in reset. It ends some cycles after ``ap_rst_n`` has risen; `connect_control` holds requests back
    meanwhile.
    """
    m.domains.sync = ClockDomain("sync")
    m.domains.ap = ClockDomain("ap", reset_less=True)
    taken, held, reset = (Signal(init=1, name=name) for name in ("reset_taken", "reset_held", "reset"))
    m.d.comb += [ClockSignal("sync").eq(ap_clk), ClockSignal("ap").eq(ap_clk), ResetSignal("sync").eq(reset)]
    m.d.ap += [taken.eq(~ap_rst_n), held.eq(taken), reset.eq(taken | held)]


def connect_control(m: Module, control: Any, registers: Any) -> None:
    """Connect a kernel's AXI4-Lite port to its registers, so that they get no request while they are in reset.

    They are ready during reset, too, so they would take a request and never answer it.
    """
    awake = ~ResetSignal("sync")
    for name in ("aw", "w", "ar"):
        there, here = getattr(control, name), getattr(registers, name)
        m.d.comb += [here.payload.eq(there.payload), here.valid.eq(there.valid & awake)]
        m.d.comb += there.ready.eq(here.ready & awake)
    for name in ("b", "r"):
        there, here = getattr(control, name), getattr(registers, name)
        m.d.comb += [there.payload.eq(here.payload), there.valid.eq(here.valid), here.ready.eq(there.ready)]
