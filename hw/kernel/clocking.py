"""Clock and reset of a kernel."""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib.wiring import In

from p4sgd.hw.bus.axi import Axi4LiteSignature
from p4sgd.hw.spec.timing import RESET_CYCLES

__all__ = ["PORTS", "connect_control", "kernel_clock"]

PORTS = {"ap_clk": In(1), "ap_rst_n": In(1), "control": In(Axi4LiteSignature())}
"""Ports of every kernel: clock; reset, active low and synchronous; registers."""


def kernel_clock(m: Module, ap_clk: Value, ap_rst_n: Value) -> None:
    """Make the clock domain ``sync`` of a kernel from its clock and reset ports.

    The reset passes registers, which tools may copy and distribute over the chip, and lasts at least `RESET_CYCLES`. A
    kernel begins in reset. It ends some cycles after ``ap_rst_n`` has risen; `connect_control` holds requests back
    meanwhile.
    """
    m.domains.sync = ClockDomain("sync")
    m.domains.ap = ClockDomain("ap", reset_less=True)
    taken, reset = (Signal(init=1, name=name) for name in ("reset_taken", "reset"))
    left = Signal(range(RESET_CYCLES), init=RESET_CYCLES - 1, name="reset_left")
    m.d.comb += [ClockSignal("sync").eq(ap_clk), ClockSignal("ap").eq(ap_clk), ResetSignal("sync").eq(reset)]
    m.d.ap += [
        taken.eq(~ap_rst_n),
        left.eq(Mux(taken, RESET_CYCLES - 1, left - (left != 0))),
        reset.eq(taken | (left != 0)),
    ]


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
