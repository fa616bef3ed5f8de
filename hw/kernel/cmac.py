"""The vendor's 100G Ethernet MAC (CMAC) as a kernel, and the adapter of its streams."""

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Const, DomainRenamer, Instance, Module, Mux, ResetSignal, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.cdc import FFSynchronizer, PulseSynchronizer, ResetSynchronizer
from amaranth.lib.fifo import AsyncFIFO
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.bus.register_file import EventCounters, RegisterFile, member_name
from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.kernel.clocking import connect_control, kernel_clock
from p4sgd.hw.kernel.frames import FrameBuffer
from p4sgd.hw.spec.cmac import COUNTERS, FEC_LANES, LANES, PCS_LANES, STATUS, cmac_map, identity
from p4sgd.hw.verilog import CoreKind, add_debug_core

__all__ = ["CmacAdapter", "CmacKernel", "EmulatedCmacKernel", "MacPorts", "MacSignature", "StreamMac"]

_RESET_CYCLES = 256  # least reset of the MAC in the kernel's cycles: many of its slowest clock, of 100 MHz on a U280
_START_CYCLES = 64  # cycles of the MAC's clock for which its domain stays in reset: many of the kernel's, too
_STEADY_CYCLES = 256  # cycles without a fault before frames are sent: one may come 128 columns late (IEEE 802.3 81.3.4)
_CROSSING_DEPTH = 16  # depth in beats of a FIFO between two clocks: more than come while its pointers cross
_SENT_DEPTH = 64  # beats of frames to be sent: 4 KiB, of which the longest frame of this protocol takes 2 beats
_RECEIVED_DEPTH = 512  # beats of received frames: 32 KiB, 2.6 us or three jumbo frames of other protocols


class MacSignature(wiring.Signature):
    """A MAC, seen from its user: in its clock, but for ``reset``, ``rx_datapath_reset``, ``loopback`` and power."""

    def __init__(self) -> None:
        ports = {
            "clk": In(1),  # Clock for the user. It stops while the transceivers are in reset.
            # Frames to be sent. Within a frame ``valid`` must not fall. Unlike AXI4-Stream's, it may fall before
            # the first beat of a frame is taken, when the link goes down.
            "tx": Out(stream.Signature(FrameBeat)),
            # Frames received; ``bad`` is valid with the last beat.
            "rx": In(ValidSignature(data.StructLayout({"beat": FrameBeat, "bad": 1}))),
            "tx_reset": In(1),  # the transmitter is in reset
            "rx_reset": In(1),
            "aligned": In(1),  # all lanes are received and aligned
            "local_fault": In(1),  # reception is faulty here
            "remote_fault": In(1),  # reception is faulty at the other end, as it signals
            "tx_fault": In(1),  # beats of a frame came too late or too early
            "hi_ber": In(1),  # too many blocks arrive with errors
            "fec_aligned": In(1),  # all lanes of RS-FEC are aligned
            "bad_fcs": In(1),  # a frame with a wrong check sequence was received
            "fec_corrected": In(1),  # a codeword of RS-FEC had errors that were corrected
            "fec_uncorrected": In(1),  # it had errors that could not be corrected
            "power_good": In(FEC_LANES),  # bitmap of the transceivers that have power
            "fec_lock": In(FEC_LANES),  # bitmap of the lanes of RS-FEC that are received
            "block_lock": In(PCS_LANES),  # bitmap of the PCS lanes that are received
            "reset": Out(1),  # of the MAC and its transceivers
            "rx_datapath_reset": Out(1),  # of the transceivers' receivers
            "rx_enable": Out(1),  # of reception, and of transmission
            "tx_enable": Out(1),
            "send_remote_fault": Out(1),  # signal to the other end that reception is faulty here
            "rs_fec": Out(1),  # forward error correction; the MAC samples it as it comes out of reset
            "loopback": Out(1),  # let the transceivers receive what they send
        }
        super().__init__(ports)


