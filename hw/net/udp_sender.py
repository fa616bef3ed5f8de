"""From the core's frames to UDP datagrams."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value, ValueLike
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FRAME_BEAT_BYTES, tag_of, tagged_beat
from p4sgd.hw.net.packet import assemble, extract
from p4sgd.hw.spec import packet
from p4sgd.hw.spec.packet import BROADCAST
from p4sgd.hw.spec.udp import (
    ETHERNET_BYTES,
    FIRST_GROUP,
    FRAME_BYTES,
    HEADER,
    MULTICAST_MAC,
    MULTICAST_MAC_BITS,
    SENT,
    ip_sum,
)

__all__ = ["UdpSender"]

_BODY_BITS = 8 * (packet.FRAME_BYTES - ETHERNET_BYTES)
_BEAT_BITS = 8 * FRAME_BEAT_BYTES


class UdpSender(wiring.Component):
    """Puts frames of one beat into UDP datagrams of two, as `p4sgd.hw.spec.udp.encapsulate` does::

        frames ─▶ sum of the header's words ─▶ folded to 16 bits ─▶ checksum; one beat, then the other ─▶ tx
         0                    1                       2                                                   3

    A frame takes two cycles of ``tx``.

    Parameters
    ----------
    tag_bits
        Width of what travels with a frame.

    Members
    -------
    frames : In(stream of tagged_beat(tag_bits))
        Each a whole frame of the core. Only its destination and its packet are looked at.
    tx : Out(stream of tagged_beat(tag_bits))
        The first beat of a frame `LATENCY` cycles later, and the second.
    ipv4 : In(32), ethernet_mac : In(48)
        The sender's own addresses.
    next_hop_mac : In(48)
        MAC address that frames for single hosts go to. All three are stable while there are frames.
    """

    LATENCY = 3

    def __init__(self, tag_bits: int = 0) -> None:
        self._tag_bits = tag_bits
        super().__init__(
            {
                "frames": In(stream.Signature(tagged_beat(tag_bits))),
                "tx": Out(stream.Signature(tagged_beat(tag_bits))),
                "ipv4": In(32),
                "ethernet_mac": In(48),
                "next_hop_mac": In(48),
            }
        )

    frames: stream.Interface
    tx: stream.Interface
    ipv4: Signal
    ethernet_mac: Signal
    next_hop_mac: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        item = data.StructLayout({"to": 32, "body_and_tag": _BODY_BITS + self._tag_bits})
        coming: Any = Signal(item)
        summed: Any = Signal(item, reset_less=True)
        folded: Any = Signal(item, reset_less=True)
        has_summed = Signal()
        has_folded = Signal()
        second = Signal()  # the first beat of the folded frame has gone to tx
        free = ~self.tx.valid | self.tx.ready
        moves = Signal()
        frame = self.frames.payload.beat.data
        m.d.comb += [
            coming.to.eq(extract(frame, packet.FIELDS[0])[:32]),
            coming.body_and_tag.eq(Cat(frame[8 * ETHERNET_BYTES :], tag_of(self.frames.payload))),
            moves.eq(free & (second | ~has_folded)),
            self.frames.ready.eq(moves),
        ]

        # One adder a cycle: what all frames have in common; the destination; the carries; the carry of these.
        common = Signal(18, reset_less=True)
        total = Signal(19, reset_less=True)
        fold = Signal(17, reset_less=True)
        checksum = ~(fold[:16] + fold[16])
        link = Signal(48, reset_less=True)
        m.d.sync += common.eq(ip_sum(SENT) + self.ipv4[16:] + self.ipv4[:16])
        with m.If(moves):
            m.d.sync += [
                has_summed.eq(self.frames.valid),
                summed.eq(coming),
                total.eq(common + coming.to[16:] + coming.to[:16]),
                has_folded.eq(has_summed),
                folded.eq(summed),
                fold.eq(total[:16] + total[16:]),
                link.eq(self.next_hop_mac),
            ]
            with m.If(summed.to[28:] == FIRST_GROUP >> 28):
                m.d.sync += link.eq(Cat(summed.to[:MULTICAST_MAC_BITS], Const(MULTICAST_MAC, 48)[MULTICAST_MAC_BITS:]))
            with m.If(summed.to.all()):
                m.d.sync += link.eq(BROADCAST)

        known: dict[str, Value | int] = {
            "destination": link,
            "source": self.ethernet_mac,
            "ip_checksum": checksum[:16],
            "ip_source": self.ipv4,
            "ip_destination": folded.to,
            **SENT,
        }
        header: list[tuple[packet.Field, ValueLike]] = [(field, known[field.name]) for field in HEADER]
        datagram = Cat(assemble(header), folded.body_and_tag[:_BODY_BITS])
        out = self.tx.payload
        with m.If(free):
            m.d.sync += [
                self.tx.valid.eq(has_folded),
                second.eq(has_folded & ~second),
                tag_of(out).eq(folded.body_and_tag[_BODY_BITS:]),
            ]
            with m.If(second):
                m.d.sync += [
                    out.beat.data.eq(datagram[_BEAT_BITS:]),
                    out.beat.keep.eq((1 << FRAME_BYTES - FRAME_BEAT_BYTES) - 1),
                    out.beat.last.eq(1),
                ]
            with m.Else():
                m.d.sync += [
                    out.beat.data.eq(datagram[:_BEAT_BITS]),
                    out.beat.keep.eq((1 << FRAME_BEAT_BYTES) - 1),
                    out.beat.last.eq(0),
                ]
        return m
