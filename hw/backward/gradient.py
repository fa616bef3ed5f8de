"""Backward: from deltas and kept lines to exact gradients."""

from itertools import pairwise
from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.backward.ports import GRADIENT_BITS, GradientPort
from p4sgd.hw.forward.adder_tree import AdderTree, tree_latency
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import DELTA

__all__ = ["Gradient"]


class Gradient(wiring.Component):
    """``G_j = Σ_b δ_b · q[b, j]``, one plane of one chunk a cycle::

        line ──▶ gate: δ_b where bit (b, j) is set, else 0      on every lane j
                   │ 8 terms
                   ▼
                 AdderTree ──▶ Horner: G = 2·G + sum; −sum for the first plane of signed features
                                 │ after the last plane
                                 ▼
                              gradients

    Back-to-back micro-batches lose no cycle, except that gradients of the same chunk are at least ``spacing`` cycles
    apart, because the model cannot take them sooner.
    Latency: `latency` cycles from the last line of a chunk to its gradients; throughput one line a cycle.

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
    deltas : In(stream of ArrayLayout(DELTA, 8))
    precision : In(4), signed : In(1), chunks : In(17), micro_batches : In(16)
        Settings; stable. ``micro_batches`` are those of a mini-batch.
    clear : In(1)
        Pulse before a run, while idle.
    gradients : Out(GradientPort)
    micro_batch_done : Out(1)
        Pulse: the last line of a micro-batch is being taken.
    busy : Out(1)
        The deltas of a micro-batch are here and its last line has not been taken.
    """

    def __init__(self, config: WorkerConfig, *, spacing: int) -> None:
        self._config = config
        self._spacing = spacing
        super().__init__(
            {
                "lines": In(stream.Signature(config.line_bits)),
                "deltas": In(stream.Signature(data.ArrayLayout(signed(DELTA.width), BANKS))),
                "precision": In(4),
                "signed": In(1),
                "chunks": In(17),
                "micro_batches": In(16),
                "clear": In(1),
                "gradients": Out(GradientPort(config)),
                "micro_batch_done": Out(1),
                "busy": Out(1),
            }
        )
        self.latency = 1 + tree_latency(BANKS) + 1

    lines: stream.Interface
    deltas: stream.Interface
    precision: Signal
    signed: Signal
    chunks: Signal
    micro_batches: Signal
    clear: Signal
    gradients: Any
    micro_batch_done: Signal
    busy: Signal

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()

        # Which line comes next.
        plane = Signal(4)
        chunk = Signal(17)
        micro_batch = Signal(16)
        last_plane = Signal()
        last_chunk = Signal()
        last_micro_batch = Signal()
        taken = Signal()
        m.d.comb += [
            last_plane.eq(plane + 1 == self.precision),
            last_chunk.eq(chunk + 1 == self.chunks),
            last_micro_batch.eq(micro_batch + 1 == self.micro_batches),
            taken.eq(self.lines.valid & self.lines.ready),
            self.micro_batch_done.eq(taken & last_plane & last_chunk),
        ]
        with m.If(self.clear):
            m.d.sync += [plane.eq(0), chunk.eq(0), micro_batch.eq(0)]
        with m.Elif(taken):
            m.d.sync += plane.eq(plane + 1)
            with m.If(last_plane):
                m.d.sync += [plane.eq(0), chunk.eq(chunk + 1)]
                with m.If(last_chunk):
                    m.d.sync += [chunk.eq(0), micro_batch.eq(micro_batch + 1)]
                    with m.If(last_micro_batch):
                        m.d.sync += micro_batch.eq(0)

        # Deltas of the micro-batch under way, and of the next one if they are early.
        deltas = Signal(self.deltas.payload.shape(), reset_less=True)
        early = Signal(self.deltas.payload.shape(), reset_less=True)
        have_early = Signal()
        came = self.deltas.valid & self.deltas.ready
        m.d.comb += self.deltas.ready.eq(~have_early)
        with m.If(~self.busy | self.micro_batch_done):
            m.d.sync += [
                deltas.eq(Mux(have_early, early, self.deltas.payload)),
                self.busy.eq(have_early | came),
                have_early.eq(0),
            ]
        with m.Elif(came):
            m.d.sync += [early.eq(self.deltas.payload), have_early.eq(1)]

        # Chunk k comes again after as many lines as a micro-batch has. If these are fewer than `spacing`, the cycles
        # that lack pass before the next micro-batch begins.
        owed = Signal(range(self._spacing))
        at_first = Signal()
        m.d.comb += [
            at_first.eq((plane == 0) & (chunk == 0)),
            self.lines.ready.eq(self.busy & (~at_first | (owed == 0))),
        ]
        with m.If(taken & at_first):
            m.d.sync += owed.eq(self._spacing - 1)
        with m.Elif((taken | at_first) & (owed != 0)):
            m.d.sync += owed.eq(owed - 1)

        # Gate, in step with the line's place.
        stages = tree_latency(BANKS) + 1
        place = data.StructLayout({"valid": 1, "first": 1, "last": 1, "final": 1, "chunk": config.chunk_bits})
        places: list[Any] = [Signal(place, name=f"place{stage}") for stage in range(stages)]
        m.d.sync += [
            places[0].valid.eq(taken),
            places[0].first.eq(plane == 0),
            places[0].last.eq(last_plane),
            places[0].final.eq(last_micro_batch),
            places[0].chunk.eq(chunk),
        ]
        m.d.sync += [later.eq(earlier) for earlier, later in pairwise(places)]
        place_out = places[-1]

        m.d.sync += [
            self.gradients.valid.eq(place_out.valid & place_out.last),
            self.gradients.chunk.eq(place_out.chunk),
            self.gradients.final.eq(place_out.final),
        ]
        for lane in range(config.lanes):
            tree = AdderTree(BANKS, DELTA.width)
            m.submodules[f"tree{lane}"] = tree
            for bank in range(BANKS):
                gated = Signal(signed(DELTA.width), name=f"gated_{lane}_{bank}", reset_less=True)
                bit = self.lines.payload[bank * config.lanes + lane]
                m.d.sync += gated.eq(Mux(bit, deltas[bank], 0))
                m.d.comb += tree.i[bank].eq(gated)
            value = Signal(signed(GRADIENT_BITS), name=f"gradient_{lane}", reset_less=True)
            with m.If(place_out.valid):
                with m.If(~place_out.first):
                    m.d.sync += value.eq((value << 1) + tree.o)
                with m.Elif(self.signed):
                    m.d.sync += value.eq(-tree.o)
                with m.Else():
                    m.d.sync += value.eq(tree.o)
            m.d.comb += self.gradients.values[lane].eq(value)
        return m
