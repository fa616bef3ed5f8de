"""The aggregator as a kernel."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.bus import axi4_lite
from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.kernel.frame_merge import FrameMerge
from p4sgd.hw.kernel.frame_split import FrameSplit
from p4sgd.hw.kernel.reset import connect_control, kernel_clock
from p4sgd.hw.spec.aggregator import AggregatorConfig

__all__ = ["AggregatorKernel"]


class AggregatorKernel(wiring.Component):
    """An `Aggregator` with a pair of streams for each of its ports::

        axis_rx<i> ─▶ FrameMerge ─▶ Aggregator ─▶ FrameSplit ─▶ axis_tx<i>

    The MACs' side must take what is for it, or drop it, where there is no link: answers for one port wait behind those
    for another, and the aggregator loses those that find its queue full, as it says.

    Parameters
    ----------
    config, build_id
        As of an `Aggregator`.

    Members
    -------
    ap_clk : In(1), ap_rst_n : In(1)
        Clock, and reset, active low and synchronous.
    control : In(AXI4-Lite)
        The registers of :mod:`p4sgd.hw.spec.aggregator`.
    axis_rx : In(stream of FrameBeat).array(ports), axis_tx : Out(stream of FrameBeat).array(ports)
        Ethernet frames from and to the MAC of each port.
    """

    def __init__(self, config: AggregatorConfig, *, build_id: int = 0) -> None:
        self._config = config
        self._build_id = build_id
        super().__init__(
            {
                "ap_clk": In(1),
                "ap_rst_n": In(1),
                "control": In(axi4_lite.Signature()),
                "axis_rx": In(stream.Signature(FrameBeat)).array(config.ports),
                "axis_tx": Out(stream.Signature(FrameBeat)).array(config.ports),
            }
        )

    ap_clk: Signal
    ap_rst_n: Signal
    control: Any
    axis_rx: list[stream.Interface]
    axis_tx: list[stream.Interface]

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        kernel_clock(m, self.ap_clk, self.ap_rst_n)
        m.submodules.merge = merge = FrameMerge(config.ports, config.port_bits)
        m.submodules.aggregator = aggregator = Aggregator(config, build_id=self._build_id)
        m.submodules.split = split = FrameSplit(config.ports)
        connect_control(m, self.control, aggregator.control)
        for port in range(config.ports):
            connect_stream(m, wiring.flipped(self.axis_rx[port]), merge.rx[port])
            connect_stream(m, split.tx[port], wiring.flipped(self.axis_tx[port]))
        connect_stream(m, merge.frames, aggregator.rx)
        connect_stream(m, aggregator.tx, split.frames)
        return m
