"""Clock, reset and synchronizers of a kernel."""

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Const, Module, ResetSignal, Signal, Value
from amaranth.lib.wiring import In

from p4sgd.hw.bus.axi import Axi4LiteSignature
from p4sgd.hw.verilog import DebugCore

__all__ = ["KEEP", "MARK", "PORTS", "MarkedSynchronizers", "connect_control", "kernel_clock"]

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


MARK = {"ASYNC_REG": "TRUE"}  # of synchronizers: Vivado places these together and keeps them as they are (UG901)


KEEP = {"keep": "true"}
"""Attribute of a register that a synchronizer samples (UG901, KEEP). Otherwise Vivado may merge it with an equal one,
as the highest bits of a pointer and its Gray code are, and constraints on its name would miss it."""


class MarkedSynchronizers:
    """Platform that makes Amaranth's synchronizers of registers with the attribute `MARK`; for ``to_verilog``.

    Amaranth's own for this vendor instantiates cells that other tools lack. The first register of each synchronizer is
    named ``stage0``; what it samples must be a register, and is kept: for constraints on the paths between them.
    ``debug_cores`` are those of the design, once it has been written; None if it shall have none.
    """

    def __init__(self, *, debug: bool = False) -> None:
        self.debug_cores: list[DebugCore] | None = [] if debug else None

    def get_ff_sync(self, synchronizer: Any) -> Module:
        """Make the module of an `amaranth.lib.cdc.FFSynchronizer`."""
        m = Module()
        value = synchronizer.i
        value.attrs.update(KEEP)
        settings = {"init": synchronizer._init, "reset_less": synchronizer._reset_less, "attrs": MARK}
        for stage in range(synchronizer._stages):
            later = Signal(synchronizer.i.shape(), name=f"stage{stage}", **settings)
            m.d[synchronizer._o_domain] += later.eq(value)
            value = later
        m.d.comb += synchronizer.o.eq(value)
        return m

    def get_async_ff_sync(self, synchronizer: Any) -> Module:
        """Make the module of an `amaranth.lib.cdc.AsyncFFSynchronizer`."""
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
