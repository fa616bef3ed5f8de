"""The packet as Amaranth values, and the check that a frame is one.

Fields of `FIELDS` are big-endian; the bus is little-endian: byte i of the frame is bits 8i to 8i+7.
"""

from collections.abc import Iterable
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value, ValueLike, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.primitives import hold
from p4sgd.hw.spec.packet import ETHERTYPE, FIELDS, FRAME_BYTES, VALUES, VERSION, DropReason, Field, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["PACKET", "VALUES_LAYOUT", "FrameCheck", "assemble", "build", "extract", "parse", "shard_mask"]


VALUES_LAYOUT = data.ArrayLayout(signed(32), VALUES)
"""The values of a packet, one for each sample: int32. Partials and sums have the 16 fraction bits of `ACTIVATION`
(:mod:`p4sgd.hw.spec.fixed`)."""

_SCALARS = tuple(field for field in FIELDS if not field.name.startswith("value"))
_NUMBERS = tuple(field for field in FIELDS if field.name.startswith("value"))

PACKET = data.StructLayout({field.name: unsigned(field.bits) for field in _SCALARS} | {"values": VALUES_LAYOUT})
"""A packet by field, each an ordinary number: the header's fields of `FIELDS`, then ``values``."""


def _pieces(field: Field) -> list[tuple[int, int]]:
    """Where a field lies on the bus: pieces ``(lowest bit, bits)`` within one byte each, least significant first."""
    pieces = []
    end = field.offset_bits + field.bits  # the bit after the field's last one, in network order
    while end > field.offset_bits:
        byte = (end - 1) // 8
        begin = max(field.offset_bits, 8 * byte)
        pieces.append((8 * byte + 8 * (byte + 1) - end, end - begin))
        end = begin
    return pieces


def extract(frame: Value, field: Field) -> Value:
    """A field of a frame on the bus, as an ordinary number."""
    return Cat(frame[low : low + bits] for low, bits in _pieces(field))


def assemble(values: Iterable[tuple[Field, ValueLike]]) -> Value:
    """The start of a frame on the bus, from the values of its first fields, none left out."""
    placed: dict[int, Value] = {}
    for field, value in values:
        number: Any = Const(value, field.bits) if isinstance(value, int) else Value.cast(value)
        position = 0
        for low, bits in _pieces(field):
            placed[low] = number[position : position + bits]
            position += bits
    return Cat(placed[low] for low in sorted(placed))


def parse(frame: Value) -> data.View:
    """The fields of a frame of 512 bits, as `FrameBeat.data`: a view of `PACKET`. Nothing is checked."""
    if len(frame) != 8 * FRAME_BYTES:
        raise ValueError(f"a frame has {8 * FRAME_BYTES} bits, not {len(frame)}")
    return data.View(PACKET, Cat(extract(frame, field) for field in (*_SCALARS, *_NUMBERS)))


def build(m: Module, **fields: object) -> Value:
    """The frame, as `FrameBeat.data`, with these fields of `PACKET`; others are as the format says, or 0."""
    packet: Any = Signal(PACKET)
    for name, value in ({"ethertype": ETHERTYPE, "version": VERSION} | fields).items():
        if name not in PACKET.members:
            raise KeyError(f"a packet has no field {name}")
        m.d.comb += packet[name].eq(value)
    scalars = [(field, packet[field.name]) for field in _SCALARS]
    return assemble([*scalars, *zip(_NUMBERS, packet["values"], strict=True)])


def shard_mask(workers: Value) -> Value:
    """The bitmap of all shards of a job: bit i is ``i < workers``, `MAX_WORKERS` bits."""
    return Cat(Const(index) < workers for index in range(MAX_WORKERS))


class FrameCheck(wiring.Component):
    """The check that a frame is a packet: one beat of 64 valid bytes, EtherType, version and reserved bits.

    PROBE and ECHO may have any version. A longer frame is dropped, and counted once. Latency 1 cycle, a frame a cycle.
    """

    frames: In(stream.Signature(FrameBeat))  # beats from the network
    packet: Out(PACKET)  # the fields of the frame, checked or not
    received: Out(1)  # pulse: a frame has begun
    good: Out(1)  # With `received`: `packet` is well-formed. Both keep their value until the next frame.
    drop: Out(DropReason)  # the reason why it is not

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.frames.payload
        packet = parse(beat.data)
        inside = Signal()  # the next beat continues a frame
        found = hold(m, self.packet)
        names = ("ends", "full", "right_type", "right_version", "right_rest")
        ends, full, right_type, right_version, right_rest = (Signal(name=name, reset_less=True) for name in names)
        any_version = (packet.type == PacketType.PROBE) | (packet.type == PacketType.ECHO)
        m.d.comb += [
            self.frames.ready.eq(1),
            self.good.eq(ends & full & right_type & right_version & right_rest),
        ]
        m.d.sync += self.received.eq(self.frames.valid & ~inside)
        with m.If(self.frames.valid):
            m.d.sync += [
                inside.eq(~beat.last),
                found.eq(packet),
                ends.eq(beat.last),
                full.eq(beat.keep == (1 << FRAME_BYTES) - 1),
                right_type.eq(packet.ethertype == ETHERTYPE),
                right_version.eq((packet.version == VERSION) | any_version),
                right_rest.eq(packet.reserved == 0),
            ]
        with m.If(~ends):
            m.d.comb += self.drop.eq(DropReason.LONG)
        with m.Elif(~full):
            m.d.comb += self.drop.eq(DropReason.RUNT)
        with m.Elif(~right_type):
            m.d.comb += self.drop.eq(DropReason.ETHERTYPE)
        with m.Elif(~right_version):
            m.d.comb += self.drop.eq(DropReason.VERSION)
        with m.Else():
            m.d.comb += self.drop.eq(DropReason.RESERVED)
        return m
