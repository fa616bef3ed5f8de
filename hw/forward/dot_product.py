"""Forward: from lines and weights to exact partial dot products."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.forward.accumulator import Accumulator
from p4sgd.hw.forward.adder_tree import AdderTree, tree_latency
from p4sgd.hw.model.ports import MODEL_READ_LATENCY, ReadPort
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import MAX_PRECISION, WEIGHT

__all__ = ["DotProduct"]


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
                           Accumulator over chunks ──▶ FIFO ──▶ dots

    A line is taken only when its result is sure to find room, so nothing behind stalls: the FIFO has an entry for each
    micro-batch under way. Throughput one line a cycle, also across chunks and micro-batches. Latency: `latency` cycles
    from the last line of a micro-batch to valid ``dots``.

    Members
    -------
    lines : In(stream of unsigned(line_bits))
        Planes most significant first, chunk by chunk, micro-batch by micro-batch.
    kept : Out(stream of unsigned(line_bits))
        Every line that is taken, in the cycle in which it is taken.
    weights : Out(ReadPort)
    dots : Out(stream of ArrayLayout(signed(dot_bits), 8))
    precision : In(4), signed : In(1), chunks : In(17)
        Settings; stable.
    permit : In(1)
        The weights of the next chunk may be read: looked at with the first plane of a chunk.
    took_chunk : Out(1)
        The first plane of a chunk is being taken.
    clear : In(1)
        Pulse before a run, while idle.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._tree_latency = tree_latency(config.lanes)
        self._chunk_bits = config.plane_sum_bits + MAX_PRECISION
        self._results = 16
        self.latency = MODEL_READ_LATENCY + 1 + self._tree_latency + 1 + Accumulator.LATENCY + 2
        super().__init__(
            {
                "lines": In(stream.Signature(config.line_bits)),
                "kept": Out(stream.Signature(config.line_bits)),
                "weights": Out(ReadPort(config)),
                "dots": Out(stream.Signature(data.ArrayLayout(signed(config.dot_bits), BANKS))),
                "precision": In(4),
                "signed": In(1),
                "chunks": In(17),
                "permit": In(1),
                "took_chunk": Out(1),
                "clear": In(1),
            }
        )

    lines: stream.Interface
    kept: stream.Interface
    weights: Any
    dots: stream.Interface
    precision: Signal
    signed: Signal
    chunks: Signal
    permit: Signal
    took_chunk: Signal
    clear: Signal

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()

        # Which line comes next, and whether it may come.
        plane = Signal(4)
        chunk = Signal(17)
        last_plane = Signal()
        last_chunk = Signal()
        taken = Signal()
        room = Signal(range(self._results + 1), init=self._results)
        allowed = Signal()
        m.d.comb += [
            last_plane.eq(plane + 1 == self.precision),
            last_chunk.eq(chunk + 1 == self.chunks),
            allowed.eq((plane != 0) | (self.permit & ((chunk != 0) | (room != 0)))),
            self.kept.payload.eq(self.lines.payload),
            self.kept.valid.eq(self.lines.valid & allowed),
            self.lines.ready.eq(self.kept.ready & allowed),
            taken.eq(self.lines.valid & self.lines.ready),
            self.took_chunk.eq(taken & (plane == 0)),
        ]
        begins = self.took_chunk & (chunk == 0)
        ends = self.dots.valid & self.dots.ready
        m.d.sync += room.eq(room - begins + ends)
        with m.If(self.clear):
            m.d.sync += [plane.eq(0), chunk.eq(0)]
        with m.Elif(taken):
            m.d.sync += plane.eq(plane + 1)
            with m.If(last_plane):
                m.d.sync += [plane.eq(0), chunk.eq(chunk + 1)]
                with m.If(last_chunk):
                    m.d.sync += chunk.eq(0)

        # The place of a line travels with it.
        place = data.StructLayout({"first_plane": 1, "last_plane": 1, "first_chunk": 1, "last_chunk": 1})
        line = self.lines.payload
        valid = taken
        now: Any = Signal(place)
        m.d.comb += [
            now.first_plane.eq(plane == 0),
            now.last_plane.eq(last_plane),
            now.first_chunk.eq(chunk == 0),
            now.last_chunk.eq(last_chunk),
            self.weights.address.eq(chunk),
            self.weights.enable.eq(taken),
        ]
        for stage in range(MODEL_READ_LATENCY):
            line_later = Signal(config.line_bits, name=f"line{stage}", reset_less=True)
            m.d.sync += line_later.eq(line)
            line = line_later
        for stage in range(MODEL_READ_LATENCY + 1 + self._tree_latency):
            valid_later = Signal(name=f"valid{stage}")
            now_later: Any = Signal(place, name=f"place{stage}", reset_less=True)
            m.d.sync += [valid_later.eq(valid), now_later.eq(now)]
            valid, now = valid_later, now_later
        chunk_done = Signal()
        chunk_first = Signal(reset_less=True)
        m.d.sync += [chunk_done.eq(valid & now.last_plane), chunk_first.eq(now.first_chunk)]
        done = valid & now.last_plane & now.last_chunk
        for stage in range(1 + Accumulator.LATENCY):
            done_later = Signal(name=f"done{stage}")
            m.d.sync += done_later.eq(done)
            done = done_later

        m.submodules.results = results = SyncFIFOBuffered(width=BANKS * config.dot_bits, depth=self._results)
        sums = data.View(self.dots.payload.shape(), results.w_data)
        for bank in range(BANKS):
            tree = AdderTree(config.lanes, WEIGHT.width)
            accumulator = Accumulator(self._chunk_bits, config.dot_bits)
            m.submodules[f"tree{bank}"] = tree
            m.submodules[f"accumulator{bank}"] = accumulator
            for lane in range(config.lanes):
                gated = Signal(signed(WEIGHT.width), name=f"gated_{bank}_{lane}", reset_less=True)
                m.d.sync += gated.eq(Mux(line[bank * config.lanes + lane], self.weights.data[lane], 0))
                m.d.comb += tree.i[lane].eq(gated)
            horner = Signal(signed(self._chunk_bits), name=f"horner_{bank}", reset_less=True)
            with m.If(valid):
                with m.If(~now.first_plane):
                    m.d.sync += horner.eq((horner << 1) + tree.o)
                with m.Elif(self.signed):
                    m.d.sync += horner.eq(-tree.o)
                with m.Else():
                    m.d.sync += horner.eq(tree.o)
            m.d.comb += [
                accumulator.valid.eq(chunk_done),
                accumulator.first.eq(chunk_first),
                accumulator.i.eq(horner),
                sums[bank].eq(accumulator.o),
            ]
        m.d.comb += [
            results.w_en.eq(done),
            self.dots.payload.eq(results.r_data),
            self.dots.valid.eq(results.r_rdy),
            results.r_en.eq(self.dots.ready),
        ]
        return m
