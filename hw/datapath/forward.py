"""Forward: from lines and weights to exact partial dot products."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.datapath.lines import LinePosition
from p4sgd.hw.datapath.model import MODEL_READ_LATENCY, ReadPort
from p4sgd.hw.primitives import Accumulator, AdderTree, add, pipeline, tree_latency
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import MAX_PRECISION, WEIGHT

__all__ = ["DotProduct"]


_PLACE = ("first_plane", "first_chunk", "first_micro_batch", "last_micro_batch")


class DotProduct(wiring.Component):
    """``T_b = Σ_j q[b, j] · w[j]`` of one engine, one plane of one chunk a cycle, on every bank b::

        line ─┬───────────────────────────────────────────────▶ kept
              │ 2 cycles, while the weights of its chunk are read
              ▼
             gate: w_j where bit (b, j) is set, else 0
              │ lanes terms
              ▼
             AdderTree ──▶ Horner: h = 2·h + sum; −sum for the first plane of signed features
                             │ after the last plane of a chunk
                             ▼
                           Accumulator over chunks ──▶ dots

    Nothing behind a line that was taken can stall: whoever permits a micro-batch has room for its result. Throughput
    one line a cycle, also across chunks and micro-batches. Latency: `latency` cycles from the last line of a
    micro-batch to valid ``dots``.

    Members
    -------
    lines : In(stream of unsigned(line_bits))
        Planes most significant first, chunk by chunk, micro-batch by micro-batch.
    kept : Out(stream of unsigned(line_bits))
        Every line that is taken, in the cycle in which it is taken.
    weights : Out(ReadPort)
    dots : Out(flow of ArrayLayout(signed(dot_bits), 8))
    precision : In(4), signed : In(1), chunks : In(17), micro_batches : In(16)
        Settings; stable. ``micro_batches`` are those of a mini-batch.
    start : In(1)
        Pulse before a run, while idle.
    permit_micro_batch, permit_chunk : In(1)
        A micro-batch may begin; the weights of the next chunk may be read. Looked at with the first plane of the first
        chunk, and of every chunk; withdrawn only when that has been taken.
    took : Out(1)
        A line is being taken, whose place is:
    first_plane, first_chunk, first_micro_batch, last_micro_batch : Out(1)
        First of the chunk, of the micro-batch and of the mini-batch; last of the mini-batch. Of the next line while
        none is taken.
    last_line : Out(1)
        Last of the micro-batch, likewise.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._tree_latency = tree_latency(config.lanes)
        self._chunk_bits = config.plane_sum_bits + MAX_PRECISION
        super().__init__(
            {
                "lines": In(stream.Signature(config.line_bits)),
                "kept": Out(stream.Signature(config.line_bits)),
                "weights": Out(ReadPort(config)),
                "dots": Out(
                    ValidSignature(data.ArrayLayout(signed(config.dot_bits), BANKS)),
                ),
                "precision": In(4),
                "signed": In(1),
                "chunks": In(17),
                "micro_batches": In(16),
                "start": In(1),
                "permit_micro_batch": In(1),
                "permit_chunk": In(1),
                "took": Out(1),
            }
            | {flag: Out(1) for flag in (*_PLACE, "last_line")}
        )

    lines: stream.Interface
    kept: stream.Interface
    weights: Any
    dots: Any
    precision: Signal
    signed: Signal
    chunks: Signal
    micro_batches: Signal
    start: Signal
    permit_micro_batch: Signal
    permit_chunk: Signal
    took: Signal
    first_plane: Signal
    first_chunk: Signal
    first_micro_batch: Signal
    last_micro_batch: Signal
    last_line: Signal

    @staticmethod
    def latency(config: WorkerConfig) -> int:
        """Cycles from the last line of a micro-batch to its dots."""
        return MODEL_READ_LATENCY + 1 + tree_latency(config.lanes) + 1 + Accumulator.LATENCY

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        m.submodules.position = position = LinePosition(config)
        allowed = Signal()
        m.d.comb += [
            position.start.eq(self.start),
            position.step.eq(self.took),
            position.precision.eq(self.precision),
            position.chunks.eq(self.chunks),
            position.micro_batches.eq(self.micro_batches),
            *(getattr(self, flag).eq(getattr(position, flag)) for flag in _PLACE),
            self.last_line.eq(position.last_plane & position.last_chunk),
            allowed.eq(
                ~position.first_plane | (self.permit_chunk & (~position.first_chunk | self.permit_micro_batch)),
            ),
            self.kept.payload.eq(self.lines.payload),
            self.kept.valid.eq(self.lines.valid & allowed),
            self.lines.ready.eq(self.kept.ready & allowed),
            self.took.eq(self.lines.valid & self.lines.ready),
            self.weights.address.eq(position.chunk),
            self.weights.enable.eq(self.took),
        ]

        # The line, what is valid and what it is part of, in step with its weights and then with its sum.
        line = pipeline(m, self.lines.payload, MODEL_READ_LATENCY, "line", reset_less=True)[-1]
        place = data.StructLayout({"first_plane": 1, "last_plane": 1, "first_chunk": 1, "last_chunk": 1})
        here: Any = Signal(place)
        m.d.comb += [here[flag].eq(getattr(position, flag)) for flag in place.members]
        latency = MODEL_READ_LATENCY + 1 + self._tree_latency
        valid = pipeline(m, self.took, latency, "valid")[-1]
        now = pipeline(m, here, latency, "place", reset_less=True)[-1]
        chunk_done = Signal()
        chunk_first = Signal(reset_less=True)
        m.d.sync += [chunk_done.eq(valid & now.last_plane), chunk_first.eq(now.first_chunk)]
        done = valid & now.last_plane & now.last_chunk
        m.d.comb += self.dots.valid.eq(pipeline(m, done, 1 + Accumulator.LATENCY, "done")[-1])

        negative = now.first_plane & self.signed
        for bank in range(BANKS):
            tree = AdderTree(config.lanes, WEIGHT.width)
            accumulator = Accumulator(self._chunk_bits, config.dot_bits)
            m.submodules[f"tree{bank}"] = tree
            m.submodules[f"accumulator{bank}"] = accumulator
            for lane in range(config.lanes):
                gated = Signal(signed(WEIGHT.width), name=f"gated_{bank}_{lane}", reset_less=True)
                m.d.sync += gated.eq(Mux(line[bank * config.lanes + lane], self.weights.data[lane], 0))
                m.d.comb += tree.i[lane].eq(gated)
            # Horner's rule with a single adder: the first plane's 2·h is gated away, and a negative plane is inverted
            # with a carry in.
            horner = Signal(signed(self._chunk_bits), name=f"horner_{bank}", reset_less=True)
            doubled = Signal.like(horner, name=f"doubled_{bank}")
            addend = Signal.like(horner, name=f"addend_{bank}")
            m.d.comb += [
                doubled.eq(Mux(now.first_plane, 0, horner << 1)),
                addend.eq(tree.o ^ negative.as_signed()),
            ]
            with m.If(valid):
                m.d.sync += horner.eq(add(doubled, addend, carry=negative))
            m.d.comb += [
                accumulator.valid.eq(chunk_done),
                accumulator.first.eq(chunk_first),
                accumulator.i.eq(horner),
                self.dots.payload[bank].eq(accumulator.o),
            ]
        return m
