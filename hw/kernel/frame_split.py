"""Frames of one stream to several ports."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat

__all__ = ["FrameSplit"]


class FrameSplit(wiring.Component):
    """Gives every beat to each port of its bitmap, to all at once.

    A beat a cycle. A port that does not take its beats makes those wait that are for it, and what comes behind them.

    Parameters
    ----------
    ports
        How many.
    depth
        Beats of the FIFO before each port, so that no ready depends on anything outside.

    Members
    -------
    frames : In(stream of {beat: FrameBeat, ports})
        ``ports`` is the bitmap of the ports that the frame leaves through, the same in all its beats.
    tx : Out(stream of FrameBeat).array(ports)
    """

    def __init__(self, ports: int, *, depth: int = 16) -> None:
        self._depth = depth
        super().__init__(
            {
                "frames": In(stream.Signature(data.StructLayout({"beat": FrameBeat, "ports": ports}))),
                "tx": Out(stream.Signature(FrameBeat)).array(ports),
            }
        )

    frames: Any
    tx: list[stream.Interface]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        queues = [SyncFIFOBuffered(width=FrameBeat.size, depth=self._depth) for _ in self.tx]
        moves = Signal()
        room = Cat(queue.w_rdy for queue in queues)
        m.d.comb += [
            self.frames.ready.eq((~self.frames.payload.ports | room).all()),
            moves.eq(self.frames.valid & self.frames.ready),
        ]
        for port, (tx, queue) in enumerate(zip(self.tx, queues, strict=True)):
            m.submodules[f"queue{port}"] = queue
            m.d.comb += [
                queue.w_data.eq(self.frames.payload.beat),
                queue.w_en.eq(moves & self.frames.payload.ports[port]),
                tx.payload.eq(queue.r_data),
                tx.valid.eq(queue.r_rdy),
                queue.r_en.eq(tx.ready),
            ]
        return m
