"""Backward pass: from deltas and kept lines to exact gradients."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.datapath.lines import AbsentChunks, count_micro_batches, kept_layout
from p4sgd.hw.primitives import GATE, AdderTree, Component, add, pipeline
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import DELTA, MAX_PRECISION
from p4sgd.hw.spec.timing import tree_latency

__all__ = ["GRADIENT_BITS", "Gradient", "GradientPort"]


GRADIENT_BITS = DELTA.width + (BANKS - 1).bit_length() + MAX_PRECISION
"""Signed width of an exact gradient: a sum of 8 products of a delta and an 8-bit feature."""


class GradientPort(wiring.Signature):
    """Exact gradients of a chunk of a micro-batch, seen from their source. No back-pressure."""

    def __init__(self, config: WorkerConfig) -> None:
        ports = {
            "valid": Out(1),  # the other members are valid in this cycle
            "chunk": Out(config.chunk_bits),  # number of the chunk
            "final": Out(1),  # the micro-batch is the last of its mini-batch
            "last": Out(1),  # the chunk is the last of its micro-batch
            "values": Out(data.ArrayLayout(signed(GRADIENT_BITS), config.lanes)),  # one exact gradient for each lane
        }
        super().__init__(ports)


class Gradient(Component):
    """Exact gradients ``G_j = Σ_b δ_b · q[b, j]`` of deltas δ and features q, one plane of one chunk a cycle::

        deltas ──▶ FIFO ──▶ δ of the current micro-batch
                              │ −δ for plane 0 of signed features, 0 for chunks that are not listed
        line ──▶ gate: δ_b where bit (b, j) is set, else 0      on every lane j
                   │ 8 terms
                   ▼
                 AdderTree ──▶ Horner: G = 2·G + sum, or 4·G where a plane has no line
                                 │ after the last line of a chunk
                                 ▼
                              gradients

    Throughput is a line a cycle, but gradients are at least 2 cycles apart, those of the same chunk ``spacing`` cycles,
    3 or more, because the model cannot take them sooner. The first line is taken `BEGIN_LATENCY` cycles after the
    deltas came; gradients come `LATENCY` cycles after the last line of their chunk. In the last micro-batch of a
    mini-batch, whose update makes all weights final, chunks that are not listed have gradients of 0, each of which
    takes two cycles.
    """

    BEGIN_LATENCY = 2
    LATENCY = 1 + 1 + tree_latency(BANKS) + 1

    def __init__(self, config: WorkerConfig, *, spacing: int) -> None:
        self._config = config
        self._spacing = spacing
        ports = {
            # Kept lines and their places, in the order of the forward pass.
            "lines": In(stream.Signature(kept_layout(config))),
            # One `DELTA` for each sample of a micro-batch, whose negative fits, too: a residual times an unsigned
            # mantissa is no minimum. At most `WorkerConfig.in_flight` micro-batches may wait for their lines.
            "deltas": In(ValidSignature(data.ArrayLayout(signed(DELTA.width), BANKS))),
            # Settings of the run, stable. `micro_batches` is the number in a mini-batch.
            "signed": In(1),
            "micro_batches": In(16),
            "start": In(1),  # pulse before a run, while idle
            "gradients": Out(GradientPort(config)),  # gradients, chunk by chunk
            "began": Out(1),  # pulse: the deltas of a micro-batch have left the FIFO
            "busy": Out(1),  # a micro-batch has its deltas and its last line has not been taken
            "took": Out(1),  # a line is being taken
            # That line, or the next if none is being taken, is the first or last of its micro-batch.
            "first_line": Out(1),
            "last_line": Out(1),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        # The next line, and what is known of it by the time it is there.
        here: Any = Signal(kept_layout(config), reset_less=True)
        place = here.place
        valid = Signal()
        load = Signal()
        micro_batch_done = Signal()
        m.d.comb += [
            self.lines.ready.eq(~valid | self.took),
            load.eq(self.lines.valid & self.lines.ready),
            self.first_line.eq(place.first_plane & place.first_chunk),
            self.last_line.eq(place.last_plane & place.last_chunk),
            micro_batch_done.eq(self.took & self.last_line),
        ]
        with m.If(self.lines.ready):
            m.d.sync += valid.eq(self.lines.valid)
        with m.If(load):
            m.d.sync += here.eq(self.lines.payload)

        final = Signal(reset_less=True)  # the micro-batch is the last of its mini-batch
        count_micro_batches(m, self.micro_batches, self.start, micro_batch_done, final)

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

        # Chunks that are not listed are passed over in the last micro-batch, each in a cycle and as a line of its own.
        m.submodules.absent_chunks = absent = AbsentChunks(config)
        passes, passed_over, may_complete = Signal(), Signal(), Signal()
        arriving = self.lines.payload.place
        m.d.comb += [
            absent.start.eq(self.start),
            absent.load.eq(load & arriving.first_plane),
            absent.chunk.eq(arriving.chunk),
            absent.last.eq(arriving.last_chunk),
            absent.pass_over.eq(passed_over),
            passes.eq(absent.absent & final),
        ]
        goes = valid & self.busy
        m.d.comb += [
            passed_over.eq(goes & passes & may_complete),
            self.took.eq(goes & ~passes & (~place.last_plane | may_complete)),
        ]

        # Gradients of the same chunk are kept apart. Chunks come in ascending order, so those that complete from now on
        # have at least the number `completed` until the next micro-batch. What it was `spacing` cycles ago bounds all
        # that have completed since, as no more than one micro-batch can have ended.
        completed: Any = Signal(data.StructLayout({"chunk": config.chunk_bits, "odd": 1}))
        odd = Signal(reset_less=True)  # the number of the line's micro-batch
        chunk = Mux(passes, completed.chunk, place.chunk)
        completes = (self.took & place.last_plane) | passed_over
        with m.If(self.start):
            m.d.sync += [completed.eq(0), odd.eq(1)]
        with m.Else():
            with m.If(micro_batch_done):
                m.d.sync += [completed.chunk.eq(0), completed.odd.eq(~completed.odd)]
            with m.Elif(completes):
                m.d.sync += completed.chunk.eq(chunk + 1)
            with m.If(load & arriving.first_plane & arriving.first_chunk):
                m.d.sync += odd.eq(~odd)
        earlier = pipeline(m, completed, self._spacing - 2, "completed", reset_less=True)[-1]
        arriving_odd = odd ^ (arriving.first_plane & arriving.first_chunk)
        stays_apart, arrives_apart = (
            (micro_batch == earlier.odd) | (number < earlier.chunk)
            for micro_batch, number in ((odd, place.chunk), (arriving_odd, arriving.chunk))
        )
        m.d.sync += may_complete.eq(Mux(load, arrives_apart, stays_apart) & ~completes)

        # A register each, because of their fan-out. The sign plane is negated once for all lanes, so that Horner's rule
        # takes a single adder on each.
        line = Signal(config.line_bits, reset_less=True)
        held: Any = Signal(self.deltas.payload.shape(), reset_less=True)
        negative = Signal()
        m.d.comb += negative.eq(self.signed & place.top & ~passes)
        m.d.sync += line.eq(here.line)
        for bank in range(BANKS):
            delta = Mux(passes, 0, deltas[bank])
            m.d.sync += held[bank].eq(add(delta ^ negative.as_signed(), 0, carry=negative))

        # The place of a line, delayed to match its sum.
        stages = 2 + tree_latency(BANKS)
        flags = dict.fromkeys(("first", "last", "skips", "final", "last_chunk"), 1)
        entry: Any = Signal(data.StructLayout(flags | {"chunk": config.chunk_bits}), name="place0")
        m.d.comb += [
            entry.first.eq(place.first_plane | passes),
            entry.last.eq(place.last_plane | passes),
            entry.skips.eq(place.skips),
            entry.final.eq(final),
            entry.last_chunk.eq(place.last_chunk & ~passes),
            entry.chunk.eq(chunk),
        ]
        valid_sum = pipeline(m, self.took | passed_over, stages, "valid")[-1]
        *_, now, later = pipeline(m, entry, stages + 1, "place", reset_less=True)
        m.d.sync += self.gradients.valid.eq(valid_sum & now.last)
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
            before = Mux(now.first, 0, Mux(now.skips, value << 2, value << 1))
            with m.If(valid_sum):
                m.d.sync += value.eq(tree.o + before)
            m.d.comb += self.gradients.values[lane].eq(value)
        return m
