"""Backward: from deltas and kept lines to exact gradients.

How gradients reach the model.

Backward: from deltas and kept lines to exact gradients.
"""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.datapath.lines import LinePosition
from p4sgd.hw.primitives import AdderTree, add, pipeline, tree_latency
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import DELTA, MAX_PRECISION

__all__ = ["GRADIENT_BITS", "Gradient", "GradientPort"]


GRADIENT_BITS = DELTA.width + (BANKS - 1).bit_length() + MAX_PRECISION
"""Signed width of an exact gradient: the sum of 8 products of a delta and an 8-bit feature."""


class GradientPort(wiring.Signature):
    """Exact gradients of one chunk of one micro-batch, seen from the gradient unit. No back-pressure.

    Members
    -------
    valid : Out(1)
    chunk : Out(chunk_bits)
    final : Out(1)
        This is the last micro-batch of its mini-batch.
    last : Out(1)
        This is the last chunk of its micro-batch.
    values : Out(ArrayLayout(signed(GRADIENT_BITS), lanes))
    """

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(
            {
                "valid": Out(1),
                "chunk": Out(config.chunk_bits),
                "final": Out(1),
                "last": Out(1),
                "values": Out(data.ArrayLayout(signed(GRADIENT_BITS), config.lanes)),
            }
        )


