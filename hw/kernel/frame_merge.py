"""Frames of several ports on one stream."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat

__all__ = ["FrameMerge"]


class FrameMerge(wiring.Component):
    """Takes a frame from each port in turn, from one that has one, and says which it came through.

    A beat a cycle. What is taken stands in FIFOs first, so no ready depends on anything outside.

    Parameters
    ----------
    ports
        How many.
    port_bits
        Width of a port's number.
    depth
        Beats of a FIFO.

    Members
    -------
    rx : In(stream of FrameBeat).array(ports)
    frames : Out(stream of {beat: FrameBeat, port})
        The beats of a frame follow each other, without those of another in between.
    """

    def __init__(self, ports: int, port_bits: int, *, depth: int = 16) -> None:
        self._ports = ports
        self._depth = depth
        self._payload = data.StructLayout({"beat": FrameBeat, "port": port_bits})
        super().__init__(
            {
                "rx": In(stream.Signature(FrameBeat)).array(ports),
                "frames": Out(stream.Signature(self._payload)),
            }
        )

    rx: list[stream.Interface]
    frames: Any

    def elaborate(self, platform: object) -> Module:
        m = Module()
        queues = [SyncFIFOBuffered(width=FrameBeat.size, depth=self._depth) for _ in self.rx]
        for port, (rx, queue) in enumerate(zip(self.rx, queues, strict=True)):
            m.submodules[f"queue{port}"] = queue
            m.d.comb += [queue.w_data.eq(rx.payload), queue.w_en.eq(rx.valid), rx.ready.eq(queue.w_rdy)]

        # Whose turn it is: in a frame that of its port; else of the first that has one, from the one after the last on.
        last = Signal(range(self._ports))
        inside = Signal()
        turn = Signal(range(self._ports))
        m.d.comb += turn.eq(last)
        with m.If(~inside):
            with m.Switch(last):
                for port in range(self._ports):
                    with m.Case(port):
                        for distance in range(self._ports, 0, -1):  # a later one prevails
                            candidate = (port + distance) % self._ports
                            with m.If(queues[candidate].r_rdy):
                                m.d.comb += turn.eq(candidate)

        valid = Array(queue.r_rdy for queue in queues)[turn]
        beat = data.View(FrameBeat, Array(queue.r_data for queue in queues)[turn])
        free = Signal()
        m.d.comb += free.eq(~self.frames.valid | self.frames.ready)
        m.d.comb += Cat(queue.r_en for queue in queues).eq(free << turn)
        with m.If(free):
            m.d.sync += [
                self.frames.valid.eq(valid),
                self.frames.payload.beat.eq(beat),
                self.frames.payload.port.eq(turn),
            ]
            with m.If(valid):
                m.d.sync += [last.eq(turn), inside.eq(~beat.last)]
        return m
