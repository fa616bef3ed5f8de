"""Round 2: from sums and labels to deltas.

How the host fills the loss table.

Round 2: from sums and labels to deltas.
"""

from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.primitives import overflows, pipeline, saturate
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import (
    ACTIVATION,
    DELTA,
    INTERCEPT,
    LABEL,
    MARGIN,
    RATE_MANTISSA,
    RESIDUAL,
    SLOPE,
)
from p4sgd.hw.spec.run import MAX_SHIFT, VALUE_FRACTION

__all__ = ["LossUnit", "TableWritePort"]


class TableWritePort(wiring.Signature):
    """Writes of one segment, seen from the writer.

    Members
    -------
    enable : Out(1)
    index : Out(segment_bits)
    slope : Out(SLOPE), intercept : Out(INTERCEPT)
    """

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(
            {
                "enable": Out(1),
                "index": Out(config.segment_bits),
                "slope": Out(signed(SLOPE.width)),
                "intercept": Out(signed(INTERCEPT.width)),
            }
        )


_ROUND = VALUE_FRACTION - RESIDUAL.fraction

_LUT_INPUTS = 6

_TOTAL = ACTIVATION.width + 2
"""Bits of an activation and a label together."""

_EQUAL = range(MARGIN.width - 1, _TOTAL - 1, _LUT_INPUTS - 1)
"""Where they fit `MARGIN`, all bits from its sign up are equal: so many from each of these, which is a LUT each."""

assert VALUE_FRACTION - LABEL.fraction == SLOPE.fraction > _ROUND - 1, "a label has the fraction bits of an intercept"


class _Shifts(NamedTuple):
    """The width of a segment, decoded."""

    here: Signal
    """Bit i: it is 2^i; the last bit: so much that only the sign of a margin is left."""
    beyond: Signal
    """Bits of a margin, below its sign, that are above what the table covers: set where one differs from the sign."""


