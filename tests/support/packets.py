"""Packets as a proof sees them on a bus of frames."""

from typing import Any

from amaranth.hdl import Module, Signal, Value

from p4sgd.hw.net.packet import parse
from p4sgd.hw.spec.packet import ETHERTYPE, VERSION


def packet_on(m: Module, valid: Value, beat: Any) -> tuple[Value, Any]:
    """Whether a frame passes that is one well-formed packet, and its fields. Sources may pause, sinks may not."""
    inside = Signal()
    with m.If(valid):
        m.d.sync += inside.eq(~beat.last)
    packet: Any = parse(beat.data)
    whole = beat.last & Value.cast(beat.keep).all() & ~inside
    right = (packet.ethertype == ETHERTYPE) & (packet.version == VERSION) & (packet.reserved == 0)
    return valid & whole & right, packet
