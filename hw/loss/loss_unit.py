"""Round 2: from sums and labels to deltas."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.loss.ports import TableWritePort
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, DELTA, INTERCEPT, LABEL, MARGIN, RATE_MANTISSA, RESIDUAL, SLOPE
from p4sgd.hw.spec.table import MAX_SHIFT, VALUE_FRACTION

__all__ = ["LossUnit"]

_STAGES = 10
_ROUND = VALUE_FRACTION - RESIDUAL.fraction


class LossUnit(wiring.Component):
    """``g = s·ψ(s·z − o) − c`` and ``δ = g · mantissa`` on eight samples at once.

    ψ is the loss table, one copy a bank. The stages, each ending in a register::

        1  z − s·o                      5  + intercept                    8  round
        2  times s, saturate            6  times s                        9  saturate g
        3  find and read the segment    7  − c                           10  g · mantissa
        4  slope · x

    One micro-batch a cycle; `LATENCY` cycles from ``sums`` to ``deltas``, FIFO included.

    Members
    -------
    sums : In(stream of ArrayLayout(ACTIVATION, 8))
    labels : In(stream of ArrayLayout(LABEL, 8))
        One item each makes one item of ``deltas``.
    deltas : Out(stream of ArrayLayout(DELTA, 8))
    label_sign, label_offset, label_constant : In(1)
        What the label is; see :class:`p4sgd.hw.spec.run.LabelMode`. Stable.
    mantissa : In(8)
        Of the learning rate; stable.
    table_shift : In(5)
        log2 of a segment's width; stable.
    table_write : In(TableWritePort)
        Not while sums are under way.
    saturated : Out(1)
        Pulse: a margin or a residual was saturated.
    """

    LATENCY = _STAGES + 2

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._depth = 16
        super().__init__(
            {
                "sums": In(stream.Signature(data.ArrayLayout(signed(ACTIVATION.width), BANKS))),
                "labels": In(stream.Signature(data.ArrayLayout(signed(LABEL.width), BANKS))),
                "deltas": Out(stream.Signature(data.ArrayLayout(signed(DELTA.width), BANKS))),
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
    deltas: stream.Interface
    label_sign: Signal
    label_offset: Signal
    label_constant: Signal
    mantissa: Signal
    table_shift: Signal
    table_write: Any
    saturated: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()

        # Sums and labels are taken together, when the FIFO is sure to have room for the result.
        room = Signal(range(self._depth + 1), init=self._depth)
        taken = Signal()
        m.d.comb += [
            taken.eq(self.sums.valid & self.labels.valid & (room != 0)),
            self.sums.ready.eq(taken),
            self.labels.ready.eq(taken),
        ]
        m.d.sync += room.eq(room - taken + (self.deltas.valid & self.deltas.ready))
        valid = [taken]
        for stage in range(_STAGES):
            later = Signal(name=f"valid{stage}")
            m.d.sync += later.eq(valid[-1])
            valid.append(later)

        m.submodules.results = results = SyncFIFOBuffered(width=BANKS * DELTA.width, depth=self._depth)
        margins = Signal(BANKS, reset_less=True)
        residuals = Signal(BANKS, reset_less=True)
        deltas = [self._bank(m, bank, margins[bank], residuals[bank]) for bank in range(BANKS)]
        m.d.comb += [
            self.saturated.eq((valid[2] & margins.any()) | (valid[9] & residuals.any())),
            results.w_data.eq(Cat(deltas)),
            results.w_en.eq(valid[-1]),
            self.deltas.payload.eq(results.r_data),
            self.deltas.valid.eq(results.r_rdy),
            results.r_en.eq(self.deltas.ready),
        ]
        return m

    def _bank(self, m: Module, bank: int, margin_saturated: Value, residual_saturated: Value) -> Signal:
        """Build one sample's pipeline; returns its delta."""

        def register(name: str, width: int) -> Signal:
            return Signal(signed(width), name=f"{name}_{bank}", reset_less=True)

        def delay(value: Signal, cycles: int) -> Signal:
            for cycle in range(cycles):
                later = Signal.like(value, name=f"{value.name}_delayed{cycle}", reset_less=True)
                m.d.sync += later.eq(value)
                value = later
            return value

        z = self.sums.payload[bank]
        y = self.labels.payload[bank]
        negative = Signal(name=f"negative_{bank}", reset_less=True)
        distance = register("distance", ACTIVATION.width + 1)
        constant = register("constant", LABEL.width)
        m.d.sync += [
            negative.eq(self.label_sign & y[-1]),
            constant.eq(Mux(self.label_constant, y, 0)),
        ]
        with m.If(~self.label_offset):
            m.d.sync += distance.eq(z)
        with m.Elif(self.label_sign & y[-1]):
            m.d.sync += distance.eq(z + y)
        with m.Else():
            m.d.sync += distance.eq(z - y)

        # s·z − o = s·(z − s·o)
        x = Signal(signed(len(distance) + 1), name=f"x_{bank}")
        m.d.comb += x.eq(Mux(negative, -distance, distance))
        top = x[MARGIN.width - 1 :]
        overflow = top.any() & ~top.all()
        margin = register("margin", MARGIN.width)
        m.d.sync += [
            margin.eq(Mux(overflow, Mux(x[-1], MARGIN.minimum, MARGIN.maximum), x)),
            margin_saturated.eq(overflow),
        ]

        # The segment, clamped to the table: all bits above the index must equal its sign.
        bits = self._config.segment_bits
        shifted = Signal(signed(MARGIN.width), name=f"shifted_{bank}")
        outside = Signal(name=f"outside_{bank}")
        segment = Signal(bits, name=f"segment_{bank}")
        m.d.comb += [
            shifted.eq(margin >> self.table_shift),
            outside.eq(shifted[bits - 1 :].any() & ~shifted[bits - 1 :].all()),
            segment.eq(
                Mux(
                    outside,
                    Mux(shifted[-1], 0, self._config.table_segments - 1),
                    Cat(shifted[: bits - 1], ~shifted[bits - 1]),
                )
            ),
        ]
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

        product = register("product", MARGIN.width + SLOPE.width)
        intercept = register("intercept", INTERCEPT.width)
        summed = register("summed", len(product) + 1)
        value = register("value", len(summed) + 1)
        difference = register("difference", len(value) + 1)
        rounded = register("rounded", len(difference) + 1 - _ROUND)
        residual = register("residual", RESIDUAL.width)
        delta = register("delta", DELTA.width)
        m.d.sync += [
            product.eq(delay(margin, 1) * read.data.slope),
            intercept.eq(read.data.intercept),
            summed.eq(product + (intercept << SLOPE.fraction)),
            value.eq(Mux(delay(negative, 4), -summed, summed)),
            difference.eq(value - (delay(constant, 5) << (VALUE_FRACTION - LABEL.fraction))),
            rounded.eq((difference + (1 << (_ROUND - 1))) >> _ROUND),
        ]
        high = rounded[RESIDUAL.width - 1 :]
        too_large = high.any() & ~high.all()
        m.d.sync += [
            residual.eq(Mux(too_large, Mux(rounded[-1], RESIDUAL.minimum, RESIDUAL.maximum), rounded)),
            residual_saturated.eq(too_large),
            delta.eq(residual * self.mantissa),
        ]
        return delta