class Gradient(wiring.Component):
    """``G_j = Σ_b δ_b · q[b, j]``, one plane of one chunk a cycle::

        deltas ──▶ FIFO ──▶ δ of the micro-batch under way
                              │ −δ for the first plane of signed features
        line ──▶ gate: δ_b where bit (b, j) is set, else 0      on every lane j
                   │ 8 terms
                   ▼
                 AdderTree ──▶ Horner: G = 2·G + sum
                                 │ after the last plane
                                 ▼
                              gradients

    Back-to-back micro-batches lose no cycle, except that gradients of the same chunk are at least ``spacing`` cycles
    apart, because the model cannot take them sooner. The first line is taken `BEGIN_LATENCY` cycles after deltas came;
    `LATENCY` cycles from the last line of a chunk to its gradients; throughput one line a cycle.

    Parameters
    ----------
    config
        Size of the worker.
    spacing
        Fewest cycles between the gradients of the same chunk.

    Members
    -------
    lines : In(stream of unsigned(line_bits))
        Kept lines, in the order of the forward pass.
    deltas : In(flow of ArrayLayout(DELTA, 8))
        None is the least number of `DELTA`, whose negative is not in the format: a product with the unsigned mantissa
        of the learning rate never is. At most `WorkerConfig.in_flight` may be ahead of the lines.
    precision : In(4), signed : In(1), chunks : In(17), micro_batches : In(16)
        Settings; stable. ``micro_batches`` are those of a mini-batch.
    start : In(1)
        Pulse before a run, while idle.
    gradients : Out(GradientPort)
    began : Out(1)
        Pulse: the deltas of a micro-batch were taken out of the FIFO.
    busy : Out(1)
        The deltas of a micro-batch are here and its last line has not been taken.
    took : Out(1)
        A line is being taken, whose place is:
    first_line, last_line : Out(1)
        First and last of the micro-batch. Of the next line while none is taken.
    """

    BEGIN_LATENCY = 2
    LATENCY = 1 + 1 + tree_latency(BANKS) + 1

    def __init__(self, config: WorkerConfig, *, spacing: int) -> None:
        self._config = config
        self._spacing = spacing
        super().__init__(
            {
                "lines": In(stream.Signature(config.line_bits)),
                "deltas": In(ValidSignature(data.ArrayLayout(signed(DELTA.width), BANKS))),
                "precision": In(4),
                "signed": In(1),
                "chunks": In(17),
                "micro_batches": In(16),
                "start": In(1),
                "gradients": Out(GradientPort(config)),
                "began": Out(1),
                "busy": Out(1),
                "took": Out(1),
                "first_line": Out(1),
                "last_line": Out(1),
            }
        )

    lines: stream.Interface
    deltas: Any
    precision: Signal
    signed: Signal
    chunks: Signal
    micro_batches: Signal
    start: Signal
    gradients: Any
    began: Signal
    busy: Signal
    took: Signal
    first_line: Signal
    last_line: Signal

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        m.submodules.position = position = LinePosition(config)
        micro_batch_done = Signal()
        m.d.comb += [
            position.start.eq(self.start),
            position.step.eq(self.took),
            position.precision.eq(self.precision),
            position.chunks.eq(self.chunks),
            position.micro_batches.eq(self.micro_batches),
            self.took.eq(self.lines.valid & self.lines.ready),
            self.first_line.eq(position.first_plane & position.first_chunk),
            self.last_line.eq(position.last_plane & position.last_chunk),
            micro_batch_done.eq(self.took & self.last_line),
        ]

        # Deltas wait for their lines.
        m.submodules.waiting = waiting = SyncFIFO(width=BANKS * DELTA.width, depth=config.in_flight)
        deltas: Any = Signal(self.deltas.payload.shape(), reset_less=True)
        m.d.comb += [
            waiting.w_data.eq(self.deltas.payload),
            waiting.w_en.eq(self.deltas.valid),
            waiting.r_en.eq(~self.busy | micro_batch_done),
            self.began.eq(waiting.r_rdy & waiting.r_en),
        ]
        with m.If(waiting.r_en):
            m.d.sync += [deltas.eq(waiting.r_data), self.busy.eq(waiting.r_rdy)]

        # Chunk k comes again after as many lines as a micro-batch has. If these are fewer than `spacing`, the cycles
        # that lack pass before the next micro-batch begins.
        owed = Signal(range(self._spacing))
        m.d.comb += self.lines.ready.eq(self.busy & (~self.first_line | (owed == 0)))
        with m.If(self.took & self.first_line):
            m.d.sync += owed.eq(self._spacing - 1)
        with m.Elif((self.took | self.first_line) & (owed != 0)):
            m.d.sync += owed.eq(owed - 1)

        # A line and its deltas, for one cycle: a bit has as many gates as a delta has bits. Negation here, for all
        # lanes, leaves a single adder for Horner's rule on each of them.
        line = Signal(config.line_bits, reset_less=True)
        held: Any = Signal(self.deltas.payload.shape(), reset_less=True)
        negative = Signal()
        m.d.comb += negative.eq(self.signed & position.first_plane)
        m.d.sync += line.eq(self.lines.payload)
        for bank in range(BANKS):
            m.d.sync += held[bank].eq(add(deltas[bank] ^ negative.as_signed(), 0, carry=negative))

        # The place of a line, in step with its sum.
        stages = 2 + tree_latency(BANKS)
        place = data.StructLayout(
            {"valid": 1, "first": 1, "last": 1, "final": 1, "last_chunk": 1, "chunk": config.chunk_bits}
        )
        entry: Any = Signal(place, name="place0")
        m.d.sync += [
            entry.valid.eq(self.took),
            entry.first.eq(position.first_plane),
            entry.last.eq(position.last_plane),
            entry.final.eq(position.last_micro_batch),
            entry.last_chunk.eq(position.last_chunk),
            entry.chunk.eq(position.chunk),
        ]
        now = pipeline(m, entry, stages - 1, "place")[-1]
        m.d.sync += [
            self.gradients.valid.eq(now.valid & now.last),
            self.gradients.chunk.eq(now.chunk),
            self.gradients.final.eq(now.final),
            self.gradients.last.eq(now.last_chunk),
        ]

        for lane in range(config.lanes):
            tree = AdderTree(BANKS, DELTA.width)
            m.submodules[f"tree{lane}"] = tree
            for bank in range(BANKS):
                gated = Signal(signed(DELTA.width), name=f"gated_{lane}_{bank}", reset_less=True)
                m.d.sync += gated.eq(Mux(line[bank * config.lanes + lane], held[bank], 0))
                m.d.comb += tree.i[bank].eq(gated)
            value = Signal(signed(GRADIENT_BITS), name=f"gradient_{lane}", reset_less=True)
            with m.If(now.valid):
                m.d.sync += value.eq(tree.o + Mux(now.first, 0, value << 1))
            m.d.comb += self.gradients.values[lane].eq(value)
        return m
