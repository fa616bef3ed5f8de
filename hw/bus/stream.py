"""Streams without back-pressure, and connecting streams whose payloads must have the same shape."""

from typing import Any

from amaranth.hdl import Module, ShapeLike
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

__all__ = ["FlowSignature", "connect_stream"]


class FlowSignature(wiring.Signature):
    """A stream whose sink is always ready, seen from the source; so it can be registered at will.

    `amaranth.lib.stream.Signature` can say so too, but has a constant then that no top-level port may be
    (amaranth 0.5.10).

    Members
    -------
    payload : Out(shape)
    valid : Out(1)
    """

    def __init__(self, shape: ShapeLike) -> None:
        super().__init__({"payload": Out(shape), "valid": Out(1)})


def connect_stream(m: Module, source: Any, sink: Any) -> None:
    """Connect a stream source to a stream sink, or a flow to a flow, and unlike `wiring.connect` compare shapes.

    Raises
    ------
    TypeError
        If the payload shapes differ.
    """
    produced, consumed = source.payload.shape(), sink.payload.shape()
    if produced != consumed:
        raise TypeError(f"stream payloads differ: source has {produced!r}, sink takes {consumed!r}")
    wiring.connect(m, source, sink)
