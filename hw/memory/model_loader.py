"""Weights from memory to the model."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.model.ports import weights_layout
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["ModelLoader"]


class ModelLoader(wiring.Component):
    """Joins `WorkerConfig.weight_lines` lines to the weights of one chunk, the first line lowest.

    Takes the lines of a chunk in as many cycles and pauses for one while the chunk is taken; latency 1 cycle after the
    last line. The model is loaded once a run.

    Members
    -------
    lines : In(stream of unsigned(line_bits))
    chunks : Out(stream of weights_layout)
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._lines = config.weight_lines
        self._line_bits = config.line_bits
        super().__init__(
            {
                "lines": In(stream.Signature(config.line_bits)),
                "chunks": Out(stream.Signature(weights_layout(config))),
            }
        )

    lines: stream.Interface
    chunks: stream.Interface

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word = Signal(self._lines * self._line_bits, reset_less=True)
        count = Signal(range(self._lines))
        m.d.comb += [self.chunks.payload.eq(word), self.lines.ready.eq(~self.chunks.valid)]
        with m.If(self.chunks.ready):
            m.d.sync += self.chunks.valid.eq(0)
        with m.If(self.lines.valid & self.lines.ready):
            m.d.sync += [word.eq(Cat(word, self.lines.payload)[self._line_bits :]), count.eq(count + 1)]
            with m.If(count == self._lines - 1):
                m.d.sync += [count.eq(0), self.chunks.valid.eq(1)]
        return m
