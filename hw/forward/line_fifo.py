"""Lines between the forward and the backward pass."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.delay import delayed
from p4sgd.hw.memory.ram_style import ram_style
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["LineFIFO"]

_READ_LATENCY = 2
"""Cycles from an address to its line: a deep memory needs its output register."""

_FETCHED = 4
"""Lines that may be on their way out of the memory or wait behind it: enough for a line a cycle."""


class LineFIFO(wiring.Component):
    """Keeps the lines of the forward pass on chip until the deltas come: no line is fetched twice::

        i ──▶ memory ──▶ output register ──▶ 4 fetched lines ──▶ o

    Holds `WorkerConfig.line_fifo_depth` lines at least; takes and gives a line a cycle; latency `LATENCY` cycles.
    ``i.ready`` is a register: it falls one line early, which the fetched lines more than make up for.

    Members
    -------
    i : In(stream of unsigned(line_bits))
    o : Out(stream of unsigned(line_bits))
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
            # May be one too high, as a line may come in this cycle.
            self.i.ready.eq(level < depth - 1),
        ]

        line = Signal(width, reset_less=True)
        coming = delayed(m, fetch, _READ_LATENCY, "coming")
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
