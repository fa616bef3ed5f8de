"""Streams: without back-pressure, connected with a check of shapes, through register slices, and in a small FIFO."""

from typing import Any

from amaranth.hdl import Module, Mux, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.primitives import Component

__all__ = ["RegisterSlice", "RegisteredValidFIFO", "ValidSignature", "connect_stream"]


class ValidSignature(wiring.Signature):
    """A stream without back-pressure, seen from the source.

    `amaranth.lib.stream.Signature` with ``always_ready`` has a constant, which a top-level port cannot be (0.5.10).
    """

    def __init__(self, shape: ShapeLike) -> None:
        ports = {
            "payload": Out(shape),
            "valid": Out(1),
        }
        super().__init__(ports)


def connect_stream(m: Module, source: Any, sink: Any) -> None:
    """Connect a source to a sink; both are streams, or both `ValidSignature`.

    Payloads of different shapes are a TypeError, where `wiring.connect` compares widths only.
    """
    produced, consumed = source.payload.shape(), sink.payload.shape()
    if produced != consumed:
        raise TypeError(f"stream payloads differ: source has {produced!r}, sink takes {consumed!r}")
    wiring.connect(m, source, sink)


class RegisterSlice(Component):
    """Register slice: delays a stream by a cycle and drives all its signals, ready too, from registers.

    Wires between two slices may cross from one die to another. Throughput is a beat a cycle; the slice holds up to two.
    """

    def __init__(self, shape: ShapeLike) -> None:
        ports = {
            # The stream before and after the registers.
            "i": In(stream.Signature(shape)),
            "o": Out(stream.Signature(shape)),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # The source learns a cycle late that the output is blocked; `spare` holds what it may have sent by then.
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


class RegisteredValidFIFO(Component):
    """A small FIFO in LUTs whose ``o.valid`` is a register, so that items can be taken from several in the same cycle.

    An item can be read in the cycle after it was written. There are up to ``depth``, a power of two, of ``width`` bits;
    the source must not send more: there is no back-pressure.
    """

    def __init__(self, width: int, depth: int) -> None:
        if depth < 1 or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two, not {depth}")
        self._width = width
        self._depth = depth
        ports = {
            "i": In(ValidSignature(width)),  # items to write
            "o": Out(stream.Signature(width)),  # items in the same order
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory: Memory = Memory(shape=self._width, depth=self._depth, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port(domain="comb")
        # Pointers have one bit more than an address, to tell a full FIFO from an empty one.
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
