"""Forward pass: from lines and weights to exact dot products."""

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
    """Exact dot products ``T_b = Σ_j q[b, j] · w[j]`` of features q and weights w, one plane of one chunk a cycle::

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

    A line that was taken is never held up: a micro-batch gets its permit only if there is room for its result.
    Throughput is one line a cycle, also from chunk to chunk and from micro-batch to micro-batch. `latency` cycles after
    the last line of a micro-batch its ``dots`` are valid.

    Members
    -------
    lines
        Planes, most significant first, chunk by chunk, micro-batch by micro-batch.
    kept
        Every line that is taken, in the cycle in which it is taken.
    weights
        Access to the model.
    dots
        One exact dot product for each sample of a micro-batch, with 23 + precision − signed fraction bits.
    precision, signed, chunks, micro_batches
        Settings of the run, stable. ``micro_batches`` is the number in a mini-batch.
    start
        Pulse before a run, while idle.
    permit_micro_batch
        The next micro-batch may begin. Tested for the first plane of its first chunk, and not withdrawn before that
        plane has been taken.
    permit_chunk
        The weights of the next chunk may be read. Tested likewise, for the first plane of every chunk.
    took
        A line is being taken.
    first_plane, first_chunk, first_micro_batch, last_micro_batch
        That line, or the next if none is being taken, belongs to the first plane of its chunk, the first chunk of its
        micro-batch, the first or the last micro-batch of its mini-batch.
    last_line
        Likewise: it is the last of its micro-batch.
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
        """Cycles from the last line of a micro-batch to its dot products."""
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

        # The line, delayed to match its weights; its valid flag and position, delayed to match its sum.
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
                # Tools make the gate a synchronous reset of the register, so it takes no LUT.
                gated = Signal(signed(WEIGHT.width), name=f"gated_{bank}_{lane}", reset_less=True)
                m.d.sync += gated.eq(Mux(line[bank * config.lanes + lane], self.weights.data[lane], 0))
                m.d.comb += tree.i[lane].eq(gated)
            # Horner's rule with a single adder: 2·h is gated to 0 for the first plane, and a plane is subtracted as its
            # complement with a carry in.
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
