"""The order in which a forward pass goes through chunks, of which one proof takes for granted what another proves."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value

from p4sgd.hw.spec.config import WorkerConfig

CONFIG = WorkerConfig(lanes=8, chunks=4, line_fifo_depth=8, slots=4)


class ForwardOrder:
    """What a forward pass does, to be assumed or asserted: how it goes through chunks and micro-batches.

    Its first micro-batch of a mini-batch begins every chunk once, in order: reads it, or passes it over. ``spends`` and
    ``ends`` are pulses: it does so; it takes the last line of a micro-batch. ``spent`` chunks of a mini-batch it has
    begun; ``inside`` it is while in a micro-batch.
    """

    def __init__(self, m: Module, forward: Any, start: Value, chunks: Value, rule: Any) -> None:
        place, took = forward.place, forward.took
        self.spent = Signal(range(CONFIG.chunks + 1))
        self.inside = Signal()
        self.first = first = Signal(init=1)
        opens = took & place.first_plane
        self.begins = opens & place.first_chunk
        self.spends = (opens & first) | forward.passed_over
        self.ends = took & place.last_plane & place.last_chunk
        self.ends_mini_batch = self.ends & forward.last_micro_batch
        spent = self.spent + self.spends
        m.d.comb += [
            rule(~self.spends | forward.permit_chunk),
            rule(~self.begins | forward.permit_micro_batch),
            rule(~took | (forward.lines.valid & ~forward.passed_over)),
            rule(~(took | forward.passed_over) | (forward.first_micro_batch == first)),
            rule(~took | ((place.first_plane & place.first_chunk) != self.inside)),
            rule(~took | (place.chunk < chunks)),
            rule(~(took & first) | (place.chunk + 1 == spent)),
            rule(~forward.passed_over | (first & (spent < chunks))),
            rule(~(self.ends & first) | (spent == chunks)),
            rule(forward.weights.enable == took),
            rule(forward.weights.address == place.chunk),
        ]
        with m.If(start):
            m.d.sync += [self.spent.eq(0), self.inside.eq(0), first.eq(1)]
        with m.Else():
            m.d.sync += self.spent.eq(Mux(self.ends_mini_batch, 0, spent))
            with m.If(took):
                m.d.sync += self.inside.eq(~self.ends)
            with m.If(self.ends):
                m.d.sync += first.eq(forward.last_micro_batch)
