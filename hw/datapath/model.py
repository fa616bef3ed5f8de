"""Round 3: the weights of an engine, and from gradients to new weights.

How the weights are read.

Round 3: from gradients to new weights.

The weights of an engine.
"""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.datapath.backward import GRADIENT_BITS, GradientPort
from p4sgd.hw.primitives import add, overflows, pipeline, ram_style, saturate
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT, Fixed
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT

__all__ = ["MODEL_READ_LATENCY", "Model", "ReadPort", "Update", "weights_layout"]


MODEL_READ_LATENCY = 2
"""Cycles from an address to its data: block RAM with its output register."""


def weights_layout(config: WorkerConfig) -> data.ArrayLayout:
    """The weights of one chunk, lane 0 lowest."""
    return data.ArrayLayout(signed(WEIGHT.width), config.lanes)


class ReadPort(wiring.Signature):
    """Read access to the model, seen from the reader.

    Members
    -------
    address : Out(chunk_bits)
        Chunk to read, from the half that the top bit names where the model keeps two versions.
    enable : Out(1)
        The address is valid in this cycle.
    data : In(weights_layout)
        Weights of the chunk whose address was presented `MODEL_READ_LATENCY` cycles before.
    """

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(
            {
                "address": Out(config.chunk_bits),
                "enable": Out(1),
                "data": In(weights_layout(config)),
            }
        )


_LOW = 17
"""Bits of a weight that the first of two DSP48E2 multiplies: what its cascade to the second shifts by (UG579)."""

_KEEP_ALL = 1 << SHRINK.fraction
_RETAINED = Fixed(SHRINK.fraction + 1, SHRINK.fraction, signed=False)
"""The part of a weight that is kept: 1 − shrink, up to 1."""


