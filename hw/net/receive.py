"""The first look at a frame: is it a packet of this format?"""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.net.packet import PACKET, parse
from p4sgd.hw.spec.packet import ETHERTYPE, FRAME_BYTES, VERSION

__all__ = ["FrameCheck"]


class FrameCheck(wiring.Component):
    """Turns frames into packets; always ready. Latency 1 cycle, a frame a cycle.

    A frame is well-formed if it is one beat of 64 valid bytes with this format's EtherType and version and with zeros
    where the format is silent. Of a longer frame every beat is dropped, and counted once.

    Members
    -------
    frames : In(stream of FrameBeat)
    packet : Out(PACKET)
    received : Out(1)
        Pulse: a frame has begun.
    good : Out(1)
        With ``received``: ``packet`` is well-formed. Both stay until the next frame.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "frames": In(stream.Signature(FrameBeat)),
                "packet": Out(PACKET),
                "received": Out(1),
                "good": Out(1),
            }
        )

    frames: stream.Interface
    packet: data.View
    received: Signal
    good: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.frames.payload
        packet = parse(beat.data)
        inside = Signal()  # a frame has begun and not ended
        whole = Signal()
        known = Signal()
        m.d.comb += [self.frames.ready.eq(1), self.good.eq(whole & known)]
        m.d.sync += self.received.eq(self.frames.valid & ~inside)
        with m.If(self.frames.valid):
            m.d.sync += [
                inside.eq(~beat.last),
                self.packet.eq(packet),
                whole.eq(beat.last & (beat.keep == (1 << FRAME_BYTES) - 1)),
                known.eq(
                    (packet.ethertype == ETHERTYPE) & (packet.version == VERSION) & (packet.reserved == 0),
                ),
            ]
        return m