class LossUnit(wiring.Component):
    """``g = s·ψ(s·z − o) − c`` and ``δ = g · mantissa`` on eight samples at once.

    ψ is the loss table, one copy a bank. This is the way of the sums to the backward pass, so all that depends on the
    label alone is done before the sum comes: −(z + o) = ~(z + o − 1) and −(slope·x) = ~slope·x + x, and the −1 and the
    +x join what is added anyway. The stages, each ending in a register::

        label:  s      s·(−o)         half − c + s
                         │                 │
        1  x = ±(z + ────┘), saturate      │
        2  find and read the segment       + x where s = −1
        3  ±slope                 ±intercept + …
        4  slope · x + …
        5  saturate g
        6  g · mantissa

    One micro-batch every two cycles; `LATENCY` cycles from ``sums`` to ``deltas``. Nothing here waits for the backward
    pass, which has room for the deltas of every micro-batch in flight.

    Members
    -------
    sums : In(stream of ArrayLayout(ACTIVATION, 8))
    labels : In(stream of ArrayLayout(LABEL, 8))
        One item each makes one item of ``deltas``.
    deltas : Out(flow of ArrayLayout(DELTA, 8))
    label_sign, label_offset, label_constant : In(1)
        What the label is; see :class:`p4sgd.hw.spec.run.LabelMode`. Stable from before the first label comes.
    mantissa : In(8)
        Of the learning rate; stable.
    table_shift : In(5)
        log2 of a segment's width; stable.
    table_write : In(TableWritePort)
        Not while sums are under way.
    saturated : Out(1)
        Pulse: a margin or a residual was saturated.
    """

    LATENCY = 6

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        super().__init__(
            {
                "sums": In(stream.Signature(data.ArrayLayout(signed(ACTIVATION.width), BANKS))),
                "labels": In(stream.Signature(data.ArrayLayout(signed(LABEL.width), BANKS))),
                "deltas": Out(ValidSignature(data.ArrayLayout(signed(DELTA.width), BANKS))),
                "label_sign": In(1),
                "label_offset": In(1),
                "label_constant": In(1),
                "mantissa": In(RATE_MANTISSA.width),
                "table_shift": In(MAX_SHIFT.bit_length()),
                "table_write": In(TableWritePort(config)),
                "saturated": Out(1),
            }
        )

    sums: stream.Interface
    labels: stream.Interface
    deltas: Any
    label_sign: Signal
    label_offset: Signal
    label_constant: Signal
    mantissa: Signal
    table_shift: Signal
    table_write: Any
    saturated: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()

        # A label is prepared as soon as it is there, and waits for its sum.
        prepared = Signal()
        prepare = Signal()
        taken = Signal()
        m.d.comb += [
            prepare.eq(self.labels.valid & ~prepared),
            self.labels.ready.eq(~prepared),
            taken.eq(self.sums.valid & prepared),
            self.sums.ready.eq(prepared),
        ]
        with m.If(prepare):
            m.d.sync += prepared.eq(1)
        with m.Elif(taken):
            m.d.sync += prepared.eq(0)
        valid = pipeline(m, taken, self.LATENCY, "valid")

        margins = [Signal(len(_EQUAL), name=f"margin_saturated_{bank}", reset_less=True) for bank in range(BANKS)]
        residuals = Signal(BANKS, reset_less=True)
        shifts = self._decode_shift(m)
        deltas = [self._bank(m, bank, prepare, shifts, margins[bank], residuals[bank]) for bank in range(BANKS)]
        m.d.comb += [
            self.saturated.eq((valid[1] & Cat(margins).any()) | (valid[5] & residuals.any())),
            self.deltas.payload.eq(Cat(deltas)),
            self.deltas.valid.eq(valid[-1]),
        ]
        return m

    def _decode_shift(self, m: Module) -> _Shifts:
        """Once for all banks, for it is a setting."""
        most = MARGIN.width - 1
        shifts = _Shifts(Signal(most + 1, reset_less=True), Signal(most, reset_less=True))
        covered = self._config.segment_bits - 1
        m.d.sync += [
            shifts.here.eq(Cat(*(self.table_shift == shift for shift in range(most)), self.table_shift >= most)),
            shifts.beyond.eq(Cat(self.table_shift <= place - covered for place in range(most))),
        ]
        return shifts

    def _bank(
        self,
        m: Module,
        bank: int,
        prepare: Signal,
        shifts: _Shifts,
        margin_saturated: Value,
        residual_saturated: Value,
    ) -> Signal:
        """Build one sample's pipeline; returns its delta."""

        def register(name: str, width: int) -> Signal:
            return Signal(signed(width), name=f"{name}_{bank}", reset_less=True)

        # The label: whether s = −1; s·(−o), one less where s = −1; −c with the 1 that a negation lacks.
        y = self.labels.payload[bank]
        z = self.sums.payload[bank]
        negate = Signal(name=f"negate_{bank}", reset_less=True)
        offset = register("offset", LABEL.width + 1)
        constant = register("constant", LABEL.width + 2)
        negative = Signal(name=f"negative_{bank}")
        lacking = Cat(~negative, negative)  # −y + (s = −1) = ~y + 1 + (s = −1)
        m.d.comb += negative.eq(self.label_sign & y[-1])
        with m.If(prepare):
            m.d.sync += [
                negate.eq(negative),
                offset.eq((Mux(self.label_offset, ~y, -1) + 1) ^ negative.as_signed()),
                constant.eq(Mux(self.label_constant, ~y, -1) + lacking),
            ]

        # 1: s·z − o = s·(z + s·(−o)). The flags are kept apart and asked one after the other: one of them all would
        # be a LUT more in a row.
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

        # 2: the segment, and all that is added besides the table's line
        slope, intercept = self._look_up(m, bank, margin, shifts)
        margin_2 = register("margin_2", MARGIN.width)
        negate_2 = Signal(name=f"negate_2_{bank}", reset_less=True)
        half = Const(1 << (_ROUND - 1), SLOPE.fraction)
        added = register("added", LABEL.width + 3 + SLOPE.fraction)
        m.d.sync += [
            margin_2.eq(margin),
            negate_2.eq(negate_1),
            added.eq(Cat(half, constant_1).as_signed() + Mux(negate_1, margin, 0)),
        ]

        # 3 and 4: the table's line, times s; −(a·x + b) = ~a·x + x + ~b + 1
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

        # 5 and 6: the half to round by is in already
        rounded = value[_ROUND:].as_signed()
        residual = register("residual", RESIDUAL.width)
        delta = register("delta", DELTA.width)
        m.d.sync += [
            residual.eq(saturate(rounded, overflows(rounded, RESIDUAL), RESIDUAL)),
            residual_saturated.eq(overflows(rounded, RESIDUAL)),
            delta.eq(residual * self.mantissa),
        ]
        return delta

    def _look_up(self, m: Module, bank: int, margin: Signal, shifts: _Shifts) -> tuple[Value, Value]:
        """Slope and intercept of the segment that ``margin`` lies in, a cycle later."""
        # Clamped to the table: its segments are numbered by a signed integer of so many bits.
        bits = self._config.segment_bits
        sign = margin[-1]
        moved = [(margin >> shift)[: bits - 1] & here.replicate(bits - 1) for shift, here in enumerate(shifts.here)]
        outside = ((margin[:-1] ^ sign.replicate(MARGIN.width - 1)) & shifts.beyond).any()
        segment = Signal(bits, name=f"segment_{bank}")
        m.d.comb += segment.eq(Cat(Mux(outside, ~sign.replicate(bits - 1), reduce(or_, moved)), ~sign))
        entry = data.StructLayout({"slope": signed(SLOPE.width), "intercept": signed(INTERCEPT.width)})
        table: Memory = Memory(shape=entry, depth=self._config.table_segments, init=[])
        m.submodules[f"table{bank}"] = table
        write, read = table.write_port(), table.read_port()
        m.d.comb += [
            write.addr.eq(self.table_write.index),
            write.data.slope.eq(self.table_write.slope),
            write.data.intercept.eq(self.table_write.intercept),
            write.en.eq(self.table_write.enable),
            read.addr.eq(segment),
        ]
        return read.data.slope, read.data.intercept