class MacPorts(wiring.Component):
    """Ports of a MAC's kernel."""

    ap_clk: In(1)
    ap_rst_n: In(1)  # active low and synchronous
    control: In(Axi4LiteSignature())  # the registers of `p4sgd.hw.spec.cmac`
    axis_tx: In(stream.Signature(FrameBeat))  # frames to be sent, and frames received
    axis_rx: Out(stream.Signature(FrameBeat))

    def _connect_ports(self, m: Module, adapter: Any) -> None:
        """Connect them to those of a `CmacAdapter` in a kernel."""
        m.d.comb += [adapter.ap_clk.eq(self.ap_clk), adapter.ap_rst_n.eq(self.ap_rst_n)]
        wiring.connect(m, wiring.flipped(self.control), adapter.control)
        wiring.connect(m, wiring.flipped(self.axis_tx), adapter.axis_tx)
        wiring.connect(m, adapter.axis_rx, wiring.flipped(self.axis_rx))


class CmacAdapter(MacPorts):
    """Moves frames between the kernel's clock and the MAC's, and brings the link up::

                 ap_clk │ mac.clk
        axis_tx ─▶ AsyncFIFO ─▶ FrameBuffer ─▶ link up? ─▶ mac.tx
        axis_rx ◀─ AsyncFIFO ◀─ FrameBuffer ◀───────────── mac.rx
        control ─ RegisterFile ─ synchronizers ─ EventCounters, status

    A frame is sent when all of it has come, since a MAC takes no gap within one. Without a link frames are dropped, or
    they would block those for other MACs; received ones if they have errors or find no room.

    The link comes up in the order that PG203 requires: enable the receiver; signal a remote fault until all lanes are
    aligned; send frames once the other end has signalled none for `_STEADY_CYCLES`.
    """

    mac: Out(MacSignature())

    def __init__(self, *, build_id: int = 0) -> None:
        self._build_id = build_id
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        mac = self.mac
        kernel_clock(m, self.ap_clk, self.ap_rst_n)
        self._start(m)
        m.submodules.registers = registers = RegisterFile(cmac_map())
        connect_control(m, self.control, registers.bus)
        m.d.comb += registers.show(identity(self._build_id))

        # The MAC's resets are in the domain `ap`, which is never reset, and are stretched for the MAC's slowest clock.
        for reset, asserted in (
            (mac.reset, ResetSignal("sync") | registers.control_reset),
            (mac.rx_datapath_reset, registers.control_rx_reset),
        ):
            reset_left = Signal(range(_RESET_CYCLES), init=_RESET_CYCLES - 1)
            m.d.ap += [reset_left.eq(reset_left - (reset_left != 0)), reset.eq(reset_left != 0)]
            with m.If(asserted):
                m.d.ap += reset_left.eq(_RESET_CYCLES - 1)
        m.d.comb += mac.loopback.eq(registers.control_loopback)
        m.submodules.rs_fec = FFSynchronizer(registers.control_rs_fec, mac.rs_fec, o_domain="mac")

        # A remote fault is known only some time after the lanes are aligned, so the link is up after `_STEADY_CYCLES`.
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
        events = {"LINK_LOSSES": was_up & ~up, "TX_FAULTS": mac.tx_fault, "RX_BAD_FCS": mac.bad_fcs}
        events |= {"FEC_CORRECTED": mac.fec_corrected, "FEC_UNCORRECTED": mac.fec_uncorrected}
        events |= self._send(m, up)
        events |= self._receive(m)
        self._show(m, registers, up, events)
        return m

    def _start(self, m: Module) -> None:
        """Make the clock domains ``mac`` and ``tx``.

        The MAC's clock stops while the MAC is in reset, and a FIFO between two clocks is empty after a reset only if
        both have run during it. So ``mac`` stays in reset for some cycles of its own clock, which ``start`` counts, and
        ``tx``, the write side of the FIFO in the kernel's clock, until it has seen ``mac`` leave reset. Both resets are
        registers, as they act without a clock, where a glitch would do harm.
        """
        for domain, clock in (("start", self.mac.clk), ("mac", self.mac.clk), ("tx", ClockSignal())):
            setattr(m.domains, domain, ClockDomain(domain, async_reset=domain == "start"))
            m.d.comb += ClockSignal(domain).eq(clock)
        m.submodules.start_reset = ResetSynchronizer(ResetSignal("sync"), domain="start")
        cycles_left = Signal(range(_START_CYCLES), init=_START_CYCLES - 1)
        starts = Signal(init=1)
        m.d.start += [cycles_left.eq(cycles_left - (cycles_left != 0)), starts.eq(cycles_left != 0)]
        waits = Signal()
        tx_reset = Signal(init=1)
        m.submodules.mac_reset_crossing = FFSynchronizer(starts, waits, init=1)
        m.d.ap += tx_reset.eq(ResetSignal("sync") | waits)
        m.d.comb += [ResetSignal("mac").eq(starts), ResetSignal("tx").eq(tx_reset)]

    def _send(self, m: Module, up: Signal) -> dict[str, Any]:
        """Build the way of frames to the MAC; returns its events."""
        tx = self.mac.tx
        m.submodules.tx_crossing = crossing = AsyncFIFO(
            width=FrameBeat.size, depth=_CROSSING_DEPTH, w_domain="tx", r_domain="mac"
        )
        m.submodules.tx_buffer = buffer = DomainRenamer("mac")(FrameBuffer(_SENT_DEPTH, waits=True))
        # Frames are dropped until the MAC's clock runs: whole frames, so that none enters without its start.
        begun, entered = Signal(), Signal()  # inside a frame; it enters the FIFO
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
        # A frame that has begun is sent to its end even if the link goes down, unless the MAC is reset. A frame of
        # which a beat was dropped is dropped to its end.
        inside = Signal()  # the MAC has taken the first beat of a frame, but not the last
        drops = Signal()  # the rest of the frame is dropped
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
        """Build the way of frames from the MAC; returns its events."""
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
        """Bring status and counters to the registers."""
        mac = self.mac
        # While the MAC is in reset its clock stops: the copy of `up` that is shown is cleared without one.
        m.domains.shown = ClockDomain("shown", async_reset=True)
        m.submodules.shown_reset = ResetSynchronizer(mac.reset, domain="shown")
        m.d.comb += ClockSignal("shown").eq(mac.clk)
        shown_up = Signal()
        m.d.shown += shown_up.eq(up)
        for register in (STATUS, LANES):
            for field in register.fields:
                value = shown_up if field.name == "up" else getattr(mac, field.name)
                crossed = Signal(len(value), name=f"crossed_{field.name}")
                m.submodules[f"{field.name}_crossing"] = FFSynchronizer(value, crossed)
                m.d.comb += getattr(registers, member_name(register, field)).eq(crossed)

        # Counters cross without synchronizers: a pulse to the MAC's clock takes a snapshot, one back says it is stable.
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


