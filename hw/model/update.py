"""Round 3: from gradients to new weights."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.arithmetic import add, overflows, saturate
from p4sgd.hw.backward.ports import GRADIENT_BITS
from p4sgd.hw.delay import delayed
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT, Fixed
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT

__all__ = ["Update"]

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
        final = delayed(m, self.regularize, 7, "final", reset_less=True)
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
