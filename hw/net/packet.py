"""The packet as Amaranth values: the fields of `FIELDS`, and where their bits lie on the bus.

Fields are big-endian and counted in network order (first byte first, most significant bit of a byte first); the bus
is little-endian (byte i of the frame is bits 8i to 8i+7). All functions here are wiring: they cost no logic.
"""

from collections.abc import Iterable
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value, ValueLike, signed, unsigned
from amaranth.lib import data

from p4sgd.hw.spec.packet import ETHERTYPE, FIELDS, FRAME_BYTES, VALUES, VERSION, Field
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["PACKET", "VALUES_LAYOUT", "assemble", "build", "extract", "parse", "shard_mask"]

VALUES_LAYOUT = data.ArrayLayout(signed(32), VALUES)
"""The numbers of a packet, one for each sample: int32, of partials and sums with the 16 fraction bits of `ACTIVATION`
(:mod:`p4sgd.hw.spec.fixed`)."""

_SCALARS = tuple(field for field in FIELDS if not field.name.startswith("value"))
_NUMBERS = tuple(field for field in FIELDS if field.name.startswith("value"))

PACKET = data.StructLayout({field.name: unsigned(field.bits) for field in _SCALARS} | {"values": VALUES_LAYOUT})
"""A packet by field, each field an ordinary number: the header's fields of `FIELDS`, then ``values``."""


def _pieces(field: Field) -> list[tuple[int, int]]:
    """A field on the bus, least significant piece first: each piece ``(lowest bit, bits)`` lies within one byte."""
    pieces = []
    end = field.offset_bits + field.bits  # network bit after the last one of the field
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
    """The beginning of a frame on the bus: its first fields, without a gap, each with its value."""
    placed: dict[int, Value] = {}
    for field, value in values:
        number: Any = Const(value, field.bits) if isinstance(value, int) else Value.cast(value)
        position = 0
        for low, bits in _pieces(field):
            placed[low] = number[position : position + bits]
            position += bits
    return Cat(placed[low] for low in sorted(placed))


def parse(frame: Value) -> data.View:
    """The fields of a frame.

    Parameters
    ----------
    frame
        512 bits, as `FrameBeat.data`.

    Returns
    -------
    View of `PACKET`
        Nothing is checked.
    """
    if len(frame) != 8 * FRAME_BYTES:
        raise ValueError(f"a frame has {8 * FRAME_BYTES} bits, not {len(frame)}")
    return data.View(PACKET, Cat(extract(frame, field) for field in (*_SCALARS, *_NUMBERS)))


def build(m: Module, **fields: object) -> Value:
    """The frame with these fields.

    Parameters
    ----------
    m
        Module that gets the fields' assignments.
    **fields
        Values by field name of `PACKET`; ``ethertype``, ``version`` and ``reserved`` are filled in, fields not named
        are 0.

    Returns
    -------
    Value
        512 bits for `FrameBeat.data`, combinational.

    Raises
    ------
    KeyError
        If a name is no field.
    """
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
