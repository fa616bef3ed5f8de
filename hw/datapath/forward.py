"""Forward pass: from lines and weights to the rounded dot products of units (Round 1)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.datapath.lines import LinePosition, kept_layout, place_layout
from p4sgd.hw.datapath.model import MODEL_READ_LATENCY, ReadPort, weights_layout
from p4sgd.hw.dsp import Base, DspAdder
from p4sgd.hw.primitives import AdderTree, Component, pipeline
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import MAX_PRECISION, ROUND_1_SHIFT, WEIGHT
from p4sgd.hw.spec.run import MAX_UNIT, UNIT_CHUNKS_BITS
from p4sgd.hw.spec.timing import forward_cascades, forward_stages, tree_latency

__all__ = ["DotProduct", "MaskedSum", "UnitAccumulator"]

_LOW = 32  # bits of the low half of a sum


class UnitAccumulator(Component):
    """Round 1: the sum of units' dot products, each rounded half up to a step, from those of their chunks.

    The first chunk of a unit comes with half a step added to it, so that rounding is clearing the bits below the step.
    That needs no adder and no cycle of its own: they are cleared where the next unit is added, and in the output::

        i ──▶ + ──▶ sum ─┬─▶ clear ──▶ o
              ▲          │
              └─ clear ◀─┘ before a unit is added

    The sum is too wide for one carry chain: the carry out of its low half enters the high half a cycle later. A chunk's
    dot product has ``in_width`` bits, the sum ``out_width``, and 7 fraction bits fewer. With ``whole_units`` every
    chunk is a unit, and the sum lacks the 7 bits that are always cleared.
    """

    LATENCY = 2

    def __init__(self, in_width: int, out_width: int, *, whole_units: bool) -> None:
        if out_width <= _LOW:
            raise ValueError(f"a sum of {out_width} bits needs no split accumulator")
        self._in_width = in_width
        self._out_width = out_width
        self._whole_units = whole_units
        ports = {
            "valid": In(1),  # `i` is added in this cycle
            "first": In(1),  # With `valid`: `i` starts a new sum.
            "first_of_unit": In(1),  # With `valid`: `i` is the first chunk of a unit; always with `first`.
            "i": In(signed(in_width)),  # dot product of a chunk
            # A step is bit 7 + `step` of `i`, which is bit `step` of `o`: 0 to 8; stable.
            "step": In(range(MAX_PRECISION + 1)),
            # The sum up to the chunk that came `LATENCY` cycles ago, the last of its unit; valid while no newer
            # chunk has come.
            "o": Out(signed(out_width)),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        below = 0 if self._whole_units else ROUND_1_SHIFT  # bits of the sum below the least step
        addend = self.i[ROUND_1_SHIFT - below :].as_signed()
        width = self._out_width + below
        low = Signal(_LOW + 1, reset_less=True)  # with the carry of the latest addition
        high = Signal(signed(width - _LOW), reset_less=True)
        high_addend = Signal(signed(max(1, len(addend) - _LOW)), reset_less=True)
        valid = Signal()
        first = Signal(reset_less=True)
        m.d.sync += [valid.eq(self.valid), first.eq(self.first), high_addend.eq(addend >> _LOW)]

        # Bits that survive rounding, among those that may be below a step.
        whole = Signal(below + MAX_PRECISION, reset_less=True)
        m.d.sync += whole.eq(Const(-1 << below, signed(len(whole))) << self.step)
        kept = Signal(_LOW)
        low_addend = Signal(_LOW)
        m.d.comb += [
            kept.eq(Mux(self.first_of_unit, Cat(low[: len(whole)] & whole, low[len(whole) : _LOW]), low[:_LOW])),
            low_addend.eq(addend),
        ]
        with m.If(self.valid):
            m.d.sync += low.eq(Mux(self.first, 0, kept) + low_addend)
        # The low half is one cycle ahead of the high half. `settled` is the low half delayed to match it, and rounded.
        settled = Signal(_LOW - below, reset_less=True)
        with m.If(valid):
            m.d.sync += settled.eq(Cat(low[: len(whole)] & whole, low[len(whole) : _LOW])[below:])
            with m.If(first):
                m.d.sync += high.eq(high_addend)
            with m.Else():
                m.d.sync += high.eq(high + high_addend + low[_LOW])
        m.d.comb += self.o.eq(Cat(settled, high))
        return m


class MaskedSum(Component):
    """Exact sum of the weights of a chunk whose bits are set, in cascades of adders::

        bits ──┬───────────┬─ delay ──┬─ delay ── …      weights of stages 0, 1, 2, …
               ▼           ▼          ▼
            DspAdder ─▶ DspAdder ─▶ DspAdder ─▶ … ─┐
            DspAdder ─▶ DspAdder ─▶ DspAdder ─▶ … ─┴─▶ AdderTree ──▶ o

    Each adder adds two lanes to the sum from the stage before. So every stage takes its bits and weights a cycle after
    the one before: bits are delayed here, weights in the addresses that they are read from (`ReadPort`). Throughput is
    a sum a cycle.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._lanes = config.lanes
        ports = {
            "bits": In(config.lanes),  # lanes whose weight is added
            "negative": In(1),  # with `bits`: it is subtracted
            "weights": In(weights_layout(config)),  # those of stage s come s cycles after their bits
            # The sum, `latency` cycles after its bits; a bit wider than that of a plane, as −2^31 is negated too.
            "o": Out(signed(config.plane_sum_bits + 1)),
        }
        super().__init__(ports)

    @staticmethod
    def latency(config: WorkerConfig) -> int:
        """Cycles from bits to their sum."""
        last_stage = forward_stages(config.lanes) - 1
        return last_stage + DspAdder.LATENCY + tree_latency(forward_cascades(config.lanes))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        stages, cascades = forward_stages(self._lanes), forward_cascades(self._lanes)
        width = self._lanes // stages
        negative = pipeline(m, self.negative, stages - 1, "negative", reset_less=True)
        before: list[DspAdder] = []
        for stage in range(stages):
            lowest = stage * width
            bits = pipeline(m, self.bits[lowest : lowest + width], stage, f"bits{stage}_", reset_less=True)[-1]
            adders = [DspAdder() for _ in range(cascades)]
            for cascade, adder in enumerate(adders):
                m.submodules[f"adder{stage}_{cascade}"] = adder
                a, b = 2 * cascade, 2 * cascade + 1
                m.d.comb += [
                    adder.a.eq(self.weights[lowest + a]),
                    adder.b.eq(self.weights[lowest + b]),
                    adder.clear_a.eq(~bits[a]),
                    adder.clear_b.eq(~bits[b]),
                    adder.negative.eq(negative[stage]),
                ]
                if before:
                    m.d.comb += [adder.base.eq(Base.CASCADE), adder.cascade_in.eq(before[cascade].cascade_out)]
            before = adders
        m.submodules.tree = tree = AdderTree(cascades, WEIGHT.width + (2 * stages).bit_length())
        m.d.comb += [term.eq(adder.sum) for term, adder in zip(tree.i, before, strict=True)]
        m.d.comb += self.o.eq(tree.o)
        return m


