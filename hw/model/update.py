"""Round 3: from gradients to new weights."""

from amaranth.hdl import Const, Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.backward.ports import GRADIENT_BITS
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT
from p4sgd.hw.spec.run import MAX_GRADIENT_SHIFT

__all__ = ["Update"]

_HALF = WEIGHT.width // 2


class Update(wiring.Component):
    """``w' = regularize(w − round(gradient · 2^-gradient_shift))`` on every lane, a chunk a cycle.

    The stages of the pipeline, each ending in a register::

        1  gradient + half          5  × shrink, the weight in two halves   9  ± threshold
        2  >> gradient_shift        6  low product + half                  10  soft threshold
        3  w − …                    7  high + low product, >> 24
        4  saturate                 8  w − …

    Stages 5 to 10 leave the weight as it is where ``regularize`` is low: shrink and threshold count as 0 then.

    Members
    -------
    gradients : In(ArrayLayout(signed(GRADIENT_BITS), lanes))
    weights : In(ArrayLayout(signed(32), lanes))
        Weights of the same chunk, `WEIGHTS_LATENCY` cycles after its gradients.
    regularize : In(1)
        With the gradients: this is the end of a mini-batch.
    gradient_shift : In(5), shrink : In(18), threshold : In(31)
        Settings; stable.
    updated : Out(ArrayLayout(signed(32), lanes))
        New weights, `LATENCY` cycles after the gradients.
    saturated : Out(1)
        With stage 5: a lane was saturated. Only meaningful for cycles whose gradients were.
    """

    LATENCY = 10
    WEIGHTS_LATENCY = 2
    SATURATED_LATENCY = 4

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
    updated: data.View
    saturated: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Decoded settings and the pipelined flag, shared by all lanes.
        half = Signal(MAX_GRADIENT_SHIFT, reset_less=True)
        m.d.sync += half.eq((Const(1) << self.gradient_shift) >> 1)
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
        overflows = [self._lane(m, lane, half, factor, distance) for lane in range(self._lanes)]
        overflow = Signal(self._lanes)
        m.d.comb += [bit.eq(value) for bit, value in zip(overflow, overflows, strict=True)]
        m.d.comb += self.saturated.eq(overflow.any())
        return m

    def _lane(self, m: Module, lane: int, half: Signal, factor: Signal, distance: Signal) -> Signal:
        """Build one lane; returns its overflow flag, with the register of stage 4."""

        def register(stage: str, width: int) -> Signal:
            return Signal(signed(width), name=f"{stage}_{lane}", reset_less=True)

        rounded = register("rounded", GRADIENT_BITS + 1)
        step = register("step", GRADIENT_BITS + 1)
        moved = register("moved", GRADIENT_BITS + 2)
        m.d.sync += [
            rounded.eq(self.gradients[lane] + half),
            step.eq(rounded >> self.gradient_shift),
            moved.eq(self.weights[lane] - step),
        ]
        weight = register("weight", WEIGHT.width)
        overflow = Signal(name=f"overflow_{lane}", reset_less=True)
        high = moved[WEIGHT.width - 1 :]  # all equal unless it overflows
        m.d.sync += overflow.eq(high.any() & ~high.all())
        with m.If(high.any() & ~high.all()):
            m.d.sync += weight.eq(Mux(moved[-1], WEIGHT.minimum, WEIGHT.maximum))
        with m.Else():
            m.d.sync += weight.eq(moved)

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
        below = register("below", WEIGHT.width + 1)
        above = register("above", WEIGHT.width + 1)
        m.d.sync += [
            shrunk.eq(delayed[-1] - shrinkage),
            below.eq(shrunk - distance),
            above.eq(shrunk + distance),
        ]
        # Where the weight is above the threshold, `below` is positive; where it is under it, `above` is negative.
        m.d.sync += self.updated[lane].eq(Mux(~below[-1], below, Mux(above[-1], above, 0)))
        return overflow
