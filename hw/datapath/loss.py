"""Round 2: from sums and labels to deltas."""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.primitives import Component, overflows, pipeline, saturate
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import (
    ACTIVATION,
    DELTA,
    FACTOR,
    IMPORTANCE,
    INTERCEPT,
    LABEL,
    MARGIN,
    RATE_MANTISSA,
    RESIDUAL,
    SLOPE,
)
from p4sgd.hw.spec.run import MAX_SHIFT, VALUE_FRACTION

__all__ = ["LossUnit"]


_ROUND = VALUE_FRACTION - RESIDUAL.fraction  # fraction bits of a table value that rounding drops

_LUT_INPUTS = 6

_TOTAL = ACTIVATION.width + 2  # bits of the sum of an activation and a label

_EQUAL = range(MARGIN.width - 1, _TOTAL - 1, _LUT_INPUTS - 1)
"""The sum fits `MARGIN` if all bits from the sign bit of that format up are equal. They are compared in groups that
start at these bits and overlap by one, each as wide as a LUT has inputs."""

_ROUND_FACTOR = IMPORTANCE.fraction - FACTOR.fraction  # fraction bits that rounding drops from weight · mantissa
_ROUND_DELTA = RESIDUAL.fraction + FACTOR.fraction - DELTA.fraction  # the same of g · factor

assert VALUE_FRACTION - LABEL.fraction == SLOPE.fraction > _ROUND - 1, "a label has the fraction bits of an intercept"


