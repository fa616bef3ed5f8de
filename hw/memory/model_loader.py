"""Weights from memory to the model."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.model.ports import weights_layout
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["ModelLoader"]


class ModelLoader(wiring.Component):
    """Joins `WorkerConfig.weight_beats` beats of memory port 0 to the weights of one chunk, the first beat lowest.

    Takes the beats of a chunk in as many cycles and pauses for one while the chunk is taken; latency 1 cycle after the
    last beat. The model is loaded once a run.

    Members
    -------
    beats : In(stream of unsigned(port_bits))
    chunks : Out(stream of weights_layout)
    zero : In(1)
        Pulse while no beats come: ``chunks`` shows zeros.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._beats = config.weight_beats
        self._port_bits = config.port_bits
        super().__init__(
            {
                "beats": In(stream.Signature(config.port_bits)),
                "chunks": Out(stream.Signature(weights_layout(config))),
                "zero": In(1),
            }
        )

    beats: stream.Interface
    chunks: stream.Interface
    zero: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word = Signal(self._beats * self._port_bits, reset_less=True)
        count = Signal(range(self._beats))
        m.d.comb += [self.chunks.payload.eq(word), self.beats.ready.eq(~self.chunks.valid)]
        with m.If(self.chunks.ready):
            m.d.sync += self.chunks.valid.eq(0)
        with m.If(self.beats.valid & self.beats.ready):
            m.d.sync += [word.eq(Cat(word, self.beats.payload)[self._port_bits :]), count.eq(count + 1)]
            with m.If(count == self._beats - 1):
                m.d.sync += [count.eq(0), self.chunks.valid.eq(1)]
        with m.If(self.zero):
            m.d.sync += word.eq(0)
        return m