class Update(wiring.Component):
    """``w' = regularize(w − round(gradient · 2^-gradient_shift))`` on every lane, a chunk a cycle.

    The stages of the pipeline, each ending in a register::

        1  >> 0, 8, 16, 24 of gradient_shift     6  low bits × retained
        2  >> 0, 2, 4, 6                         7  … + half; high bits × retained
        3  >> 0, 1 with rounding; w − …          8  high + low, >> 24
        4  overflow?                             9  ± threshold
        5  saturate, or load                    10  0 if the sign changed

    Rounding is the bit below the last that is kept, as a carry into the subtraction. The shrink is a multiplication by
    what is retained, 1 − shrink: w − ⌊w·shrink + ½⌋ = ⌊w·(1 − shrink) + ½ − 2^-24⌋ in steps of a weight, which is
    two DSP slices and no adder beside them. Where ``regularize`` is low all is retained and the threshold counts as 0.

    Members
    -------
    gradients : In(ArrayLayout(signed(GRADIENT_BITS), lanes))
    weights : In(ArrayLayout(signed(32), lanes))
        Weights of the same chunk, `WEIGHTS_LATENCY` cycles after its gradients.
    regularize : In(1)
        With the gradients: this is the end of a mini-batch.
    gradient_shift : In(5), shrink : In(18), threshold : In(31)
        Settings; stable.
    load : In(1), loaded : In(ArrayLayout(signed(32), lanes))
        These weights, instead of updated ones, `LOAD_LATENCY` cycles later, if ``regularize`` was low `LATENCY` cycles
        before that.
    updated : Out(ArrayLayout(signed(32), lanes))
        New weights, `LATENCY` cycles after the gradients.
    saturated : Out(1)
        A lane was saturated, `SATURATED_LATENCY` cycles after the gradients. Only meaningful for cycles whose gradients
        were.
    """

    LATENCY = 10
    WEIGHTS_LATENCY = 2
    SATURATED_LATENCY = 5
    LOAD_LATENCY = 6

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        super().__init__(
            {
                "gradients": In(data.ArrayLayout(signed(GRADIENT_BITS), lanes)),
                "weights": In(data.ArrayLayout(signed(WEIGHT.width), lanes)),
                "regularize": In(1),
                "gradient_shift": In(MAX_GRADIENT_SHIFT.bit_length()),
                "shrink": In(SHRINK.width),
                "threshold": In(WEIGHT.width - 1),
                "load": In(1),
                "loaded": In(data.ArrayLayout(signed(WEIGHT.width), lanes)),
                "updated": Out(data.ArrayLayout(signed(WEIGHT.width), lanes)),
                "saturated": Out(1),
            }
        )

    gradients: data.View
    weights: data.View
    regularize: Signal
    gradient_shift: Signal
    shrink: Signal
    threshold: Signal
    load: Signal
    loaded: data.View
    updated: data.View
    saturated: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        final = pipeline(m, self.regularize, 7, "final", reset_less=True)
        retained = Signal(_RETAINED.width, reset_less=True)
        low_factor = Signal(signed(_RETAINED.width + 1), reset_less=True)  # lines up with stage 5
        high_factor = Signal.like(low_factor, reset_less=True)
        distance = Signal(WEIGHT.width - 1, reset_less=True)  # lines up with stage 8
        m.d.sync += [
            retained.eq(_KEEP_ALL - self.shrink),
            low_factor.eq(Mux(final[4], retained, _KEEP_ALL)),
            high_factor.eq(low_factor),
            distance.eq(Mux(final[7], self.threshold, 0)),
        ]
        overflowed = [self._lane(m, lane, low_factor, high_factor, distance) for lane in range(self._lanes)]
        m.d.sync += self.saturated.eq(Cat(overflowed).any())
        return m

    def _lane(self, m: Module, lane: int, low_factor: Signal, high_factor: Signal, distance: Signal) -> Signal:
        """Build one lane; returns its overflow flag, with the register of stage 4."""

        def register(stage: str, width: int) -> Signal:
            return Signal(signed(width), name=f"{stage}_{lane}", reset_less=True)

        # One bit more at the low end: what it holds after the shift is the half to round by.
        coarse = register("coarse", GRADIENT_BITS + 1)
        medium = register("medium", GRADIENT_BITS + 1)
        moved = register("moved", GRADIENT_BITS + 1)
        step = Signal(signed(GRADIENT_BITS + 1), name=f"step_{lane}")
        m.d.comb += step.eq(Mux(self.gradient_shift[0], medium >> 1, medium))
        m.d.sync += [
            coarse.eq(Cat(Const(0, 1), self.gradients[lane]).as_signed() >> (self.gradient_shift & 0b11000)),
            medium.eq(coarse >> (self.gradient_shift & 0b00110)),
            # w − (step >> 1) − half = w + ~(step >> 1) + ~half
            moved.eq(add(self.weights[lane], ~step[1:].as_signed(), carry=~step[0])),
        ]
        overflow = Signal(name=f"overflow_{lane}", reset_less=True)
        checked = register("checked", GRADIENT_BITS + 1)
        weight = register("weight", WEIGHT.width)
        m.d.sync += [
            overflow.eq(overflows(moved, WEIGHT)),
            checked.eq(moved),
            weight.eq(Mux(self.load, self.loaded[lane], saturate(checked, overflow, WEIGHT))),
        ]

        product_bits = WEIGHT.width - _LOW + len(low_factor)
        low_product = register("low_product", _LOW + 1 + len(low_factor))
        low_sum = register("low_sum", len(low_product) + 1)
        high_weight = register("high_weight", WEIGHT.width - _LOW)
        high_product = register("high_product", product_bits)
        product = register("product", product_bits + 1)
        shrunk = product[SHRINK.fraction - _LOW :][: WEIGHT.width].as_signed()
        m.d.sync += [
            low_product.eq(Cat(weight[:_LOW], 0).as_signed() * low_factor),
            low_sum.eq(low_product + ((1 << (SHRINK.fraction - 1)) - 1)),
            high_weight.eq(weight[_LOW:]),
            high_product.eq(high_weight * high_factor),
            product.eq(high_product + (low_sum >> _LOW)),
        ]
        lowered = register("lowered", WEIGHT.width)
        negative = Signal(name=f"negative_{lane}", reset_less=True)
        inverted = Signal(signed(WEIGHT.width), name=f"inverted_{lane}")  # −distance − 1 unless negative
        m.d.comb += inverted.eq(Mux(shrunk[-1], distance, ~Cat(distance, 0)))
        m.d.sync += [
            # Towards 0, which cannot overflow. It went past 0 if the sign changed.
            lowered.eq(add(shrunk, inverted, carry=~shrunk[-1])),
            negative.eq(shrunk[-1]),
            self.updated[lane].eq(Mux(lowered[-1] == negative, lowered, 0)),
        ]
        return overflow


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
        valid = pipeline(m, self.gradients.valid, self.WRITE_LATENCY, "valid")
        final, last, chunk = (
            pipeline(m, getattr(self.gradients, name), self.WRITE_LATENCY, name, reset_less=True)[-1]
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
