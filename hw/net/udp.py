"""Conversion between the core's 64-byte frames and UDP datagrams, in both directions."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FRAME_BEAT_BYTES, tag_of, tagged_beat
from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.net.packet import assemble, extract
from p4sgd.hw.spec import packet
from p4sgd.hw.spec.packet import BROADCAST, ETHERTYPE
from p4sgd.hw.spec.udp import (
    ETHERNET_BYTES,
    FIRST_GROUP,
    FRAME_BYTES,
    GROUP_PREFIX,
    HEADER,
    HEADER_BYTES,
    HOST_PREFIX,
    MULTICAST_MAC,
    MULTICAST_MAC_BITS,
    REQUIRED,
    SENT,
    ip_sum,
)

__all__ = ["UdpReceiver", "UdpSender"]


_BODY_BITS = 8 * (FRAME_BEAT_BYTES - HEADER_BYTES)
"""Bits of the packet in the first beat."""

_REST_BYTES = FRAME_BYTES - FRAME_BEAT_BYTES
"""Bytes of the second beat."""


class UdpReceiver(wiring.Component):
    """A receiver of UDP datagrams, as `p4sgd.hw.spec.udp.decapsulate`. One beat a cycle, always ready.

    A frame without a packet in it, of any length, becomes one frame with EtherType 0. The endpoint or the aggregator
    drops it as one of another protocol and counts it once.

    Parameters
    ----------
    tag_bits
        Width of the tag that travels with a frame.

    Members
    -------
    rx
        Beats from the network. Those of different frames are not interleaved.
    frames
        One frame of the core for each frame, `LATENCY` cycles after its last beat, with the tag of its first beat.
    """

    LATENCY = 2

    def __init__(self, tag_bits: int = 0) -> None:
        self._tag_bits = tag_bits
        super().__init__(
            {
                "rx": In(stream.Signature(tagged_beat(tag_bits))),
                "frames": Out(ValidSignature(tagged_beat(tag_bits))),
            }
        )

    rx: stream.Interface
    frames: Any

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.rx.payload.beat
        # The header, all of it in the first beat.
        got = {field.name: extract(beat.data, field) for field in HEADER}
        right = [got[name] == value for name, value in REQUIRED.items()]
        right += [got["ip_source"][29:] != FIRST_GROUP >> 29, beat.keep.all()]
        # The words of the IPv4 header that the checksum covers. Fields that must have a certain value anyway are one
        # constant; TOS and TTL, the halves of two words that are left, share a word.
        words = [
            Cat(got["ip_tos"], got["ip_ttl"]),
            got["ip_id"],
            Cat(Const(0, 14), got["ip_dont_fragment"]),
            got["ip_checksum"],
            *(got[name][low : low + 16] for name in ("ip_source", "ip_destination") for low in (0, 16)),
            Const(ip_sum(REQUIRED)),
        ]

        is_first = Signal(init=1)  # the next beat is the first of a frame
        is_second = Signal()
        ended = Signal()
        right_head = Signal(len(right), reset_less=True)
        right_rest = Signal(reset_less=True)
        sums = [Signal(18, name=f"sum{index}", reset_less=True) for index in range(3)]
        total = Signal(20, reset_less=True)
        source = Signal(32, reset_less=True)
        destination = Signal(32, reset_less=True)
        body_and_tag = Signal(_BODY_BITS + self._tag_bits, reset_less=True)
        rest = Signal(8 * _REST_BYTES, reset_less=True)
        m.d.comb += self.rx.ready.eq(1)
        m.d.sync += [ended.eq(self.rx.valid & beat.last), total.eq(sums[0] + sums[1] + sums[2])]
        with m.If(self.rx.valid):
            m.d.sync += [
                is_first.eq(beat.last),
                is_second.eq(is_first & ~beat.last),
                rest.eq(beat.data[: len(rest)]),
                right_rest.eq(is_second & (beat.keep == (1 << _REST_BYTES) - 1)),
            ]
            with m.If(is_first):
                m.d.sync += [
                    right_head.eq(Cat(right)),
                    *(part.eq(words[i] + words[i + 3] + words[i + 6]) for i, part in enumerate(sums)),
                    source.eq(got["ip_source"]),
                    destination.eq(got["ip_destination"]),
                    body_and_tag.eq(Cat(beat.data[8 * HEADER_BYTES :], tag_of(self.rx.payload))),
                ]

        # A right header's sum is k · (2^16 - 1) (RFC 1071), k > 0: its upper part is k - 1 and its lower is 2^16 - k,
        # each the inverse of the other. So no carries have to be folded in.
        good = right_head.all() & right_rest & (total[16:] == ~total[:16])
        is_group = destination[28:] == FIRST_GROUP >> 28
        prefix = Mux(destination.all(), BROADCAST >> 32, Mux(is_group, GROUP_PREFIX, HOST_PREFIX))
        addresses = zip(
            packet.FIELDS,
            (Cat(destination, prefix), Cat(source, Const(HOST_PREFIX, 16)), Mux(good, ETHERTYPE, 0)),
            strict=False,
        )
        out = self.frames.payload
        m.d.sync += self.frames.valid.eq(ended)
        with m.If(ended):
            m.d.sync += [
                out.beat.data.eq(Cat(assemble(addresses), body_and_tag[:_BODY_BITS], rest)),
                out.beat.keep.eq((1 << packet.FRAME_BYTES) - 1),
                out.beat.last.eq(1),
                tag_of(out).eq(body_and_tag[_BODY_BITS:]),
            ]
        return m


_PAYLOAD_BITS = 8 * (packet.FRAME_BYTES - ETHERNET_BYTES)
_BEAT_BITS = 8 * FRAME_BEAT_BYTES


class UdpSender(wiring.Component):
    """A sender of UDP datagrams of two beats, as `p4sgd.hw.spec.udp.encapsulate`::

        frames ─▶ sum of the header's words ─▶ folded to 16 bits ─▶ checksum; one beat, then the other ─▶ tx
         0                    1                       2                                                   3

    A frame takes two cycles of ``tx``.

    Parameters
    ----------
    tag_bits
        Width of the tag that travels with a frame.

    Members
    -------
    frames
        Frames of the core, one beat each. Only the destination and the packet are used.
    tx
        Beats to the network: the first `LATENCY` cycles after the frame, then the second.
    ipv4, ethernet_mac
        The sender's own addresses.
    next_hop_mac
        MAC address that frames to single hosts go to. All three addresses are stable while there are frames.
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
        item = data.StructLayout({"to": 32, "body_and_tag": _PAYLOAD_BITS + self._tag_bits})
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

        # The checksum, one sum a cycle: of the words that all frames share; with the destination's; the carries folded
        # in; and, at the output, the carry of that.
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
        datagram = Cat(assemble(header), folded.body_and_tag[:_PAYLOAD_BITS])
        out = self.tx.payload
        with m.If(free):
            m.d.sync += [
                self.tx.valid.eq(has_folded),
                second.eq(has_folded & ~second),
                tag_of(out).eq(folded.body_and_tag[_PAYLOAD_BITS:]),
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
