"""The first look at a frame: is it a packet of this format?"""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.net.packet import PACKET, parse
from p4sgd.hw.spec.drop import Drop
from p4sgd.hw.spec.packet import ETHERTYPE, FRAME_BYTES, VERSION, PacketType

__all__ = ["FrameCheck"]


class FrameCheck(wiring.Component):
    """Turns frames into packets; always ready. Latency 1 cycle, a frame a cycle.

    A frame is well-formed if it is one beat of 64 valid bytes with this format's EtherType and version and with zeros
    where the format is silent; probes and their echoes may have any version. Of a longer frame every beat is dropped,
    and counted once.

    Members
    -------
    frames : In(stream of FrameBeat)
    packet : Out(PACKET)
    received : Out(1)
        Pulse: a frame has begun.
    good : Out(1)
        With ``received``: ``packet`` is well-formed. Both stay until the next frame.
    drop : Out(Drop)
        If it is not: why.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "frames": In(stream.Signature(FrameBeat)),
                "packet": Out(PACKET),
                "received": Out(1),
                "good": Out(1),
                "drop": Out(Drop),
            }
        )

    frames: stream.Interface
    packet: data.View
    received: Signal
    good: Signal
    drop: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.frames.payload
        packet = parse(beat.data)
        inside = Signal()  # a frame has begun and not ended
        ends = Signal()
        full = Signal()
        right_type = Signal()
        right_version = Signal()
        right_rest = Signal()
        any_version = (packet.type == PacketType.PROBE) | (packet.type == PacketType.ECHO)
        m.d.comb += [
            self.frames.ready.eq(1),
            self.good.eq(ends & full & right_type & right_version & right_rest),
        ]
        m.d.sync += self.received.eq(self.frames.valid & ~inside)
        with m.If(self.frames.valid):
            m.d.sync += [
                inside.eq(~beat.last),
                self.packet.eq(packet),
                ends.eq(beat.last),
                full.eq(beat.keep == (1 << FRAME_BYTES) - 1),
                right_type.eq(packet.ethertype == ETHERTYPE),
                right_version.eq((packet.version == VERSION) | any_version),
                right_rest.eq(packet.reserved == 0),
            ]
        with m.If(~ends):
            m.d.comb += self.drop.eq(Drop.LONG)
        with m.Elif(~full):
            m.d.comb += self.drop.eq(Drop.RUNT)
        with m.Elif(~right_type):
            m.d.comb += self.drop.eq(Drop.ETHERTYPE)
        with m.Elif(~right_version):
            m.d.comb += self.drop.eq(Drop.VERSION)
        with m.Else():
            m.d.comb += self.drop.eq(Drop.RESERVED)
        return m
