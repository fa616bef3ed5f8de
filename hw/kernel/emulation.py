"""Stand-in for the Ethernet MAC where it cannot be simulated, as in Vitis' hardware emulation."""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, DomainRenamer, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.kernel.cmac import CmacAdapter, MacPorts, MacSignature
from p4sgd.hw.kernel.frames import FrameBuffer

__all__ = ["EmulatedCmacKernel", "StreamMac"]


_SENT_DEPTH = 64  # beats for frames to be sent, as many as a `CmacAdapter` has


class StreamMac(wiring.Component):
    """A MAC whose line is a pair of AXI4-Streams in place of transceivers::

        mac.tx ─▶ FrameBuffer ─┬─▶ line_tx
                               └ loopback ┐
        mac.rx ◀─── whole frames ◀────────┴─ line_rx

    It does what PG203 says of the vendor's MAC, but its clock never stops: both sides are in reset while ``mac.reset``
    is set, the receiving side also while ``mac.rx_datapath_reset`` is; lanes are aligned once reception is enabled;
    RS-FEC is what it was at the last reset. A reset loses whole frames, none is bad, and only in loopback a remote
    fault, its own, is seen. Like a cable ``line_rx`` is always ready; if the end of ``line_tx`` is not, frames wait.
    """

    mac: In(MacSignature())  # in the domain ``sync``, whose clock is ``mac.clk``; ``sync`` needs no reset
    line_tx: Out(stream.Signature(FrameBeat))  # to the other end of the line, without check sequences
    line_rx: In(stream.Signature(FrameBeat))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        mac = self.mac
        in_reset, rx_in_reset = Signal(init=1), Signal(init=1)
        aligned, rs_fec, loops = Signal(), Signal(), Signal()
        m.d.sync += [
            in_reset.eq(mac.reset),
            rx_in_reset.eq(mac.reset | mac.rx_datapath_reset),
            aligned.eq(mac.rx_enable & ~rx_in_reset),
            mac.remote_fault.eq(loops & mac.send_remote_fault),
        ]
        with m.If(in_reset):
            m.d.sync += rs_fec.eq(mac.rs_fec)
        m.d.comb += [
            mac.clk.eq(ClockSignal()),
            mac.tx_reset.eq(in_reset),
            mac.rx_reset.eq(rx_in_reset),
            mac.aligned.eq(aligned),
            mac.local_fault.eq(~aligned),
            mac.fec_aligned.eq(aligned & rs_fec),
            mac.block_lock.eq(aligned.replicate(len(mac.block_lock))),
            mac.fec_lock.eq((aligned & rs_fec).replicate(len(mac.fec_lock))),
            mac.power_good.eq(~0),
        ]

        m.submodules.buffer = buffer = FrameBuffer(_SENT_DEPTH, waits=True)
        sending = Signal()  # inside a frame, which is taken to its end whatever ``tx_enable`` is
        takes = ~in_reset & (mac.tx_enable | sending)
        with m.If(~buffer.o.valid):  # what is on the line stays there until it is taken
            m.d.sync += loops.eq(mac.loopback)
        m.d.comb += [
            buffer.i.payload.eq(mac.tx.payload),
            buffer.i.valid.eq(mac.tx.valid & takes),
            mac.tx.ready.eq(buffer.i.ready & takes),
            buffer.cut.eq(in_reset),
            self.line_tx.payload.eq(buffer.o.payload),
            self.line_tx.valid.eq(buffer.o.valid & ~loops),
            buffer.o.ready.eq(Mux(loops, 1, self.line_tx.ready)),
            self.line_rx.ready.eq(1),
        ]
        with m.If(in_reset):
            m.d.sync += sending.eq(0)
        with m.Elif(buffer.i.valid & buffer.i.ready):
            m.d.sync += sending.eq(~mac.tx.payload.last)

        comes = Signal()
        beat: Any = Signal(FrameBeat)
        m.d.comb += [
            comes.eq(Mux(loops, buffer.o.valid, self.line_rx.valid)),
            beat.eq(Mux(loops, buffer.o.payload, self.line_rx.payload)),
        ]
        inside = Signal()  # the last beat was not the last of its frame
        lost = Signal()  # a beat of the frame that is coming was lost, so its rest is dropped
        drops = Signal()
        m.d.comb += drops.eq(~aligned | lost)
        m.d.sync += [mac.rx.valid.eq(comes & ~drops), mac.rx.payload.beat.eq(beat)]
        with m.If(comes):
            m.d.sync += [inside.eq(~beat.last), lost.eq(drops & ~beat.last)]
        with m.Elif(~aligned):
            m.d.sync += lost.eq(inside)
        return m


class EmulatedCmacKernel(MacPorts):
    """Kernel that takes the place of a `CmacKernel` where transceivers cannot be simulated.

    It has the same `CmacAdapter` and registers. A `StreamMac` on the kernel's clock stands in for the vendor's IP, so a
    cable is a pair of connections between kernels (github.com/Xilinx/xup_vitis_network_example, issue 26).
    """

    axis_line_tx: Out(stream.Signature(FrameBeat))  # the line, as of a `StreamMac`
    axis_line_rx: In(stream.Signature(FrameBeat))

    def __init__(self, *, build_id: int = 0) -> None:
        self._build_id = build_id
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.domains.line = ClockDomain("line", reset_less=True)
        m.d.comb += ClockSignal("line").eq(self.ap_clk)
        m.submodules.adapter = adapter = CmacAdapter(build_id=self._build_id)
        m.submodules.mac = mac = DomainRenamer("line")(StreamMac())
        self._connect_ports(m, adapter)
        wiring.connect(m, adapter.mac, mac.mac)
        wiring.connect(m, mac.line_tx, wiring.flipped(self.axis_line_tx))
        wiring.connect(m, wiring.flipped(self.axis_line_rx), mac.line_rx)
        return m
