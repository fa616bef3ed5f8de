"""Round 3: from gradients to new weights."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.arithmetic import add, overflows, saturate
from p4sgd.hw.backward.ports import GRADIENT_BITS
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT

__all__ = ["Update"]

_HALF = WEIGHT.width // 2


class Update(wiring.Component):
    """``w' = regularize(w − round(gradient · 2^-gradient_shift))`` on every lane, a chunk a cycle.

    The stages of the pipeline, each ending in a register::

        1  >> 8, 16, 24 of gradient_shift     5  × shrink, the weight in two halves   9  ± threshold
        2  >> 0 … 7, and the bit below        6  low product + half                  10  0 if the sign changed
        3  w − …                              7  high + low product, >> 24
        4  saturate                           8  w − …

    Rounding is the bit below the last that is kept, as a carry into the subtraction. Stages 5 to 10 leave the weight as
    it is where ``regularize`` is low: shrink and threshold count as 0 then.

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
        These weights, instead of updated ones, in the next cycle.
    updated : Out(ArrayLayout(signed(32), lanes))
        New weights, `LATENCY` cycles after the gradients.
    saturated : Out(1)
        A lane was saturated, `SATURATED_LATENCY` cycles after the gradients. Only meaningful for cycles whose gradients
        were.
    """

    LATENCY = 10
    WEIGHTS_LATENCY = 2
    SATURATED_LATENCY = 5

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
        final = [self.regularize]
        for stage in range(1, 9):
            flag = Signal(name=f"final{stage}", reset_less=True)
            m.d.sync += flag.eq(final[-1])
            final.append(flag)
        factor = Signal(SHRINK.width, reset_less=True)  # lines up with stage 4
        distance = Signal(WEIGHT.width - 1, reset_less=True)  # lines up with stage 8
        m.d.sync += [
            factor.eq(Mux(final[3], self.shrink, 0)),
            distance.eq(Mux(final[7], self.threshold, 0)),
        ]
        overflows = [self._lane(m, lane, factor, distance) for lane in range(self._lanes)]
        m.d.sync += self.saturated.eq(Cat(overflows).any())
        return m

    def _lane(self, m: Module, lane: int, factor: Signal, distance: Signal) -> Signal:
        """Build one lane; returns its overflow flag, with the register of stage 4."""

        def register(stage: str, width: int) -> Signal:
            return Signal(signed(width), name=f"{stage}_{lane}", reset_less=True)

        # One bit more at the low end: what it holds after the shift is the half to round by.
        coarse = register("coarse", GRADIENT_BITS + 1)
        step = register("step", GRADIENT_BITS + 1)
        moved = register("moved", GRADIENT_BITS + 1)
        m.d.sync += [
            coarse.eq(Cat(Const(0, 1), self.gradients[lane]).as_signed() >> (self.gradient_shift & 0b11000)),
            step.eq(coarse >> self.gradient_shift[:3]),
            # w − (step >> 1) − half = w + ~(step >> 1) + ~half
            moved.eq(add(self.weights[lane], ~step[1:].as_signed(), carry=~step[0])),
        ]
        weight = register("weight", WEIGHT.width)
        overflow = Signal(name=f"overflow_{lane}", reset_less=True)
        m.d.sync += [
            overflow.eq(overflows(moved, WEIGHT)),
            weight.eq(saturate(moved, overflows(moved, WEIGHT), WEIGHT)),
        ]

        # round(weight · factor / 2^24): the halves meet where no carry is lost.
        high_product = register("high_product", _HALF + SHRINK.width + 1)
        low_product = register("low_product", _HALF + SHRINK.width + 2)
        high_delayed = register("high_delayed", len(high_product))
        low_rounded = register("low_rounded", len(low_product) + 1)
        shrinkage = register("shrinkage", len(high_product) + 2)
        m.d.sync += [
            high_product.eq(weight[_HALF:].as_signed() * factor),
            low_product.eq(weight[:_HALF] * factor),
            high_delayed.eq(high_product),
            low_rounded.eq(low_product + (1 << (SHRINK.fraction - 1))),
            shrinkage.eq((high_delayed + (low_rounded >> _HALF)) >> (SHRINK.fraction - _HALF)),
        ]
        delayed = [weight]
        for stage in range(5, 8):
            later = register(f"weight{stage}", WEIGHT.width)
            m.d.sync += later.eq(delayed[-1])
            delayed.append(later)
        shrunk = register("shrunk", WEIGHT.width)
        lowered = register("lowered", WEIGHT.width)
        negative = Signal(name=f"negative_{lane}", reset_less=True)
        inverted = Signal(signed(WEIGHT.width), name=f"inverted_{lane}")  # −distance − 1 unless negative
        m.d.comb += inverted.eq(Mux(shrunk[-1], distance, ~Cat(distance, 0)))
        m.d.sync += [
            shrunk.eq(delayed[-1] - shrinkage),
            # Towards 0, which cannot overflow. It went past 0 if the sign changed.
            lowered.eq(add(shrunk, inverted, carry=~shrunk[-1])),
            negative.eq(shrunk[-1]),
            # One gate a bit, loading included.
            self.updated[lane].eq(Mux(self.load, self.loaded[lane], Mux(lowered[-1] == negative, lowered, 0))),
        ]
        return overflow
