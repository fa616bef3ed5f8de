"""One engine: a memory port and the datapath it feeds."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.backward.gradient import Gradient
from p4sgd.hw.bus import axi4
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.forward.dot_product import DotProduct
from p4sgd.hw.forward.line_fifo import LineFIFO
from p4sgd.hw.memory.model_loader import ModelLoader
from p4sgd.hw.memory.model_storer import ModelStorer
from p4sgd.hw.memory.strided_reader import StridedReader
from p4sgd.hw.model.model import Model
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import DELTA
from p4sgd.hw.worker.chaining import Chaining
from p4sgd.hw.worker.settings import ENGINE_SETTINGS
from p4sgd.hw.worker.totals import COUNT_BITS

__all__ = ["Engine"]


class Engine(wiring.Component):
    """Reads lines and turns them into partial dot products and, when the deltas come back, into updated weights::

                  ┌────────┐ lines ┌────────────┐ dots
        memory ──▶│ reader ├──────▶│ DotProduct ├──────▶
                  └───┬────┘       └─┬────────▲─┘
                      │         kept │        │ w
                      │         ┌────▼─────┐  │
                      │         │ LineFIFO │  │
                      │         └────┬─────┘  │
                      │ model   ┌────▼─────┐ ┌┴──────┐
                      │ lines   │ Gradient ├▶│ Model │
                  ┌───▼────┐    └────▲─────┘ └▲─────┬┘
                  │ loader ├─────────┼────────┘     │ w
                  └────────┘         │ deltas ┌─────▼──┐
        memory ◀─────────────────────┼────────┤ storer │
                                     └──      └────────┘

    Commands (``load``, ``zero``, ``train``, ``store``) are one-cycle pulses, given while ``idle``.

    Members
    -------
    memory : Out(AXI4)
        Data as wide as a line.
    dots : Out(stream of ArrayLayout(signed(dot_bits), 8))
        Exact dot products, one item a micro-batch.
    deltas : In(stream of ArrayLayout(DELTA, 8))
        Answers in the same order.
    settings : In(ENGINE_SETTINGS)
    lines_address, model_address : In(64)
        Byte addresses, multiples of 4096.
    total_chunks : In(40)
        Chunks of the run.
    load, zero, train, store : In(1)
    idle : Out(1)
    weight_saturated, memory_error : Out(1)
        Pulses.
    took_line, lines_left, line_waiting, awaiting_sums : Out(1)
        For the counters: a line was taken; not all lines of the run were; one is there; a micro-batch awaits its sums
        and no backward pass is under way.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        flags = (
            "weight_saturated",
            "memory_error",
            "took_line",
            "lines_left",
            "line_waiting",
            "awaiting_sums",
        )
        super().__init__(
            {
                "memory": Out(axi4.Signature(data_bits=config.line_bits)),
                "dots": Out(stream.Signature(data.ArrayLayout(signed(config.dot_bits), BANKS))),
                "deltas": In(stream.Signature(data.ArrayLayout(signed(DELTA.width), BANKS))),
                "settings": In(ENGINE_SETTINGS),
                "lines_address": In(64),
                "model_address": In(64),
                "total_chunks": In(COUNT_BITS),
                "load": In(1),
                "zero": In(1),
                "train": In(1),
                "store": In(1),
                "idle": Out(1),
            }
            | {name: Out(1) for name in flags}
        )

    memory: Any
    dots: stream.Interface
    deltas: stream.Interface
    settings: data.View
    lines_address: Signal
    model_address: Signal
    total_chunks: Signal
    load: Signal
    zero: Signal
    train: Signal
    store: Signal
    idle: Signal
    weight_saturated: Signal
    memory_error: Signal
    took_line: Signal
    lines_left: Signal
    line_waiting: Signal
    awaiting_sums: Signal

    def elaborate(self, platform: object) -> Module:
        config = self._config
        settings = self.settings
        m = Module()
        m.submodules.reader = reader = StridedReader(config.line_bits)
        m.submodules.forward = forward = DotProduct(config)
        m.submodules.fifo = fifo = LineFIFO(config)
        m.submodules.backward = backward = Gradient(config, spacing=Model.UPDATE_SPACING)
        m.submodules.model = model = Model(config)
        m.submodules.loader = loader = ModelLoader(config)
        m.submodules.storer = storer = ModelStorer(config)
        m.submodules.chaining = chaining = Chaining(config)

        # Memory port: the reader owns the read channels, the storer the write channels.
        for channel, owner in (("ar", reader), ("r", reader), ("aw", storer), ("w", storer), ("b", storer)):
            wiring.connect(m, getattr(owner.memory, channel), wiring.flipped(getattr(self.memory, channel)))

        # Datapath.
        connect_stream(m, forward.kept, fifo.i)
        connect_stream(m, fifo.o, backward.lines)
        connect_stream(m, forward.dots, wiring.flipped(self.dots))
        connect_stream(m, wiring.flipped(self.deltas), backward.deltas)
        wiring.connect(m, backward.gradients, model.gradients)

        m.d.comb += [
            forward.precision.eq(settings.precision),
            forward.signed.eq(settings.signed),
            forward.chunks.eq(settings.chunks),
            forward.permit.eq(chaining.permit),
            forward.clear.eq(self.train),
            backward.precision.eq(settings.precision),
            backward.signed.eq(settings.signed),
            backward.chunks.eq(settings.chunks),
            backward.micro_batches.eq(settings.micro_batches),
            backward.clear.eq(self.train),
            model.gradient_shift.eq(settings.gradient_shift),
            model.shrink.eq(settings.shrink),
            model.threshold.eq(settings.threshold),
            chaining.clear.eq(self.train),
            chaining.chunks.eq(settings.chunks),
            chaining.micro_batches.eq(settings.micro_batches),
            chaining.took_chunk.eq(forward.took_chunk),
            chaining.updated.eq(model.updated),
            storer.chunks.eq(settings.chunks),
            storer.base.eq(self.model_address),
            self.weight_saturated.eq(model.saturated),
            self.memory_error.eq(reader.error | storer.error),
        ]

        # What the reader fetches goes to the forward pass, or to the loader while the model is loaded.
        loading = Signal()
        storing = Signal()
        m.d.comb += [
            forward.lines.payload.eq(reader.data.payload),
            loader.lines.payload.eq(reader.data.payload),
            forward.lines.valid.eq(reader.data.valid & ~loading),
            loader.lines.valid.eq(reader.data.valid & loading),
            reader.data.ready.eq(Mux(loading, loader.lines.ready, forward.lines.ready)),
        ]
        with m.If(self.load):
            m.d.comb += [
                reader.base.eq(self.model_address),
                reader.burst_beats.eq(1),
                reader.stride_beats.eq(1),
                reader.bursts.eq(settings.chunks << (config.weight_lines - 1).bit_length()),
            ]
        with m.Else():
            m.d.comb += [
                reader.base.eq(self.lines_address),
                reader.burst_beats.eq(settings.precision),
                reader.stride_beats.eq(settings.stored),
                reader.bursts.eq(self.total_chunks),
            ]
        m.d.comb += [
            reader.start.eq(self.load | self.train),
            model.load_clear.eq(self.load | self.zero),
            storer.start.eq(self.store),
        ]

        # The model is written by the loader, or cleared with zeros; it is read forward, or stored.
        zeroing = Signal()
        chunks_left = Signal(settings.chunks.shape())
        m.d.comb += [
            model.load.payload.eq(Mux(zeroing, 0, loader.chunks.payload.as_value())),
            model.load.valid.eq(zeroing | loader.chunks.valid),
            loader.chunks.ready.eq(model.load.ready & ~zeroing),
        ]
        with m.If(model.load.valid & model.load.ready):
            m.d.sync += chunks_left.eq(chunks_left - 1)
        with m.If(storing):
            wiring.connect(m, storer.weights, model.read)
            m.d.comb += forward.weights.data.eq(model.read.data)
        with m.Else():
            wiring.connect(m, forward.weights, model.read)
            m.d.comb += storer.weights.data.eq(model.read.data)

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.idle.eq(~(self.load | self.zero | self.train | self.store))
                m.d.sync += chunks_left.eq(settings.chunks)
                with m.If(self.load):
                    m.next = "LOAD"
                with m.Elif(self.zero):
                    m.next = "ZERO"
                with m.Elif(self.train):
                    m.next = "BEGIN"
                with m.Elif(self.store):
                    m.next = "STORE"
            with m.State("LOAD"):
                m.d.comb += loading.eq(1)
                with m.If(chunks_left == 0):
                    m.next = "IDLE"
            with m.State("ZERO"):
                m.d.comb += zeroing.eq(chunks_left != 0)
                with m.If(chunks_left == 0):
                    m.next = "IDLE"
            with m.State("BEGIN"):  # the reader is not busy before its first request
                with m.If(forward.took_chunk):
                    m.next = "TRAIN"
            with m.State("TRAIN"):
                with m.If(~reader.busy & chaining.settled):
                    m.next = "IDLE"
            with m.State("STORE"):
                m.d.comb += storing.eq(1)
                with m.If(storer.done):
                    m.next = "IDLE"

        self._observe(m, reader, forward, backward, chaining)
        return m

    def _observe(
        self, m: Module, reader: StridedReader, forward: DotProduct, backward: Gradient, chaining: Chaining
    ) -> None:
        """Derive the state that the counters see."""
        outstanding = Signal(range(self._config.line_fifo_depth + 2))  # forward passes whose deltas have not come
        took_deltas = self.deltas.valid & self.deltas.ready
        m.d.comb += [
            self.took_line.eq(forward.lines.valid & forward.lines.ready),
            self.lines_left.eq(reader.busy),
            self.line_waiting.eq(forward.lines.valid),
            self.awaiting_sums.eq((outstanding != 0) & ~backward.busy),
        ]
        with m.If(self.train):
            m.d.sync += outstanding.eq(0)
        with m.Else():
            m.d.sync += outstanding.eq(outstanding + chaining.took_last_chunk - took_deltas)
