"""The weights of an engine."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.backward.ports import GradientPort
from p4sgd.hw.delay import delayed
from p4sgd.hw.memory.ram_style import ram_style
from p4sgd.hw.model.ports import ReadPort, weights_layout
from p4sgd.hw.model.update import Update
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT

__all__ = ["Model"]


class Model(wiring.Component):
    """Two memories of weights, and the update between them::

        read ◀──────────── w ◀────────────────────┬── load
                                   final only     │
        gradients ──▶ Update ─────────────────────┤
                        ▲                         ▼
                        └──────────────────────  w_next

    ``w`` holds the weights of the current mini-batch, which forward passes read; ``w_next`` collects updates. The last
    update of a mini-batch (``final``) regularises and writes both, so ``w`` becomes ``w_next`` without a copy. With
    ``write_half`` set the final update goes to the upper half of ``w``, where it leaves weights alone that forward
    passes still read; the reader names the half by the top bit of its address.

    A gradient is written `WRITE_LATENCY` cycles after it came. The same chunk must not come again within
    `UPDATE_SPACING` cycles; different chunks may come every cycle.

    Members
    -------
    read : In(ReadPort)
    gradients : In(GradientPort)
    gradient_shift : In(5), shrink : In(18), threshold : In(31)
        Settings; stable.
    write_half : In(1)
        Half of ``w`` that final updates go to; 0 unless the model has at most half of ``WorkerConfig.chunks``.
    load : In(stream of weights_layout)
        Chunk 0, 1, 2, … of both memories; always ready; not while gradients are under way.
    load_clear : In(1)
        Pulse while ``load_busy`` is low: the next chunk loaded is chunk 0.
    load_busy : Out(1)
        A chunk was taken and is not yet written.
    updated : Out(1)
        Pulse: a chunk of ``w`` is being written by a final gradient. A read in the next cycle or later sees it.
    updated_last : Out(1)
        With ``updated``: it is the last chunk, and so the end of a mini-batch.
    wrote_first, wrote_last : Out(1)
        Pulse: the first or the last chunk of a micro-batch is being written.
    saturated : Out(1)
        Pulse: an update was saturated.
    """

    WRITE_LATENCY = Update.LATENCY
    UPDATE_SPACING = WRITE_LATENCY + 1

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        super().__init__(
            {
                "read": In(ReadPort(config)),
                "gradients": In(GradientPort(config)),
                "gradient_shift": In(MAX_GRADIENT_SHIFT.bit_length()),
                "shrink": In(SHRINK.width),
                "threshold": In(WEIGHT.width - 1),
                "write_half": In(1),
                "load": In(stream.Signature(weights_layout(config))),
                "load_clear": In(1),
                "load_busy": Out(1),
                "updated": Out(1),
                "updated_last": Out(1),
                "wrote_first": Out(1),
                "wrote_last": Out(1),
                "saturated": Out(1),
            }
        )

    read: Any
    gradients: Any
    gradient_shift: Signal
    shrink: Signal
    threshold: Signal
    write_half: Signal
    load: stream.Interface
    load_clear: Signal
    load_busy: Signal
    updated: Signal
    updated_last: Signal
    wrote_first: Signal
    wrote_last: Signal
    saturated: Signal

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        m.submodules.update = update = Update(config.lanes)
        layout = weights_layout(config)
        style = ram_style(config.chunks)
        w: Memory = Memory(shape=layout, depth=config.chunks, init=[], attrs=style)
        w_next: Memory = Memory(shape=layout, depth=config.chunks, init=[], attrs=style)
        m.submodules.w = w
        m.submodules.w_next = w_next
        w_write, w_read = w.write_port(), w.read_port()
        next_write, next_read = w_next.write_port(), w_next.read_port()

        m.d.comb += [w_read.addr.eq(self.read.address), w_read.en.eq(self.read.enable)]
        m.d.sync += self.read.data.eq(w_read.data)

        old = Signal(layout, reset_less=True)
        m.d.comb += [
            next_read.addr.eq(self.gradients.chunk),
            next_read.en.eq(self.gradients.valid),
            update.gradients.eq(self.gradients.values),
            update.weights.eq(old),
            update.regularize.eq(self.gradients.valid & self.gradients.final),
            update.gradient_shift.eq(self.gradient_shift),
            update.shrink.eq(self.shrink),
            update.threshold.eq(self.threshold),
        ]
        m.d.sync += old.eq(next_read.data)

        # Only `valid` needs a reset: the others matter where it is set.
        valid = delayed(m, self.gradients.valid, self.WRITE_LATENCY, "valid")
        final, last, chunk = (
            delayed(m, getattr(self.gradients, name), self.WRITE_LATENCY, name, reset_less=True)[-1]
            for name in ("final", "last", "chunk")
        )

        # Loaded weights pass the last stages of the update.
        loading = Signal(Update.LOAD_LATENCY)
        loaded = loading[-1]
        load_chunk = Signal(config.chunk_bits)
        m.d.sync += loading.eq(Cat(self.load.valid, loading))
        with m.If(self.load_clear):
            m.d.sync += load_chunk.eq(0)
        with m.Elif(loaded):
            m.d.sync += load_chunk.eq(load_chunk + 1)
        half = Signal(config.chunk_bits)
        m.d.comb += [
            self.load.ready.eq(1),
            self.load_busy.eq(loading.any()),
            update.load.eq(self.load.valid),
            update.loaded.eq(self.load.payload),
            self.updated.eq(valid[-1] & final),
            self.updated_last.eq(last),
            self.wrote_first.eq(valid[-1] & (chunk == 0)),
            self.wrote_last.eq(valid[-1] & last),
            self.saturated.eq(valid[Update.SATURATED_LATENCY] & update.saturated),
            half[-1].eq(self.write_half),
            w_write.addr.eq(Mux(loaded, load_chunk, chunk | half)),
            w_write.data.eq(update.updated),
            w_write.en.eq(self.updated | loaded),
            next_write.addr.eq(Mux(loaded, load_chunk, chunk)),
            next_write.data.eq(update.updated),
            next_write.en.eq(valid[-1] | loaded),
        ]
        return m