class DotProduct(Component):
    """Forward pass and Round 1: sums of the rounded dot products of units, one plane of one chunk a cycle.

    The exact dot product ``T = Σ_j q[b, j] · w[j]`` of features q and weights w over each unit is rounded half up to
    `ACTIVATION`::

        line ─┬───────────────────────────────────────────────▶ kept
              │ 2 cycles, while the first weights of its chunk are read
              ▼
             MaskedSum: sum of w_j where bit (b, j) is set; negative for plane 0 of signed features
              │
              ▼
             Horner: h = 2·h + sum, or 4·h where a plane has no line; begins with half a step in the first chunk of a
              │      unit, or 0
              │ after the last plane of a chunk
              ▼
             UnitAccumulator ──▶ dots

    A line that was taken is never held up: a micro-batch gets its permit only if there is room for its result.
    Throughput is a line a cycle; `latency` cycles after the last of a micro-batch its ``dots`` are valid. A chunk that
    is not listed takes a cycle in the first micro-batch of a mini-batch, a directory two.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._chunk_bits = config.plane_sum_bits + MAX_PRECISION
        ports = {
            # Planes, most significant first, chunk by chunk, micro-batch by micro-batch; and directories, if any.
            "lines": In(stream.Signature(config.line_bits)),
            # Every line that is taken but directories, in the cycle in which it is taken, with its place.
            "kept": Out(stream.Signature(kept_layout(config))),
            "weights": Out(ReadPort(config)),  # access to the model
            # For each sample the sum over the engine's units, with 16 + precision − signed fraction bits, the last of
            # 0.
            "dots": Out(ValidSignature(data.ArrayLayout(signed(config.dot_bits), BANKS))),
            # Settings of the run, stable: chunks of a micro-batch, log2 of those of a unit, micro-batches of a
            # mini-batch.
            "precision": In(4),
            "signed": In(1),
            "chunks": In(17),
            "unit_chunks": In(UNIT_CHUNKS_BITS),
            "micro_batches": In(16),
            "directory": In(1),
            "start": In(1),  # pulse before a run, while idle
            # The next micro-batch may begin. Tested for its first line, and not withdrawn before that has been taken.
            "permit_micro_batch": In(1),
            # The weights of the next chunk may be read. Tested likewise, for its first line, and to pass it over.
            "permit_chunk": In(1),
            # A line is being taken; a directory is.
            "took": Out(1),
            "took_directory": Out(1),
            # The next line must wait, behind a directory or for chunks that are passed over; one is passed over.
            "passes": Out(1),
            "passed_over": Out(1),
            # Place of that line or the next, and whether its micro-batch is the first or last of its mini-batch.
            "place": Out(place_layout(config)),
            "first_micro_batch": Out(1),
            "last_micro_batch": Out(1),
        }
        super().__init__(ports)

    @staticmethod
    def latency(config: WorkerConfig) -> int:
        """Cycles from the last line of a micro-batch to its dot products."""
        return MODEL_READ_LATENCY + MaskedSum.latency(config) + 1 + UnitAccumulator.LATENCY

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        m.submodules.position = position = LinePosition(config)
        place: Any = position.place
        allowed = Signal()
        absent = position.absent & position.first_micro_batch
        settings = ("precision", "chunks", "unit_chunks", "micro_batches", "directory")
        m.d.comb += [
            position.start.eq(self.start),
            position.step.eq(self.took),
            *(getattr(position, setting).eq(getattr(self, setting)) for setting in settings),
            position.directory_line.eq(self.lines.payload),
            position.directory_taken.eq(self.took_directory),
            position.pass_over.eq(self.passed_over),
            self.place.eq(place),
            self.first_micro_batch.eq(position.first_micro_batch),
            self.last_micro_batch.eq(position.last_micro_batch),
            self.passes.eq(~position.valid | absent),
            self.passed_over.eq(position.valid & absent & self.permit_chunk),
            allowed.eq(
                position.valid
                & ~absent
                & (~place.first_plane | (self.permit_chunk & (~place.first_chunk | self.permit_micro_batch))),
            ),
            self.kept.payload.line.eq(self.lines.payload),
            self.kept.payload.place.eq(place),
            self.kept.valid.eq(self.lines.valid & allowed),
            self.lines.ready.eq((self.kept.ready & allowed) | position.takes_directory),
            self.took.eq(self.lines.valid & self.kept.ready & allowed),
            self.took_directory.eq(self.lines.valid & position.takes_directory),
            self.weights.address.eq(place.chunk),
            self.weights.enable.eq(self.took),
        ]

        # The line and its sign, delayed to match its first weights; its valid flag and position, to match its sum.
        line = pipeline(m, self.lines.payload, MODEL_READ_LATENCY, "line", reset_less=True)[-1]
        negative = pipeline(m, place.top & self.signed, MODEL_READ_LATENCY, "negative", reset_less=True)[-1]
        flags = ("first_plane", "last_plane", "skips", "first_chunk", "last_chunk")
        here: Any = Signal(data.StructLayout(dict.fromkeys(flags, 1) | {"plane": 3, "first_of_unit": 1}))
        m.d.comb += [
            *(getattr(here, flag).eq(getattr(place, flag)) for flag in flags),
            here.plane.eq(position.plane),
            here.first_of_unit.eq(position.begins_unit),
        ]
        latency = MODEL_READ_LATENCY + MaskedSum.latency(config)
        valid = pipeline(m, self.took, latency, "valid")[-1]
        *_, before, now = pipeline(m, here, latency, "place", reset_less=True)
        chunk_done = Signal()
        chunk_first = Signal(reset_less=True)
        chunk_first_of_unit = Signal(reset_less=True)
        step = Signal(range(MAX_PRECISION + 1), reset_less=True)
        m.d.sync += [
            chunk_done.eq(valid & now.last_plane),
            chunk_first.eq(now.first_chunk),
            chunk_first_of_unit.eq(now.first_of_unit),
            step.eq(self.precision - self.signed),
        ]
        done = valid & now.last_plane & now.last_chunk
        m.d.comb += self.dots.valid.eq(pipeline(m, done, 1 + UnitAccumulator.LATENCY, "done")[-1])

        # Half a step, 2^(6 + precision − signed): Horner's rule doubles it for each later plane.
        half = Signal(ROUND_1_SHIFT + MAX_PRECISION, reset_less=True)
        begins = Mux(before.first_of_unit, 1 << (ROUND_1_SHIFT - 1), 0) << before.plane
        m.d.sync += half.eq(Mux(self.signed, begins, begins << 1))
        for bank in range(BANKS):
            plane = MaskedSum(config)
            accumulator = UnitAccumulator(self._chunk_bits, config.dot_bits, whole_units=config.lanes == MAX_UNIT)
            m.submodules[f"plane{bank}"] = plane
            m.submodules[f"accumulator{bank}"] = accumulator
            # Horner's rule: for the first line, 2·h is replaced by half a step or 0.
            horner = Signal(signed(self._chunk_bits), name=f"horner_{bank}", reset_less=True)
            with m.If(valid):
                m.d.sync += horner.eq(plane.o + Mux(now.first_plane, half, Mux(now.skips, horner << 2, horner << 1)))
            m.d.comb += [
                plane.bits.eq(line.word_select(bank, config.lanes)),
                plane.negative.eq(negative),
                plane.weights.eq(self.weights.data),
                accumulator.valid.eq(chunk_done),
                accumulator.first.eq(chunk_first),
                accumulator.first_of_unit.eq(chunk_first_of_unit),
                accumulator.step.eq(step),
                accumulator.i.eq(horner),
                self.dots.payload[bank].eq(accumulator.o),
            ]
        return m