class LossUnit(Component):
    """Residuals ``g = s·ψ(s·z − o) − c`` and deltas ``δ = g · factor`` of the eight samples of a micro-batch.

    ψ is the loss table, of which each bank has a copy; s, o and c come from the label
    (:class:`p4sgd.hw.spec.run.LabelMode`). All that depends on the label alone is computed before the sum comes.
    Negations cost no adder: −(z + o) = ~(z + o − 1) and −(slope·x) = ~slope·x + x, and the −1 and the +x are part of
    sums that are formed anyway. The stages, each ending in a register::

        label:  s      s·(−o)         half − c + s
                         │                 │
        1  x = ±(z + ────┘), saturate      │                                         weight
        2  find and read the segment       + x where s = −1                             │
        3  ±slope                 ±intercept + …                                    · mantissa
        4  slope · x + …                                                                │
        5  saturate g                                                                   │
        6  g · factor ──────────────────────────────────────────────────────────────────┘

    Throughput is one micro-batch every two cycles, or three with weights; ``deltas`` come `LATENCY` cycles after
    ``sums``. There is no back-pressure: the backward pass has room for the deltas of every micro-batch in flight.
    """

    LATENCY = 6

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        ports = {
            # One `ACTIVATION` for each sample of a micro-batch.
            "sums": In(stream.Signature(data.ArrayLayout(signed(ACTIVATION.width), BANKS))),
            # One `LABEL` for each sample; with weights every other item is of `IMPORTANCE`, in the lowest bits.
            "labels": In(stream.Signature(data.ArrayLayout(signed(LABEL.width), BANKS))),
            "deltas": Out(ValidSignature(data.ArrayLayout(signed(DELTA.width), BANKS))),  # one `DELTA` for each sample
            # Which of s, o and c are the label. Stable from before the first label comes.
            "label_mode_sign": In(1),
            "label_mode_offset": In(1),
            "label_mode_constant": In(1),
            # Samples have weights; else all weigh 1. Stable from two cycles before the first label comes.
            "label_mode_weighted": In(1),
            "rate_mantissa": In(RATE_MANTISSA.width),  # mantissa of the learning rate, `RATE_MANTISSA`; stable
            "table_shift": In(MAX_SHIFT.bit_length()),  # log2 of the width of a segment; stable
            # Writing an intercept writes a segment and selects the next one; not while sums are under way.
            "table_index_strobe": In(1),
            "table_index": In(config.segment_bits),
            "table_slope": In(signed(SLOPE.width)),
            "table_intercept_strobe": In(1),
            "table_intercept": In(signed(INTERCEPT.width)),
            "status_residual_saturated": Out(1),  # pulse: a margin or a residual was saturated
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()

        # A label is prepared as soon as it comes, and then waits for its weight, if it has one, and its sum.
        prepared = Signal()
        prepare = Signal()
        unweighed = Signal()  # the label is prepared, but its weight has not come
        weigh = Signal()
        taken = Signal()
        m.d.comb += [
            prepare.eq(self.labels.valid & ~prepared & ~unweighed),
            weigh.eq(self.labels.valid & unweighed),
            self.labels.ready.eq(~prepared),
            taken.eq(self.sums.valid & prepared),
            self.sums.ready.eq(prepared),
        ]
        with m.If(prepare):
            m.d.sync += [prepared.eq(~self.label_mode_weighted), unweighed.eq(self.label_mode_weighted)]
        with m.Elif(weigh):
            m.d.sync += [prepared.eq(1), unweighed.eq(0)]
        with m.Elif(taken):
            m.d.sync += prepared.eq(0)
        valid = pipeline(m, taken, self.LATENCY, "valid")

        next_segment = Signal(self._config.segment_bits, reset_less=True)  # the next to be written
        with m.If(self.table_index_strobe):
            m.d.sync += next_segment.eq(self.table_index)
        with m.Elif(self.table_intercept_strobe):
            m.d.sync += next_segment.eq(next_segment + 1)

        margins = [Signal(len(_EQUAL), name=f"margin_saturated_{bank}", reset_less=True) for bank in range(BANKS)]
        residuals = Signal(BANKS, reset_less=True)
        shifts = self._decode_shift(m)
        factors = [self._factor(m, bank, weigh, valid[2]) for bank in range(BANKS)]
        deltas = [
            self._bank(m, bank, prepare, (shifts, next_segment), margins[bank], residuals[bank], factors[bank])
            for bank in range(BANKS)
        ]
        m.d.comb += [
            self.status_residual_saturated.eq((valid[1] & Cat(margins).any()) | (valid[5] & residuals.any())),
            self.deltas.payload.eq(Cat(deltas)),
            self.deltas.valid.eq(valid[-1]),
        ]
        return m

    def _decode_shift(self, m: Module) -> tuple[Signal, Signal]:
        """Decode the width of a segment, once for all banks since it is a setting.

        Bit i of the first: the width is 2^i; its last bit: only the sign of a margin remains. The second is the mask of
        the bits of a margin above the range of the table, outside of which it is if one differs from the sign.
        """
        most, covered = MARGIN.width - 1, self._config.segment_bits - 1
        shifts = Signal(most + 1, reset_less=True), Signal(most, reset_less=True)
        m.d.sync += [
            shifts[0].eq(Cat(*(self.table_shift == shift for shift in range(most)), self.table_shift >= most)),
            shifts[1].eq(Cat(self.table_shift <= place - covered for place in range(most))),
        ]
        return shifts

    def _factor(self, m: Module, bank: int, weigh: Signal, multiply: Signal) -> Signal:
        """Weight of one sample times mantissa, for the last stage.

        Sums of samples with weights are three cycles apart or more, so neither is replaced before it is used.
        """
        weight = Signal(IMPORTANCE.width, name=f"weight_{bank}", reset_less=True)
        factor = Signal(FACTOR.width, name=f"factor_{bank}", reset_less=True)
        with m.If(weigh | ~self.label_mode_weighted):
            m.d.sync += weight.eq(Mux(self.label_mode_weighted, self.labels.payload[bank], IMPORTANCE.one))
        half = 1 << (_ROUND_FACTOR - 1)
        with m.If(multiply):
            m.d.sync += factor.eq((weight * self.rate_mantissa + half) >> _ROUND_FACTOR)
        return factor

    def _bank(
        self,
        m: Module,
        bank: int,
        prepare: Signal,
        table: tuple[tuple[Signal, Signal], Signal],
        margin_saturated: Value,
        residual_saturated: Value,
        factor: Value,
    ) -> Signal:
        """Build the pipeline of one sample; returns its delta."""

        def register(name: str, width: int) -> Signal:
            return Signal(signed(width), name=f"{name}_{bank}", reset_less=True)

        # The label: whether s = −1; s·(−o), less 1 if s = −1; −c, plus 1 if s = −1 since stage 3 inverts the intercept
        # where it should negate.
        y = self.labels.payload[bank]
        z = self.sums.payload[bank]
        negate = Signal(name=f"negate_{bank}", reset_less=True)
        offset = register("offset", LABEL.width + 1)
        constant = register("constant", LABEL.width + 2)
        negative = Signal(name=f"negative_{bank}")
        lacking = Cat(~negative, negative)  # −y + (s = −1) = ~y + 1 + (s = −1)
        m.d.comb += negative.eq(self.label_mode_sign & y[-1])
        with m.If(prepare):
            m.d.sync += [
                negate.eq(negative),
                offset.eq((Mux(self.label_mode_offset, ~y, -1) + 1) ^ negative.as_signed()),
                constant.eq(Mux(self.label_mode_constant, ~y, -1) + lacking),
            ]

        # 1: s·z − o = s·(z + s·(−o)). Each flag of a group of equal bits selects by itself ("keep" holds the tools to
        # that): a single flag made of all of them would be one more LUT on the path.
        total = Signal(signed(_TOTAL), name=f"total_{bank}")
        differ = [Signal(name=f"differ_{bank}_{low}", attrs={"keep": 1}) for low in _EQUAL]
        margin = register("margin", MARGIN.width)
        negate_1 = Signal(name=f"negate_1_{bank}", reset_less=True)
        constant_1 = register("constant_1", len(constant))
        m.d.comb += total.eq(z + offset)
        for flag, low in zip(differ, _EQUAL, strict=True):
            equal = total[low : low + _LUT_INPUTS]
            m.d.comb += flag.eq(equal.any() & ~equal.all())
        x: Value = total ^ negate.as_signed()
        for flag in differ:
            x = Mux(flag, Mux(total[-1] ^ negate, MARGIN.minimum, MARGIN.maximum), x)
        m.d.sync += [
            margin.eq(x),
            margin_saturated.eq(Cat(differ)),
            negate_1.eq(negate),
            constant_1.eq(constant),
        ]

        # 2: the segment; and all that is added to its line
        slope, intercept = self._look_up(m, bank, margin, *table)
        margin_2 = register("margin_2", MARGIN.width)
        negate_2 = Signal(name=f"negate_2_{bank}", reset_less=True)
        half = Const(1 << (_ROUND - 1), SLOPE.fraction)
        added = register("added", LABEL.width + 3 + SLOPE.fraction)
        m.d.sync += [
            margin_2.eq(margin),
            negate_2.eq(negate_1),
            added.eq(Cat(half, constant_1).as_signed() + Mux(negate_1, margin, 0)),
        ]

        # 3 and 4: the line of the segment, times s; −(a·x + b) = ~a·x + x + ~b + 1
        line_slope = register("slope", SLOPE.width)
        line_margin = register("margin_3", MARGIN.width)
        line_rest = register("rest", len(added) + 1)
        value = register("value", max(MARGIN.width + SLOPE.width, len(line_rest)) + 1)
        m.d.sync += [
            line_slope.eq(slope ^ negate_2.as_signed()),
            line_margin.eq(margin_2),
            line_rest.eq(added + ((intercept ^ negate_2.as_signed()) << SLOPE.fraction)),
            value.eq(line_slope * line_margin + line_rest),
        ]

        # 5 and 6: the half for rounding has been added already, so dropping bits rounds half up
        rounded = value[_ROUND:].as_signed()
        residual = register("residual", RESIDUAL.width)
        delta = register("delta", DELTA.width)
        m.d.sync += [
            residual.eq(saturate(rounded, overflows(rounded, RESIDUAL), RESIDUAL)),
            residual_saturated.eq(overflows(rounded, RESIDUAL)),
            delta.eq((residual * factor + (1 << (_ROUND_DELTA - 1))) >> _ROUND_DELTA),
        ]
        return delta

    def _look_up(
        self, m: Module, bank: int, margin: Signal, shifts: tuple[Signal, Signal], next_segment: Signal
    ) -> tuple[Value, Value]:
        """Slope and intercept of the segment that contains ``margin``, a cycle later."""
        # Shift and clamp without a barrel shifter: every possible shift is gated by its bit of `here`, and ORed. The
        # segment is signed until its top bit is inverted; outside of the table it is the first or the last.
        here_bits, beyond = shifts
        bits = self._config.segment_bits
        sign = margin[-1]
        moved = [(margin >> shift)[: bits - 1] & here.replicate(bits - 1) for shift, here in enumerate(here_bits)]
        outside = ((margin[:-1] ^ sign.replicate(MARGIN.width - 1)) & beyond).any()
        segment = Signal(bits, name=f"segment_{bank}")
        m.d.comb += segment.eq(Cat(Mux(outside, ~sign.replicate(bits - 1), reduce(or_, moved)), ~sign))
        entry = data.StructLayout({"slope": signed(SLOPE.width), "intercept": signed(INTERCEPT.width)})
        table: Memory = Memory(shape=entry, depth=self._config.table_segments, init=[])
        m.submodules[f"table{bank}"] = table
        write, read = table.write_port(), table.read_port()
        m.d.comb += [
            write.addr.eq(next_segment),
            write.data.slope.eq(self.table_slope),
            write.data.intercept.eq(self.table_intercept),
            write.en.eq(self.table_intercept_strobe),
            read.addr.eq(segment),
        ]
        return read.data.slope, read.data.intercept
