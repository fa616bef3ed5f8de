"""The 100G Ethernet MAC as a kernel."""

from typing import Any

from amaranth.hdl import Cat, Const, Instance, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus import axi4_lite
from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.kernel.cmac_adapter import LANES, CmacAdapter

__all__ = ["CmacKernel"]

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
                "control": In(axi4_lite.Signature()),
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
