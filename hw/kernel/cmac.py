"""The vendor's 100G Ethernet MAC: the adapter of its streams, and its kernel.

What stands between a kernel's streams and the vendor's Ethernet MAC.

The 100G Ethernet MAC as a kernel.
"""

from typing import Any

from amaranth.hdl import (
    Cat,
    ClockDomain,
    ClockSignal,
    Const,
    DomainRenamer,
    Instance,
    Module,
    Mux,
    ResetSignal,
    Signal,
    unsigned,
)
from amaranth.lib import data, stream, wiring
from amaranth.lib.cdc import AsyncFFSynchronizer, FFSynchronizer, PulseSynchronizer, ResetSynchronizer
from amaranth.lib.fifo import AsyncFIFO
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.bus.register_file import EventCounters, RegisterFile
from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.kernel.clocking import connect_control, kernel_clock
from p4sgd.hw.kernel.frames import FrameBuffer
from p4sgd.hw.spec.cmac import COUNTERS, cmac_map, identity

__all__ = ["LANES", "CmacAdapter", "CmacKernel", "MacSignature"]


LANES = 4
"""Transceivers of a QSFP28."""

_RESET_CYCLES = 256
"""Least length of the MAC's reset in cycles of the kernel's clock: many of the 50 MHz that it is taken over with."""

_START_CYCLES = 64
"""Cycles of the MAC's clock in which its domain stays in reset: many of the kernel's, too."""

_STEADY_CYCLES = 256
"""Cycles of the MAC's clock in which a link must work before frames are sent. Its faults take up to 128 columns of the
line to be told (IEEE 802.3 81.3.4)."""

_CROSSING_DEPTH = 16
"""Beats of a FIFO between two clocks: more than come while its pointers cross."""

_SENT_DEPTH = 64
"""Beats of frames to be sent: 4 KiB, of which the longest that there is here takes 2."""

_RECEIVED_DEPTH = 512
"""Beats of received frames: 32 KiB, what comes in 2.6 us, and three of the longest frames of other protocols."""


