"""Connecting streams whose payloads must have the same shape."""

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring

__all__ = ["connect_stream"]


def connect_stream(m: Module, source: Any, sink: Any) -> None:
    """Connect a stream source to a stream sink; unlike `wiring.connect` it compares payload shapes.

    Raises
    ------
    TypeError
        If the payload shapes differ.
    """
    produced, consumed = source.payload.shape(), sink.payload.shape()
    if produced != consumed:
        raise TypeError(f"stream payloads differ: source has {produced!r}, sink takes {consumed!r}")
    wiring.connect(m, source, sink)
