"""A small FIFO that says from a register whether it has an item."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import FlowSignature

__all__ = ["PromptFIFO"]


class PromptFIFO(wiring.Component):
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
        super().__init__({"i": In(FlowSignature(width)), "o": Out(stream.Signature(width))})

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
