"""Lines: their position within a run, and the FIFO that keeps them for the backward pass."""

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.primitives import pipeline, ram_style
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["LineFIFO", "LinePosition"]


class LinePosition(wiring.Component):
    """Counters of planes, chunks and micro-batches: the position of the next line.

    The flags are registers that are computed while the previous line is there, so logic that uses them does not wait
    for a comparison.

    Members
    -------
    start
        Pulse before a run: the next line is its first.
    step
        The line is taken.
    precision, chunks, micro_batches
        Lines of a chunk, chunks of a micro-batch, micro-batches of a mini-batch; stable from two cycles before
        ``start``.
    chunk
        Number of the line's chunk.
    first_plane, last_plane
        The line is the first or last of its chunk.
    first_chunk, last_chunk
        The chunk is the first or last of its micro-batch.
    first_micro_batch, last_micro_batch
        The micro-batch is the first or last of its mini-batch.
    """

    def __init__(self, config: WorkerConfig) -> None:
        flags = ("first_plane", "last_plane", "first_chunk", "last_chunk", "first_micro_batch", "last_micro_batch")
        super().__init__(
            {
                "start": In(1),
                "step": In(1),
                "precision": In(4),
                "chunks": In(17),
                "micro_batches": In(16),
                "chunk": Out(config.chunk_bits),
            }
            | {flag: Out(1) for flag in flags}
        )

    start: Signal
    step: Signal
    precision: Signal
    chunks: Signal
    micro_batches: Signal
    chunk: Signal
    first_plane: Signal
    last_plane: Signal
    first_chunk: Signal
    last_chunk: Signal
    first_micro_batch: Signal
    last_micro_batch: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        ends_chunk = self.step & self.last_plane
        ends_micro_batch = ends_chunk & self.last_chunk
        self._count(m, "plane", self.step, self.precision, self.first_plane, self.last_plane)
        self._count(m, "chunk", ends_chunk, self.chunks, self.first_chunk, self.last_chunk)
        self._count(
            m, "micro_batch", ends_micro_batch, self.micro_batches, self.first_micro_batch, self.last_micro_batch
        )
        with m.If(self.start | ends_micro_batch):
            m.d.sync += self.chunk.eq(0)
        with m.Elif(ends_chunk):
            m.d.sync += self.chunk.eq(self.chunk + 1)
        return m

    def _count(self, m: Module, name: str, step: Value, total: Signal, first: Signal, last: Signal) -> None:
        """Count ``step`` from 1 to ``total``, over and over; ``first`` and ``last`` flag the ends of the count."""
        left = Signal.like(total, name=f"{name}s_left", reset_less=True)  # after this one
        all_left = Signal.like(total, name=f"{name}s_left_at_first", reset_less=True)
        only_one = Signal(name=f"only_one_{name}", reset_less=True)
        m.d.sync += [all_left.eq(total - 1), only_one.eq(total == 1)]
        with m.If(self.start | (step & last)):
            m.d.sync += [left.eq(all_left), first.eq(1), last.eq(only_one)]
        with m.Elif(step):
            m.d.sync += [left.eq(left - 1), first.eq(0), last.eq(left == 1)]


_READ_LATENCY = 2
"""Cycles from an address to its line: the memory is deep, so it needs its output register."""

_FETCHED = 4
"""Lines that may be between the memory and the output: enough for a line a cycle."""


class LineFIFO(wiring.Component):
    """FIFO that keeps the lines of the forward pass on chip for the backward pass, so that no line is fetched twice::

        i ──▶ memory ──▶ output register ──▶ 4 fetched lines ──▶ o

    Holds at least `WorkerConfig.line_fifo_depth` lines. Takes and returns a line a cycle, with a latency of `LATENCY`
    cycles. ``i.ready`` is a register and falls one line early; the room for fetched lines more than makes up for that.

    Members
    -------
    i
        Lines to keep.
    o
        The same lines, in the same order.
    """

    LATENCY = 1 + _READ_LATENCY + 1

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        super().__init__({"i": In(stream.Signature(config.line_bits)), "o": Out(stream.Signature(config.line_bits))})

    i: stream.Interface
    o: stream.Interface

    def elaborate(self, platform: object) -> Module:
        depth, width = self._config.line_fifo_depth, self._config.line_bits
        m = Module()
        memory: Memory = Memory(shape=width, depth=depth, init=[], attrs=ram_style(depth))
        m.submodules.memory = memory
        write = memory.write_port()
        read = memory.read_port()
        m.submodules.fetched = fetched = SyncFIFO(width=width, depth=_FETCHED)

        written = Signal()
        fetch = Signal()
        given = Signal()
        level = Signal(range(depth + 1))  # lines in the memory
        room = Signal(range(_FETCHED + 1), init=_FETCHED)  # for lines to fetch
        m.d.comb += [
            written.eq(self.i.valid & self.i.ready),
            fetch.eq((level != 0) & (room != 0)),
            given.eq(self.o.valid & self.o.ready),
            write.data.eq(self.i.payload),
            write.en.eq(written),
            read.en.eq(fetch),
        ]
        m.d.sync += [
            write.addr.eq(write.addr + written),
            read.addr.eq(read.addr + fetch),
            level.eq(level + written - fetch),
            room.eq(room - fetch + given),
            # One line is held in reserve: `level` does not count a line that comes in this cycle.
            self.i.ready.eq(level < depth - 1),
        ]

        line = Signal(width, reset_less=True)
        coming = pipeline(m, fetch, _READ_LATENCY, "coming")
        with m.If(coming[1]):
            m.d.sync += line.eq(read.data)
        m.d.comb += [
            fetched.w_en.eq(coming[-1]),
            fetched.w_data.eq(line),
            self.o.payload.eq(fetched.r_data),
            self.o.valid.eq(fetched.r_rdy),
            fetched.r_en.eq(self.o.ready),
        ]
        return m
