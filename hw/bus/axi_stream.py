"""Ethernet frames on a 512-bit AXI4-Stream."""

from amaranth.hdl import Value, ValueLike, unsigned
from amaranth.lib import data

__all__ = ["FRAME_BEAT_BYTES", "FrameBeat", "tag_of", "tagged_beat"]

FRAME_BEAT_BYTES = 64
"""Bytes of a beat: the data width of the 100G Ethernet MACs' AXI4-Stream."""

FrameBeat = data.StructLayout(
    {
        "data": unsigned(8 * FRAME_BEAT_BYTES),
        "keep": unsigned(FRAME_BEAT_BYTES),
        "last": unsigned(1),
    }
)
"""One beat of a frame: AXI4-Stream's TDATA, TKEEP and TLAST.

Byte i of the beat is ``data[8i:8i+8]`` and is there if ``keep[i]``; ``last`` marks the last beat of a frame. The first
byte on the wire is byte 0. The frame check sequence is not part of it.
"""


def tagged_beat(tag_bits: int) -> data.StructLayout:
    """A beat with a tag, that is the same in all beats of a frame; none if it has 0 bits."""
    return data.StructLayout({"beat": FrameBeat} | ({"tag": tag_bits} if tag_bits else {}))


def tag_of(payload: ValueLike) -> Value:
    """The tag of a `tagged_beat`, of 0 bits if it has none."""
    return Value.cast(payload)[FrameBeat.size :]
