"""From UDP datagrams to the core's frames."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FRAME_BEAT_BYTES, tag_of, tagged_beat
from p4sgd.hw.bus.stream import FlowSignature
from p4sgd.hw.net.packet import assemble, extract
from p4sgd.hw.spec import packet
from p4sgd.hw.spec.packet import BROADCAST, ETHERTYPE
from p4sgd.hw.spec.udp import (
    FIRST_GROUP,
    FRAME_BYTES,
    GROUP_PREFIX,
    HEADER,
    HEADER_BYTES,
    HOST_PREFIX,
    REQUIRED,
    ip_sum,
)

__all__ = ["UdpReceiver"]

_BODY_BITS = 8 * (FRAME_BEAT_BYTES - HEADER_BYTES)
"""What of the packet is in the first beat."""

_REST_BYTES = FRAME_BYTES - FRAME_BEAT_BYTES
"""Bytes of the second beat."""


class UdpReceiver(wiring.Component):
    """Takes packets out of UDP datagrams, as `p4sgd.hw.spec.udp.decapsulate` does, a beat a cycle; always ready.

    A frame that has none in it, of whatever length, becomes one frame with the EtherType 0: whoever gets it drops it as
    one of another protocol, and counts it once.

    Parameters
    ----------
    tag_bits
        Width of what travels with a frame.

    Members
    -------
    rx : In(stream of tagged_beat(tag_bits))
        The beats of a frame follow each other, without those of another in between.
    frames : Out(flow of tagged_beat(tag_bits))
        A whole frame of the core `LATENCY` cycles after the last beat of each, with the tag of its first.
    """

    LATENCY = 2

    def __init__(self, tag_bits: int = 0) -> None:
        self._tag_bits = tag_bits
        super().__init__(
            {
                "rx": In(stream.Signature(tagged_beat(tag_bits))),
                "frames": Out(FlowSignature(tagged_beat(tag_bits))),
            }
        )

    rx: stream.Interface
    frames: Any

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.rx.payload.beat
        # Of the first beat.
        got = {field.name: extract(beat.data, field) for field in HEADER}
        right = [got[name] == value for name, value in REQUIRED.items()]
        right += [got["ip_source"][29:] != FIRST_GROUP >> 29, beat.keep.all()]
        # The words of the IPv4 header: a constant for all that is checked, and what is left of them, two halves in one.
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

        # The sum is k · (2^16 - 1), as it must be, if its upper part is k - 1 and its lower is 2^16 - k.
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
