"""Backward pass: from deltas and kept lines to exact gradients."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.datapath.lines import LinePosition
from p4sgd.hw.primitives import GATE, AdderTree, add, pipeline
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import DELTA, MAX_PRECISION
from p4sgd.hw.spec.timing import tree_latency

__all__ = ["GRADIENT_BITS", "Gradient", "GradientPort"]


GRADIENT_BITS = DELTA.width + (BANKS - 1).bit_length() + MAX_PRECISION
"""Signed width of an exact gradient: a sum of 8 products of a delta and an 8-bit feature."""


class GradientPort(wiring.Signature):
    """Exact gradients of one chunk of one micro-batch, seen from their source. No back-pressure.

    Members
    -------
    valid
        The other members are valid in this cycle.
    chunk
        Number of the chunk.
    final
        The micro-batch is the last of its mini-batch.
    last
        The chunk is the last of its micro-batch.
    values
        One exact gradient for each lane.
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
    """Exact gradients ``G_j = Σ_b δ_b · q[b, j]`` of deltas δ and features q, one plane of one chunk a cycle::

        deltas ──▶ FIFO ──▶ δ of the current micro-batch
                              │ −δ for the first plane of signed features
        line ──▶ gate: δ_b where bit (b, j) is set, else 0      on every lane j
                   │ 8 terms
                   ▼
                 AdderTree ──▶ Horner: G = 2·G + sum
                                 │ after the last plane
                                 ▼
                              gradients

    Throughput is one line a cycle, without a gap between micro-batches. The exception: gradients of the same chunk are
    at least ``spacing`` cycles apart, because the model cannot take them sooner. The first line is taken
    `BEGIN_LATENCY` cycles after the deltas came; gradients come `LATENCY` cycles after the last line of their chunk.

    Parameters
    ----------
    config
        Size of the worker.
    spacing
        Minimum number of cycles between gradients of the same chunk.

    Members
    -------
    lines
        Kept lines, in the order of the forward pass.
    deltas
        One `DELTA` for each sample of a micro-batch. None is the minimum of the format, whose negative does not fit it;
        the product of a residual and the unsigned mantissa of the learning rate never is. At most
        `WorkerConfig.in_flight` micro-batches may wait for their lines.
    precision, signed, chunks, micro_batches
        Settings of the run, stable. ``micro_batches`` is the number in a mini-batch.
    start
        Pulse before a run, while idle.
    gradients
        Gradients, chunk by chunk.
    began
        Pulse: the deltas of a micro-batch have left the FIFO.
    busy
        A micro-batch has its deltas and its last line has not been taken.
    took
        A line is being taken.
    first_line, last_line
        That line, or the next if none is being taken, is the first or last of its micro-batch.
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

        # Deltas wait here for their lines. The FIFO has room for all micro-batches in flight.
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

        # A chunk returns after as many lines as a micro-batch has. If these are fewer than `spacing`, the next
        # micro-batch waits for the missing cycles.
        owed = Signal(range(self._spacing))
        m.d.comb += self.lines.ready.eq(self.busy & (~self.first_line | (owed == 0)))
        with m.If(self.took & self.first_line):
            m.d.sync += owed.eq(self._spacing - 1)
        with m.Elif((self.took | self.first_line) & (owed != 0)):
            m.d.sync += owed.eq(owed - 1)

        # The line and its deltas get a register each, because of their fan-out: a bit of the line drives as many gates
        # as a delta has bits, a delta drives a gate on every lane. The sign plane is negated here, once for all lanes,
        # so that Horner's rule takes a single adder on each lane.
        line = Signal(config.line_bits, reset_less=True)
        held: Any = Signal(self.deltas.payload.shape(), reset_less=True)
        negative = Signal()
        m.d.comb += negative.eq(self.signed & position.first_plane)
        m.d.sync += line.eq(self.lines.payload)
        for bank in range(BANKS):
            m.d.sync += held[bank].eq(add(deltas[bank] ^ negative.as_signed(), 0, carry=negative))

        # The position of a line, delayed to match its sum.
        stages = 2 + tree_latency(BANKS)
        place = data.StructLayout({"first": 1, "last": 1, "final": 1, "last_chunk": 1, "chunk": config.chunk_bits})
        entry: Any = Signal(place, name="place0")
        m.d.comb += [
            entry.first.eq(position.first_plane),
            entry.last.eq(position.last_plane),
            entry.final.eq(position.last_micro_batch),
            entry.last_chunk.eq(position.last_chunk),
            entry.chunk.eq(position.chunk),
        ]
        valid = pipeline(m, self.took, stages, "valid")[-1]
        *_, now, later = pipeline(m, entry, stages + 1, "place", reset_less=True)
        m.d.sync += self.gradients.valid.eq(valid & now.last)
        m.d.comb += [
            self.gradients.chunk.eq(later.chunk),
            self.gradients.final.eq(later.final),
            self.gradients.last.eq(later.last_chunk),
        ]

        for lane in range(config.lanes):
            tree = AdderTree(BANKS, DELTA.width)
            m.submodules[f"tree{lane}"] = tree
            for bank in range(BANKS):
                gated = Signal(signed(DELTA.width), name=f"gated_{lane}_{bank}", reset_less=True, attrs=GATE)
                m.d.sync += gated.eq(Mux(line[bank * config.lanes + lane], held[bank], 0))
                m.d.comb += tree.i[bank].eq(gated)
            value = Signal(signed(GRADIENT_BITS), name=f"gradient_{lane}", reset_less=True)
            with m.If(valid):
                m.d.sync += value.eq(tree.o + Mux(now.first, 0, value << 1))
            m.d.comb += self.gradients.values[lane].eq(value)
        return m
