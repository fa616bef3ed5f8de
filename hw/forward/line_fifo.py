"""Lines between the forward and the backward pass."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["LineFIFO"]


class LineFIFO(wiring.Component):
    """Keeps the lines of the forward pass on chip until the deltas come: no line is fetched twice.

    Holds `WorkerConfig.line_fifo_depth` lines; takes and gives a line a cycle; latency 2 cycles.

    Members
    -------
    i : In(stream of unsigned(line_bits))
    o : Out(stream of unsigned(line_bits))
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        super().__init__({"i": In(stream.Signature(config.line_bits)), "o": Out(stream.Signature(config.line_bits))})

    i: stream.Interface
    o: stream.Interface

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=self._config.line_bits, depth=self._config.line_fifo_depth)
        m.d.comb += [
            fifo.w_data.eq(self.i.payload),
            fifo.w_en.eq(self.i.valid),
            self.i.ready.eq(fifo.w_rdy),
            self.o.payload.eq(fifo.r_data),
            self.o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.o.ready),
        ]
        return m
