"""A buffer that hands on whole frames."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat

__all__ = ["FrameBuffer"]


class FrameBuffer(wiring.Component):
    """Keeps a frame until its last beat has come, and then hands it on without gaps, or drops it.

    A beat a cycle. The first beat of a frame is on ``o`` two cycles after its last has come, if those before it have
    left.

    Parameters
    ----------
    depth
        Beats that there is room for, a power of two. A longer frame is dropped.
    waits
        Whether the source waits until there is room. Else a frame that finds none is dropped.

    Members
    -------
    i : In(stream of FrameBeat)
        Always ready if the source cannot wait.
    bad : In(1)
        With the last beat: the frame is dropped.
    cut : In(1)
        The frame that is coming ends here, without a last beat, and is dropped. Not with a beat.
    o : Out(stream of FrameBeat)
    kept, dropped_bad, dropped_full : Out(1)
        Pulses: what has become of a frame. One that was cut is a bad one.
    """

    def __init__(self, depth: int, *, waits: bool) -> None:
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two, at least 2, not {depth}")
        self._depth = depth
        self._waits = waits
        super().__init__(
            {
                "i": In(stream.Signature(FrameBeat)),
                "bad": In(1),
                "cut": In(1),
                "o": Out(stream.Signature(FrameBeat)),
                "kept": Out(1),
                "dropped_bad": Out(1),
                "dropped_full": Out(1),
            }
        )

    i: Any
    bad: Signal
    cut: Signal
    o: Any
    kept: Signal
    dropped_bad: Signal
    dropped_full: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory: Memory = Memory(shape=FrameBeat, depth=self._depth, init=[])
        m.submodules.memory = memory
        write, read = memory.write_port(), memory.read_port()
        # One bit more than an address has: a full buffer is not an empty one.
        write_at = Signal(range(2 * self._depth))
        begin_at = Signal(range(2 * self._depth))  # of the frame that is coming; those before it are whole
        read_at = Signal(range(2 * self._depth))
        lost = Signal()  # of the frame that is coming a beat found no room
        full = write_at == read_at ^ self._depth
        fits = ~full & ~lost
        takes, ends = Signal(), Signal()
        m.d.comb += [
            # A frame that fills the buffer alone will never find room.
            self.i.ready.eq(fits | lost | (begin_at == read_at) if self._waits else 1),
            takes.eq(self.i.valid & self.i.ready),
            ends.eq(takes & self.i.payload.last),
            self.kept.eq(ends & fits & ~self.bad),
            self.dropped_full.eq(ends & ~fits),
            self.dropped_bad.eq((ends & fits & self.bad) | (self.cut & (lost | (write_at != begin_at)))),
            write.addr.eq(write_at[:-1]),
            write.data.eq(self.i.payload),
            write.en.eq(takes & fits),
        ]
        with m.If(self.kept):
            m.d.sync += begin_at.eq(write_at + 1)
        with m.If(takes):
            m.d.sync += [lost.eq(~fits), write_at.eq(write_at + fits)]
        with m.If(self.cut | (ends & ~self.kept)):
            m.d.sync += write_at.eq(begin_at)
        with m.If(self.cut | ends):
            m.d.sync += lost.eq(0)

        fetches = (read_at != begin_at) & (~self.o.valid | self.o.ready)
        m.d.comb += [read.addr.eq(read_at[:-1]), read.en.eq(fetches), self.o.payload.eq(read.data)]
        with m.If(fetches):
            m.d.sync += [read_at.eq(read_at + 1), self.o.valid.eq(1)]
        with m.Elif(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        return m