_LOOPBACK_BITS = 3  # of a transceiver's loopback setting; 0b010 is near-end PMA loopback (UG578)
_BAD_FCS_BITS = 3  # width of the number of frames with a wrong check sequence that the MAC finds in a cycle

_STATUS = ("aligned", "local_fault", "remote_fault", "hi_ber", "block_lock")
"""Outputs ``stat_rx_*`` that a `MacSignature` has under the same name."""

_UNUSED_INPUTS = """
    gtwiz_reset_tx_datapath:1 core_tx_reset:1 core_rx_reset:1 core_drp_reset:1 drp_clk:1 drp_addr:10 drp_di:16 drp_en:1
    drp_we:1 tx_preamblein:56 tx_axis_tuser:1 ctl_tx_send_idle:1 ctl_tx_send_lfi:1 ctl_tx_test_pattern:1
    ctl_rx_force_resync:1 ctl_rx_test_pattern:1 ctl_rsfec_ieee_error_indication_mode:1
"""
"""Inputs of the MAC that are tied to 0, and their widths."""


_LINK = (
    *("power_good", "reset", "rx_datapath_reset", "tx_reset", "rx_reset", "block_lock", "fec_lock", "fec_aligned"),
    *("aligned", "local_fault", "remote_fault", "hi_ber", "send_remote_fault", "rx_enable", "tx_enable"),
)
"""Members of a `MacSignature` that show how far a link has come, in order; for a debug core."""


