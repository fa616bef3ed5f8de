"""When the forward pass may read the weights of a chunk."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["Chaining"]


class Chaining(wiring.Component):
    """Lets the forward pass of a mini-batch chase the last backward pass of the one before, chunk by chunk.

    One credit stands for one chunk whose weights are those of the mini-batch to come. A run begins with a credit for
    every chunk; the first micro-batch of a mini-batch spends them, the last backward pass earns them::

        micro-batch     first          others          last backward pass
        credits         C ──▶ 0        0 (not asked)   0 ──▶ C

    Other micro-batches need no credit: their weights do not change before their own sums have come. At the end of a
    run all credits are back, which is how the worker knows that every update is done.

    Members
    -------
    clear : In(1)
        Pulse before a run.
    chunks : In(17)
        Chunks of an engine (C).
    micro_batches : In(16)
        Micro-batches of a mini-batch.
    took_chunk : In(1)
        Pulse: the forward pass has begun a chunk.
    updated : In(1)
        Pulse: a chunk of the model has been written by the last backward pass of a mini-batch.
    permit : Out(1)
        The forward pass may begin its next chunk.
    took_last_chunk : Out(1)
        Pulse: it has begun the last chunk of a micro-batch.
    settled : Out(1)
        All credits are there: no update is outstanding.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._credit_bits = config.chunk_bits + 1
        super().__init__(
            {
                "clear": In(1),
                "chunks": In(17),
                "micro_batches": In(16),
                "took_chunk": In(1),
                "updated": In(1),
                "permit": Out(1),
                "took_last_chunk": Out(1),
                "settled": Out(1),
            }
        )

    clear: Signal
    chunks: Signal
    micro_batches: Signal
    took_chunk: Signal
    updated: Signal
    permit: Signal
    took_last_chunk: Signal
    settled: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        credits = Signal(self._credit_bits)
        chunk = Signal(17)
        micro_batch = Signal(16)
        first = micro_batch == 0
        spend = self.took_chunk & first
        last_chunk = chunk + 1 == self.chunks
        m.d.comb += [
            self.took_last_chunk.eq(self.took_chunk & last_chunk),
            self.permit.eq(~first | (credits != 0)),
            self.settled.eq(credits == self.chunks),
        ]
        with m.If(self.clear):
            m.d.sync += [credits.eq(self.chunks), chunk.eq(0), micro_batch.eq(0)]
        with m.Else():
            with m.If(self.updated & ~spend):
                m.d.sync += credits.eq(credits + 1)
            with m.Elif(spend & ~self.updated):
                m.d.sync += credits.eq(credits - 1)
            with m.If(self.took_chunk):
                m.d.sync += chunk.eq(chunk + 1)
                with m.If(last_chunk):
                    m.d.sync += [chunk.eq(0), micro_batch.eq(micro_batch + 1)]
                    with m.If(micro_batch + 1 == self.micro_batches):
                        m.d.sync += micro_batch.eq(0)
        return m
