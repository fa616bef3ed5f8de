"""Streams without back-pressure, registers and small FIFOs for streams.

Streams without back-pressure, and connecting streams whose payloads must have the same shape.

A stream through registers, both ways.

A small FIFO that says from a register whether it has an item.
"""

from typing import Any

from amaranth.hdl import Module, Mux, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["RegisterSlice", "RegisteredValidFIFO", "ValidSignature", "connect_stream"]


class ValidSignature(wiring.Signature):
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


class RegisterSlice(wiring.Component):
    """Hands a stream on a cycle later, all of whose signals it drives from registers; a beat in every cycle.

    As no output depends on an input in the same cycle, both ways are cut: that of payload and valid, and that of ready.
    What arrives is a multiplexer, or the logic of an enable, away from its register. So a wire between two slices may
    cross a boundary between dies.

    Parameters
    ----------
    shape
        Of the payload.

    Members
    -------
    i : In(stream of shape), o : Out(stream of shape)
        Up to two beats are within.
    """

    def __init__(self, shape: ShapeLike) -> None:
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    i: stream.Interface
    o: stream.Interface

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Ready tells of the cycle before: what comes while the output waits goes to `spare`, and then ready falls.
        ready = Signal(init=1)
        payload: Any = Signal(self.o.payload.shape(), reset_less=True)
        spare: Any = Signal.like(payload, reset_less=True)
        m.d.comb += [self.i.ready.eq(ready), self.o.payload.eq(payload)]
        with m.If(ready):
            m.d.sync += spare.eq(self.i.payload)
        with m.If(self.o.ready | ~self.o.valid):
            m.d.sync += [
                payload.eq(Mux(ready, self.i.payload, spare)),
                self.o.valid.eq(self.i.valid | ~ready),
                ready.eq(1),
            ]
        with m.Elif(self.i.valid):
            m.d.sync += ready.eq(0)
        return m


class RegisteredValidFIFO(wiring.Component):
    """A FIFO in LUTs: an item is there in the cycle after it came, and ``o.valid`` is a register.

    So several can be asked together, and told in the same cycle that what they have is taken.

    Parameters
    ----------
    width
        Bits of an item.
    depth
        Most items in it, a power of two. Whoever sends one knows that there is room.

    Members
    -------
    i : In(flow of unsigned(width))
    o : Out(stream of unsigned(width))
    """

    def __init__(self, width: int, depth: int) -> None:
        if depth < 1 or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two, not {depth}")
        self._width = width
        self._depth = depth
        super().__init__({"i": In(ValidSignature(width)), "o": Out(stream.Signature(width))})

    i: stream.Interface
    o: stream.Interface

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory: Memory = Memory(shape=self._width, depth=self._depth, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port(domain="comb")
        # One bit more than an address has: a full FIFO is not an empty one.
        write_at = Signal(range(2 * self._depth))
        read_at = Signal(range(2 * self._depth))
        read_after = Signal(range(2 * self._depth), init=1)  # read_at + 1
        m.d.comb += [
            write.addr.eq(write_at[: len(write.addr)]),
            write.data.eq(self.i.payload),
            write.en.eq(self.i.valid),
            read.addr.eq(read_at[: len(read.addr)]),
            self.o.payload.eq(read.data),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [read_at.eq(read_after), read_after.eq(read_after + 1), self.o.valid.eq(write_at != read_after)]
        with m.If(self.i.valid):
            m.d.sync += [write_at.eq(write_at + 1), self.o.valid.eq(1)]
        return m