class CmacKernel(MacPorts):
    """Kernel of the vendor's MAC, UltraScale+ Integrated 100G Ethernet (PG203), with a `CmacAdapter`.

    They are an instance of an IP that Vivado generates, module ``mac``: AXI4-Stream as user interface, CAUI-4, with
    RS-FEC, without AXI4-Lite, flow control and time stamps. Its ``rx_clk`` is its ``gt_txusrclk2`` (322.265625 MHz), so
    that the user side has a single clock, which also runs while nothing is received.
    """

    # The MAC's ``init_clk``. It must always run, at the rate that the IP is generated for, 100 MHz on a U280's shell.
    # That rules out ``ap_clk``: its rate may be changed.
    clk_gt_freerun: In(1)
    # Reference clock of the transceivers, 156.25 MHz on a U280.
    gt_refclk_p: In(1)
    gt_refclk_n: In(1)
    # The lanes of a QSFP28.
    gt_rxp: In(FEC_LANES)
    gt_rxn: In(FEC_LANES)
    gt_txp: Out(FEC_LANES)
    gt_txn: Out(FEC_LANES)

    def __init__(self, *, build_id: int = 0, mac: str) -> None:
        self._build_id = build_id
        self._mac = mac
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.adapter = adapter = CmacAdapter(build_id=self._build_id)
        mac = adapter.mac
        self._connect_ports(m, adapter)

        overflow, underflow, bad_fcs = Signal(), Signal(), Signal(_BAD_FCS_BITS)
        m.d.comb += [mac.tx_fault.eq(overflow | underflow), mac.bad_fcs.eq(bad_fcs.any())]
        unused = (each.split(":") for each in _UNUSED_INPUTS.split())
        m.submodules.mac = Instance(
            self._mac,
            i_sys_reset=mac.reset,
            i_gtwiz_reset_rx_datapath=mac.rx_datapath_reset,
            i_init_clk=self.clk_gt_freerun,
            i_gt_ref_clk_p=self.gt_refclk_p,
            i_gt_ref_clk_n=self.gt_refclk_n,
            i_gt_rxp_in=self.gt_rxp,
            i_gt_rxn_in=self.gt_rxn,
            o_gt_txp_out=self.gt_txp,
            o_gt_txn_out=self.gt_txn,
            i_gt_loopback_in=Cat(Const(0, 1), mac.loopback, Const(0, _LOOPBACK_BITS - 2)).replicate(FEC_LANES),
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
            **{f"o_stat_rx_{name}": getattr(mac, name) for name in _STATUS},
            o_stat_rx_bad_fcs=bad_fcs,
            o_stat_rx_rsfec_lane_alignment_status=mac.fec_aligned,
            **{f"o_stat_rx_rsfec_am_lock{lane}": mac.fec_lock[lane] for lane in range(FEC_LANES)},
            o_stat_rx_rsfec_corrected_cw_inc=mac.fec_corrected,
            o_stat_rx_rsfec_uncorrected_cw_inc=mac.fec_uncorrected,
            **{f"i_{name}": Const(0, int(bits)) for name, bits in unused},
        )
        # In the clock that never stops, so that it shows why the MAC's does not start.
        link = [getattr(mac, name) for name in _LINK]
        add_debug_core(m, platform, CoreKind.STATUS, f"{self._mac}_vio", self.clk_gt_freerun, link)
        return m


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