class MacSignature(wiring.Signature):
    """A MAC, seen from who uses it. All but ``reset``, ``loopback`` and ``power_good`` is of the MAC's clock.

    Members
    -------
    clk : In(1)
        The MAC's clock for its user, which rests while the transceivers are in reset.
    tx : Out(stream of FrameBeat)
        Frames to be sent. ``valid`` must not fall within a frame. Before a frame's first beat is taken it may, unlike
        AXI4-Stream's, if the link goes.
    rx : In(flow of {beat: FrameBeat, bad})
        Frames received; ``bad`` is of the last beat.
    tx_reset, rx_reset : In(1)
        The sending and the receiving side are in reset.
    aligned : In(1)
        All lanes are received and aligned.
    local_fault, remote_fault : In(1)
        It does not receive well, the other end says that it does not.
    tx_fault : In(1)
        It was given a frame too slowly or too fast.
    power_good : In(4)
        Transceivers that have power.
    reset : Out(1)
        All of it, transceivers too.
    rx_enable, tx_enable : Out(1)
        It may receive, send frames.
    send_remote_fault : Out(1)
        It tells the other end that it does not receive well.
    rs_fec : Out(1)
        Forward error correction; the MAC looks at it as it comes out of reset.
    loopback : Out(1)
        The transceivers receive what they send.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "clk": In(1),
                "tx": Out(stream.Signature(FrameBeat)),
                "rx": In(ValidSignature(data.StructLayout({"beat": FrameBeat, "bad": 1}))),
                **dict.fromkeys(("tx_reset", "rx_reset", "aligned", "local_fault", "remote_fault", "tx_fault"), In(1)),
                "power_good": In(LANES),
                **dict.fromkeys(("reset", "rx_enable", "tx_enable", "send_remote_fault", "rs_fec", "loopback"), Out(1)),
            }
        )


class CmacAdapter(wiring.Component):
    """Takes frames to and from a MAC that has a clock of its own, and brings its link up::

                 ap_clk │ mac.clk
        axis_tx ─▶ AsyncFIFO ─▶ FrameBuffer ─▶ link up? ─▶ mac.tx
        axis_rx ◀─ AsyncFIFO ◀─ FrameBuffer ◀───────────── mac.rx
        control ─ RegisterFile ─ synchronizers ─ EventCounters, status

    A frame is sent when the whole of it is there, since a MAC cannot wait within one. While there is no link, frames
    are taken and dropped: what waits for one MAC would stop what is for another. Received frames that came with errors
    are dropped, and those for which there is no room.

    The link comes up as PG203 wants it: the receiver is enabled, the other end is told that this one does not receive
    until all lanes are aligned, and frames are sent once the other end has not said the same for a while.

    Parameters
    ----------
    build_id
        Number that the host can read back, to tell builds apart.

    Members
    -------
    ap_clk : In(1), ap_rst_n : In(1)
        Clock, and reset, active low and synchronous.
    control : In(AXI4-Lite)
        The registers of :mod:`p4sgd.hw.spec.cmac`.
    axis_tx : In(stream of FrameBeat), axis_rx : Out(stream of FrameBeat)
        Frames to be sent, and received.
    mac : Out(MacSignature)
    """

    def __init__(self, *, build_id: int = 0) -> None:
        self._build_id = build_id
        super().__init__(
            {
                "ap_clk": In(1),
                "ap_rst_n": In(1),
                "control": In(Axi4LiteSignature()),
                "axis_tx": In(stream.Signature(FrameBeat)),
                "axis_rx": Out(stream.Signature(FrameBeat)),
                "mac": Out(MacSignature()),
            }
        )

    ap_clk: Signal
    ap_rst_n: Signal
    control: Any
    axis_tx: stream.Interface
    axis_rx: stream.Interface
    mac: Any

    def elaborate(self, platform: object) -> Module:
        m = Module()
        mac = self.mac
        kernel_clock(m, self.ap_clk, self.ap_rst_n)
        self._start(m)
        m.submodules.registers = registers = RegisterFile(cmac_map())
        connect_control(m, self.control, registers.bus)
        m.d.comb += registers.show(identity(self._build_id))

        # The MAC's own reset is as long as it must be to be seen with its slowest clock.
        reset_left = Signal(range(_RESET_CYCLES), init=_RESET_CYCLES - 1)
        m.d.ap += [reset_left.eq(reset_left - (reset_left != 0)), mac.reset.eq(reset_left != 0)]
        with m.If(ResetSignal("sync") | registers.control_reset):
            m.d.ap += reset_left.eq(_RESET_CYCLES - 1)
        m.d.comb += mac.loopback.eq(registers.control_loopback)
        m.submodules.rs_fec = FFSynchronizer(registers.control_rs_fec, mac.rs_fec, o_domain="mac")

        # What the other end says of itself is known some time after lanes are aligned.
        aligned = mac.aligned & ~mac.rx_reset
        works = aligned & ~mac.remote_fault & ~mac.tx_reset
        cycles_to_wait = Signal(range(_STEADY_CYCLES), init=_STEADY_CYCLES - 1)
        up = Signal()
        was_up = Signal()
        m.d.mac += [
            mac.rx_enable.eq(~mac.rx_reset),
            mac.send_remote_fault.eq(~aligned),
            cycles_to_wait.eq(Mux(works, cycles_to_wait - (cycles_to_wait != 0), _STEADY_CYCLES - 1)),
            up.eq(works & (cycles_to_wait == 0)),
            was_up.eq(up),
        ]
        m.d.comb += mac.tx_enable.eq(up)
        events = {"LINK_LOSSES": was_up & ~up, "TX_FAULTS": mac.tx_fault}
        events |= self._send(m, up)
        events |= self._receive(m)
        self._show(m, registers, up, events)
        return m

    def _start(self, m: Module) -> None:
        """Make the domains of the MAC's clock, and that of the FIFO's entry which waits for it.

        The clock rests while the MAC is in reset, and may be back long after the kernel's reset. A FIFO is empty after
        a reset only if both of its clocks have run within: the domain ``mac`` stays in reset for a while of its own
        clock, and ``tx``, which has the kernel's, until it has seen the end of that.
        """
        for domain, clock in (("start", self.mac.clk), ("mac", self.mac.clk), ("tx", ClockSignal())):
            setattr(m.domains, domain, ClockDomain(domain))
            m.d.comb += ClockSignal(domain).eq(clock)
        m.submodules.start_reset = ResetSynchronizer(ResetSignal("sync"), domain="start")
        cycles_left = Signal(range(_START_CYCLES), init=_START_CYCLES - 1)
        starts = Signal(init=1)
        m.d.start += [cycles_left.eq(cycles_left - (cycles_left != 0)), starts.eq(cycles_left != 0)]
        waits = Signal()
        m.submodules.waits = FFSynchronizer(ResetSignal("mac"), waits, init=1)
        m.d.comb += [
            ResetSignal("mac").eq(ResetSignal("start") | starts),
            ResetSignal("tx").eq(ResetSignal("sync") | waits),
        ]

    def _send(self, m: Module, up: Signal) -> dict[str, Any]:
        tx = self.mac.tx
        m.submodules.tx_crossing = crossing = AsyncFIFO(
            width=FrameBeat.size, depth=_CROSSING_DEPTH, w_domain="tx", r_domain="mac"
        )
        m.submodules.tx_buffer = buffer = DomainRenamer("mac")(FrameBuffer(_SENT_DEPTH, waits=True))
        # Before the MAC's clock runs frames are dropped, and none enters with its end alone.
        begun, entered = Signal(), Signal()  # a frame has, and enters
        enters = Mux(begun, entered, ~ResetSignal("tx"))
        with m.If(self.axis_tx.valid & self.axis_tx.ready):
            m.d.sync += [begun.eq(~self.axis_tx.payload.last), entered.eq(enters)]
        m.d.comb += [
            crossing.w_data.eq(self.axis_tx.payload),
            crossing.w_en.eq(self.axis_tx.valid & enters),
            self.axis_tx.ready.eq(Mux(enters, crossing.w_rdy, 1)),
            buffer.i.payload.eq(crossing.r_data),
            buffer.i.valid.eq(crossing.r_rdy),
            crossing.r_en.eq(buffer.i.ready),
        ]
        inside = Signal()  # the MAC has the first beat of a frame, and not yet the last
        drops = Signal()  # the rest of a frame is dropped
        sends, ends = Signal(), Signal()
        m.d.comb += [
            sends.eq((up | inside) & ~drops & ~self.mac.tx_reset),
            tx.payload.eq(buffer.o.payload),
            tx.valid.eq(buffer.o.valid & sends),
            buffer.o.ready.eq(Mux(sends, tx.ready, 1)),
            ends.eq(buffer.o.valid & buffer.o.ready & buffer.o.payload.last),
        ]
        with m.If(buffer.o.valid & buffer.o.ready):
            m.d.mac += [inside.eq(sends & ~buffer.o.payload.last), drops.eq(~sends & ~buffer.o.payload.last)]
        return {"TX_FRAMES": ends & sends, "TX_DROPPED": (ends & ~sends) | buffer.dropped_full}

    def _receive(self, m: Module) -> dict[str, Any]:
        rx = self.mac.rx
        m.submodules.rx_buffer = buffer = DomainRenamer("mac")(FrameBuffer(_RECEIVED_DEPTH, waits=False))
        m.submodules.rx_crossing = crossing = AsyncFIFO(
            width=FrameBeat.size, depth=_CROSSING_DEPTH, w_domain="mac", r_domain="sync"
        )
        m.d.comb += [
            buffer.i.payload.eq(rx.payload.beat),
            buffer.i.valid.eq(rx.valid & ~self.mac.rx_reset),
            buffer.bad.eq(rx.payload.bad),
            buffer.cut.eq(self.mac.rx_reset),
            crossing.w_data.eq(buffer.o.payload),
            crossing.w_en.eq(buffer.o.valid),
            buffer.o.ready.eq(crossing.w_rdy),
            self.axis_rx.payload.eq(crossing.r_data),
            self.axis_rx.valid.eq(crossing.r_rdy),
            crossing.r_en.eq(self.axis_rx.ready),
        ]
        return {"RX_FRAMES": buffer.kept, "RX_BAD": buffer.dropped_bad, "RX_OVERFLOWS": buffer.dropped_full}

    def _show(self, m: Module, registers: RegisterFile, up: Signal, events: dict[str, Any]) -> None:
        mac = self.mac
        # A MAC in reset has no clock to say so: until that has run again ``up`` is what it was before.
        rests = Signal()
        m.submodules.rest_reset = AsyncFFSynchronizer(mac.reset, rests, o_domain="mac")
        status = {
            "up": up & ~rests,
            **{name: getattr(mac, name) for name in ("aligned", "local_fault", "remote_fault", "tx_reset", "rx_reset")},
            "power_good": mac.power_good,
        }
        for name, value in status.items():
            shown = Signal(unsigned(len(value)), name=f"shown_{name}")
            m.submodules[f"{name}_crossing"] = FFSynchronizer(value, shown)
            m.d.comb += getattr(registers, f"status_{name}").eq(shown)

        # A snapshot is asked for in the MAC's clock, and has been taken when that has come back.
        m.submodules.counters = counters = DomainRenamer("mac")(EventCounters(len(COUNTERS)))
        m.submodules.asked = asked = PulseSynchronizer("sync", "mac")
        m.submodules.taken = taken = PulseSynchronizer("mac", "sync")
        pending = Signal()
        m.d.comb += [
            counters.events.eq(Cat(events[name] for name in COUNTERS)),
            asked.i.eq(registers.snapshot_take_strobe & ~pending),
            counters.show.eq(asked.o),
            taken.i.eq(asked.o),
            registers.snapshot_pending.eq(pending),
        ]
        with m.If(taken.o):
            m.d.sync += pending.eq(0)
        with m.If(registers.snapshot_take_strobe):
            m.d.sync += pending.eq(1)
        for name, shown in zip(COUNTERS, counters.shown, strict=True):
            m.d.comb += registers.wide(name.lower()).eq(shown)


_LOOPBACK_BITS = 3
"""Bits of a transceiver's loopback setting; 0b010 is the near end's PMA (UG578)."""

_UNUSED_INPUTS = {
    "gtwiz_reset_tx_datapath": 1,
    "gtwiz_reset_rx_datapath": 1,
    "core_tx_reset": 1,
    "core_rx_reset": 1,
    "core_drp_reset": 1,
    "drp_clk": 1,
    "drp_addr": 10,
    "drp_di": 16,
    "drp_en": 1,
    "drp_we": 1,
    "tx_preamblein": 56,
    "tx_axis_tuser": 1,
    "ctl_tx_send_idle": 1,
    "ctl_tx_send_lfi": 1,
    "ctl_tx_test_pattern": 1,
    "ctl_rx_force_resync": 1,
    "ctl_rx_test_pattern": 1,
    "ctl_rsfec_ieee_error_indication_mode": 1,
}
"""Inputs of the MAC that are 0, and their widths."""


class CmacKernel(wiring.Component):
    """A `CmacAdapter` with the vendor's MAC, UltraScale+ Integrated 100G Ethernet (PG203), and its transceivers.

    The MAC is an instance of an IP that Vivado makes: AXI4-Stream as user interface, CAUI-4, RS-FEC included, without
    AXI4-Lite, flow control and time stamps. Its ``rx_clk`` is its ``gt_txusrclk2`` (322.265625 MHz), so that it has one
    clock for its user, which goes on when nothing is received.

    Parameters
    ----------
    build_id
        As of a `CmacAdapter`.
    mac
        Name of the IP's module.

    Members
    -------
    ap_clk, ap_rst_n, control, axis_tx, axis_rx
        As of a `CmacAdapter`.
    clk_gt_freerun : In(1)
        The MAC's ``init_clk``: runs always and at a known rate, which the IP is made for; 50 MHz on a U280's shell. So
        it is not ``ap_clk``, whose rate may be changed.
    gt_refclk_p, gt_refclk_n : In(1)
        Reference clock of the transceivers, 156.25 MHz on a U280.
    gt_rxp, gt_rxn : In(4), gt_txp, gt_txn : Out(4)
        The lanes of a QSFP28.
    """

    def __init__(self, *, build_id: int = 0, mac: str) -> None:
        self._build_id = build_id
        self._mac = mac
        super().__init__(
            {
                "ap_clk": In(1),
                "ap_rst_n": In(1),
                "control": In(Axi4LiteSignature()),
                "axis_tx": In(stream.Signature(FrameBeat)),
                "axis_rx": Out(stream.Signature(FrameBeat)),
                "clk_gt_freerun": In(1),
                "gt_refclk_p": In(1),
                "gt_refclk_n": In(1),
                "gt_rxp": In(LANES),
                "gt_rxn": In(LANES),
                "gt_txp": Out(LANES),
                "gt_txn": Out(LANES),
            }
        )

    ap_clk: Signal
    ap_rst_n: Signal
    control: Any
    axis_tx: stream.Interface
    axis_rx: stream.Interface
    clk_gt_freerun: Signal
    gt_refclk_p: Signal
    gt_refclk_n: Signal
    gt_rxp: Signal
    gt_rxn: Signal
    gt_txp: Signal
    gt_txn: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.adapter = adapter = CmacAdapter(build_id=self._build_id)
        mac = adapter.mac
        m.d.comb += [adapter.ap_clk.eq(self.ap_clk), adapter.ap_rst_n.eq(self.ap_rst_n)]
        wiring.connect(m, wiring.flipped(self.control), adapter.control)
        wiring.connect(m, wiring.flipped(self.axis_tx), adapter.axis_tx)
        wiring.connect(m, adapter.axis_rx, wiring.flipped(self.axis_rx))

        overflow, underflow = Signal(), Signal()
        m.d.comb += mac.tx_fault.eq(overflow | underflow)
        m.submodules.mac = Instance(
            self._mac,
            i_sys_reset=mac.reset,
            i_init_clk=self.clk_gt_freerun,
            i_gt_ref_clk_p=self.gt_refclk_p,
            i_gt_ref_clk_n=self.gt_refclk_n,
            i_gt_rxp_in=self.gt_rxp,
            i_gt_rxn_in=self.gt_rxn,
            o_gt_txp_out=self.gt_txp,
            o_gt_txn_out=self.gt_txn,
            i_gt_loopback_in=Cat(Const(0, 1), mac.loopback, Const(0, _LOOPBACK_BITS - 2)).replicate(LANES),
            o_gt_powergoodout=mac.power_good,
            o_gt_txusrclk2=mac.clk,
            i_rx_clk=mac.clk,
            o_usr_tx_reset=mac.tx_reset,
            o_usr_rx_reset=mac.rx_reset,
            i_tx_axis_tdata=mac.tx.payload.data,
            i_tx_axis_tkeep=mac.tx.payload.keep,
            i_tx_axis_tlast=mac.tx.payload.last,
            i_tx_axis_tvalid=mac.tx.valid,
            o_tx_axis_tready=mac.tx.ready,
            o_tx_ovfout=overflow,
            o_tx_unfout=underflow,
            o_rx_axis_tdata=mac.rx.payload.beat.data,
            o_rx_axis_tkeep=mac.rx.payload.beat.keep,
            o_rx_axis_tlast=mac.rx.payload.beat.last,
            o_rx_axis_tuser=mac.rx.payload.bad,
            o_rx_axis_tvalid=mac.rx.valid,
            i_ctl_tx_enable=mac.tx_enable,
            i_ctl_rx_enable=mac.rx_enable,
            i_ctl_tx_send_rfi=mac.send_remote_fault,
            i_ctl_tx_rsfec_enable=mac.rs_fec,
            i_ctl_rx_rsfec_enable=mac.rs_fec,
            i_ctl_rx_rsfec_enable_correction=mac.rs_fec,
            i_ctl_rx_rsfec_enable_indication=mac.rs_fec,
            o_stat_rx_aligned=mac.aligned,
            o_stat_rx_local_fault=mac.local_fault,
            o_stat_rx_remote_fault=mac.remote_fault,
            **{f"i_{name}": Const(0, bits) for name, bits in _UNUSED_INPUTS.items()},
        )
        return m
