"""Loop-back test of the Ethernet MAC of a QSFP28 cage, with numbered frames. It needs no module and no cable."""

from typing import Any

from amaranth.hdl import ClockSignal, Const, Elaboratable, Instance, Module, Mux, ResetSignal, Signal
from amaranth.lib import io, stream, wiring
from amaranth.lib.wiring import Out

from p4sgd.build.demos.serial import BAUD, Report
from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.kernel.selftest import FrameChecker, FrameSource
from p4sgd.hw.kernel.verilog import cmac_kernel, with_ports
from p4sgd.hw.spec.cmac import CONTROL, STATUS
from p4sgd.hw.spec.selftest import WORD_BITS

__all__ = ["FREE_MEGAHERTZ", "LinkControl", "Loopback", "LoopbackDemonstration"]


FREE_MEGAHERTZ = 50
"""Frequency of the MAC's ``init_clk``, half that of the board's clock: it must not be the kernel's clock."""

_REST_CYCLES = 15
"""Cycles to wait after reset, because the kernel leaves its own reset some cycles later."""


class LinkControl(wiring.Component):
    """Master of a MAC's registers that switches on loop-back, then polls the status of the link.

    Members
    -------
    control : Out(AXI4-Lite)
        The kernel's registers.
    status : Out(32)
        STATUS as last read.
    """

    control: Any
    status: Signal

    def __init__(self) -> None:
        super().__init__({"control": Out(Axi4LiteSignature()), "status": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        aw, w, b, ar, r = (getattr(self.control, channel) for channel in ("aw", "w", "b", "ar", "r"))
        rest = Signal(range(_REST_CYCLES + 1), init=_REST_CYCLES)
        in_reset = Signal(init=1)  # the MAC takes over the loop-back setting when it leaves reset
        word = Mux(in_reset, CONTROL.encode(reset=1, loopback=1), CONTROL.encode(reset=0, loopback=1))
        m.d.comb += [
            aw.payload.addr.eq(CONTROL.offset),
            w.payload.data.eq(word),
            w.payload.strb.eq(-1),
            ar.payload.addr.eq(STATUS.offset),
        ]
        with m.FSM():
            with m.State("REST"):
                m.d.sync += rest.eq(rest - 1)
                with m.If(rest == 0):
                    m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.sync += [aw.valid.eq(1), w.valid.eq(1)]
                m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += b.ready.eq(1)
                with m.If(aw.ready):
                    m.d.sync += aw.valid.eq(0)
                with m.If(w.ready):
                    m.d.sync += w.valid.eq(0)
                with m.If(b.valid):
                    m.d.sync += in_reset.eq(0)
                    with m.If(in_reset):
                        m.next = "BEGIN"
                    with m.Else():
                        m.next = "READ"
            with m.State("READ"):
                m.d.comb += ar.valid.eq(1)
                with m.If(ar.ready):
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += r.ready.eq(1)
                with m.If(r.valid):
                    m.d.sync += self.status.eq(r.payload.data)
                    m.next = "READ"
        return m


class Loopback(wiring.Component):
    """Test of a MAC's kernel in loop-back, which reports the number of frames over a serial line once a second.

    Parameters
    ----------
    clock_hz
        Frequency of the domain ``sync``.
    baud
        Bits per second on the line.

    Members
    -------
    control : Out(AXI4-Lite)
        The kernel's registers.
    axis_tx : Out(stream of FrameBeat), axis_rx : In(stream of FrameBeat)
        Frames to the kernel and from it.
    line : Out(1)
        8 bits, no parity, one stop bit. STATUS of :mod:`p4sgd.hw.spec.cmac`, then the counters of `FrameSource` and
        `FrameChecker`, all in hexadecimal.
    """

    control: Any
    axis_tx: stream.Interface
    axis_rx: stream.Interface
    line: Signal

    def __init__(self, clock_hz: int, baud: int = BAUD) -> None:
        self._clock_hz = clock_hz
        self._baud = baud
        frames = stream.Signature(FrameBeat)
        super().__init__(
            {
                "control": Out(Axi4LiteSignature()),
                "axis_tx": Out(frames),
                "axis_rx": Out(frames.flip()),
                "line": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.link = link = LinkControl()
        m.submodules.source = source = FrameSource()
        m.submodules.checker = checker = FrameChecker()
        wiring.connect(m, link.control, wiring.flipped(self.control))
        connect_stream(m, source.frames, wiring.flipped(self.axis_tx))
        connect_stream(m, wiring.flipped(self.axis_rx), checker.frames)
        m.d.comb += source.enable.eq((link.status & STATUS["up"].mask).any())

        numbers = {
            "status": link.status,
            "sent": source.sent,
            "received": checker.received,
            "wrong": checker.wrong,
            "missing": checker.missing,
        }
        m.submodules.report = report = Report(
            "p4sgd loopback status {status} sent {sent} received {received} wrong {wrong} missing {missing}",
            dict.fromkeys(numbers, WORD_BITS),
            period_cycles=self._clock_hz,
            bit_cycles=round(self._clock_hz / self._baud),
        )
        m.d.comb += [report.numbers[name].eq(value) for name, value in numbers.items()]
        m.d.comb += self.line.eq(report.line)
        return m


class LoopbackDemonstration(Elaboratable):
    """`Loopback` with the MAC of QSFP28 cage 0 of a U280.

    The design instantiates the kernel `p4sgd.hw.kernel.verilog.cmac_kernel`, and with it the vendor's IP, whose files
    have to be added to the project.

    Parameters
    ----------
    clock_hz
        Frequency by which a second and a bit are counted, if not that of the board's clock. A lower one shortens a
        simulation.
    """

    def __init__(self, *, clock_hz: int | None = None) -> None:
        self._clock_hz = clock_hz

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        kernel = cmac_kernel()
        clock_hz = int(platform.default_clk_frequency)
        loopback = Loopback(self._clock_hz or clock_hz)
        m.submodules.user = user = with_ports(loopback)  # counterparts of the kernel's ports
        lanes = platform.request("qsfp28", 0, dir="-")
        reference = platform.request("qsfp28_refclk", 0, dir="-")
        freerun = Signal()
        divisor = clock_hz // (FREE_MEGAHERTZ * 1_000_000)
        m.submodules.divider = Instance(
            "BUFGCE_DIV", p_BUFGCE_DIVIDE=divisor, i_I=ClockSignal(), i_CE=Const(1), i_CLR=Const(0), o_O=freerun
        )
        own = {
            "ap_clk": ClockSignal(),
            "ap_rst_n": ~ResetSignal(),
            "clk_gt_freerun": freerun,
            "gt_refclk_p": reference.p,
            "gt_refclk_n": reference.n,
            "gt_rxp": lanes.rx.p,
            "gt_rxn": lanes.rx.n,
            "gt_txp": lanes.tx.p,
            "gt_txn": lanes.tx.n,
        }
        m.submodules.kernel = Instance(
            kernel.top,
            **{
                f"{port.direction[0]}_{port.name}": own[port.name] if port.name in own else getattr(user, port.name)
                for port in kernel.ports
            },
        )
        m.submodules.tx = tx = io.Buffer(io.Direction.Output, platform.request("uart", dir="-").tx)
        m.d.comb += tx.o.eq(loopback.line)
        return m
