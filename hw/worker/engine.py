"""An engine: its memory ports and the datapath behind them."""

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, DomainRenamer, Module, Mux, ResetSignal, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import Axi4Signature
from p4sgd.hw.bus.stream import ValidSignature, connect_stream
from p4sgd.hw.datapath.backward import Gradient
from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.datapath.lines import LineFIFO
from p4sgd.hw.datapath.model import Model, ModelLoader, ModelStorer
from p4sgd.hw.datapath.strided_reader import StridedReader
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import DELTA
from p4sgd.hw.spec.run import COUNT_BITS, ENGINE_EVENTS

__all__ = ["COMMANDS", "ENGINE_SETTINGS", "Engine", "Scoreboard", "engine_state", "lines_reader"]

ENGINE_SETTINGS = data.StructLayout(
    {
        "format_precision": registers.FORMAT["precision"].bits,
        "format_stored": registers.FORMAT["stored"].bits,
        "format_signed": 1,
        "chunks": registers.CHUNKS["value"].bits,
        "format_unit_chunks": registers.FORMAT["unit_chunks"].bits,
        "format_directory": 1,
        "micro_batches": registers.MICRO_BATCHES["value"].bits,
        "rate_gradient_shift": registers.RATE["gradient_shift"].bits,
        "shrink": registers.SHRINK_FACTOR["value"].bits,
        "threshold": registers.THRESHOLD["value"].bits,
        "exempt": 1,
        "exempt_chunk": registers.EXEMPT["chunk"].bits,
        "exempt_lane": registers.EXEMPT["lane"].bits,
        "run_stale": 1,
    }
)
"""Settings of a run, named as fields of registers and stable; ``exempt``: the engine has a weight without penalties."""


COMMANDS = data.StructLayout(dict.fromkeys(("load", "zero", "train", "store", "abort"), 1))
"""Commands from the worker to its engines, pulses: fill the model from memory, or with zeros; train; write the model to
memory; stop, except for a store. After ``abort`` the engine is idle when no more comes from memory; a reset must
follow."""


def engine_state(config: WorkerConfig) -> data.StructLayout:
    """Layout of what the worker sees of an engine, all from registers."""
    return data.StructLayout(
        {
            "idle": 1,  # no command is under way
            # Pulses: a weight was saturated; a memory port got an error.
            "weight_saturated": 1,
            "memory_error": 1,
            "took_line": 1,  # a line was taken, or a directory
            "lines_left": 1,  # lines of the run are left; falls 2 cycles after the last was taken
            "line_waiting": 1,  # a line has come from memory
            "awaiting_sums": 1,  # if that line must wait, it is for sums that have not come
            # Micro-batches between the start of their forward pass and the start of their backward pass.
            "in_flight": range(config.in_flight + 1),
            "events": data.StructLayout(dict.fromkeys(ENGINE_EVENTS, 1)),  # pulses
        }
    )


def lines_reader(config: WorkerConfig) -> StridedReader:
    """The reader of a memory port of an engine."""
    return StridedReader(config.port_bits, fifo_beats=512)


class Scoreboard(wiring.Component):
    """Scoreboard of weights, by which a forward pass follows the backward pass before it chunk by chunk.

    The forward pass of a mini-batch may read a chunk as soon as the backward pass before has made its weights final.
    Both go through the chunks in order, so a count suffices: a final update earns a credit, the first micro-batch of a
    mini-batch spends one for every chunk. A run of C chunks begins with C credits::

        micro-batch     first          others           last backward pass
        credits         C ──▶ 0        0, not needed    0 ──▶ C

    Once all credits are back, every update is done. With ``stale`` a run begins with 2·C credits, so the forward pass
    may be a mini-batch ahead, on weights that lack one update: mini-batch k reads version k − 1, or 0 for the first
    two. Two versions are then in use, one in each half of the model memory. Version v + 1 overwrites version v − 1,
    which mini-batch v has read to its end before its last backward pass begins.
    """

    start: In(1)  # pulse before a run
    reload: In(1)  # pulse: the model is being loaded or cleared, in the lower half
    # Settings of the run, stable.
    stale: In(1)
    chunks: In(17)
    spend: In(1)  # pulse: the forward pass has begun a chunk in the first micro-batch of a mini-batch
    read_all: In(1)  # pulse: the forward pass has taken the last line of a mini-batch
    earn: In(1)  # pulse: a final update has written a chunk
    earned_last: In(1)  # with `earn`: it was the last chunk, so a version is complete
    credit: Out(1)  # at least one credit: the weights of the next chunk are final
    settled: Out(1)  # all credits are back: no update is outstanding
    # Halves of the model memory: for forward passes, and for final updates.
    read_half: Out(1)
    write_half: Out(1)

    def __init__(self, config: WorkerConfig) -> None:
        self._credit_bits = config.chunk_bits + 2
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        credits = Signal(self._credit_bits)
        all_credits = Signal(self._credit_bits, reset_less=True)
        m.d.sync += all_credits.eq(self.chunks << self.stale)
        m.d.comb += self.settled.eq(credits == all_credits)
        # `credit` is tested for every line, so it is a register instead of a comparison with 0.
        with m.If(self.start):
            m.d.sync += [credits.eq(all_credits), self.credit.eq(1)]
        with m.Elif(self.earn & ~self.spend):
            m.d.sync += [credits.eq(credits + 1), self.credit.eq(1)]
        with m.Elif(self.spend & ~self.earn):
            m.d.sync += [credits.eq(credits - 1), self.credit.eq(credits != 1)]

        # With `stale` halves alternate: readers change when they have read a mini-batch to its end, but not after the
        # first, because the second reads version 0 too; writers change when a version is complete.
        first_mini_batch = Signal()
        latest_half = Signal()  # that of the latest complete version
        with m.If(self.reload):
            m.d.sync += latest_half.eq(0)
        with m.If(self.start):
            m.d.sync += [
                first_mini_batch.eq(1),
                self.read_half.eq(latest_half),
                self.write_half.eq(latest_half ^ self.stale),
            ]
        with m.Else():
            with m.If(self.read_all):
                m.d.sync += first_mini_batch.eq(0)
                with m.If(self.stale & ~first_mini_batch):
                    m.d.sync += self.read_half.eq(~self.read_half)
            with m.If(self.earn & self.earned_last):
                m.d.sync += [latest_half.eq(self.write_half), self.write_half.eq(self.write_half ^ self.stale)]
        return m


class Engine(Component):
    """Reads lines, sends the dot products of its units, and updates its weights when the deltas come back::

                     ┌─────────┐ lines ┌────────────┐ dots
        memory(s) ──▶│ readers ├──────▶│ DotProduct ├──────▶
                     └────┬────┘       └─┬────────▲─┘
                          │         kept │        │ w
                          │         ┌────▼─────┐  │
                          │         │ LineFIFO │  │
                          │         └────┬─────┘  │
                          │ model   ┌────▼─────┐ ┌┴──────┐
                          │ beats   │ Gradient ├▶│ Model │
                      ┌───▼────┐    └────▲─────┘ └▲─────┬┘
                      │ loader ├─────────┼────────┘     │ w
                      └────────┘         │ deltas ┌─────▼──┐
        memory    ◀──────────────────────┼────────┤ storer │
                                         └──      └────────┘

    An engine is placed as a region of the chip: every input but those of the memory ports goes into a register, the
    reset too, and every output comes from one, but the length of a burst.

    A micro-batch begins only if fewer than `WorkerConfig.in_flight` others are between the starts of their passes. So
    there is always room for its dot products and deltas.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        ports = {
            # Memory port 0: its part of every line, and the model.
            "memory": Out(Axi4Signature(data_bits=config.port_bits)),
            # The other memory ports. Port i reads part i of every line.
            "extra_memory": Out(Axi4Signature(data_bits=config.port_bits, write=False)).array(config.ports - 1),
            # Rounded dot products (`DotProduct`), an item for each micro-batch.
            "dots": Out(ValidSignature(data.ArrayLayout(signed(config.dot_bits), BANKS))),
            # The deltas of the micro-batches, in the same order.
            "deltas": In(ValidSignature(data.ArrayLayout(signed(DELTA.width), BANKS))),
            "settings": In(ENGINE_SETTINGS),  # settings of the run
            # What is read in the run: chunks of all micro-batches or, if the image has directories, lines. Like all
            # settings it is stable from 4 cycles before it is used.
            "groups": In(COUNT_BITS),
            # Byte addresses, multiples of 4096; of the lines, one for each port.
            "lines_address": In(64).array(config.ports),
            "model_address": In(64),
            # Pulses. All but `abort` only while `state.idle`, which falls at most 3 cycles later.
            "commands": In(COMMANDS),
            "state": Out(engine_state(config)),  # what the worker sees of the engine
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        readers = [lines_reader(config) for _ in range(config.ports)]
        forward, fifo, model = DotProduct(config), LineFIFO(config), Model(config)
        backward = Gradient(config, spacing=Model.UPDATE_SPACING)
        loader, storer, scoreboard = ModelLoader(config), ModelStorer(config), Scoreboard(config)

        # The clock is the same, the reset a register.
        reset = Signal(init=1, reset_less=True)
        m.domains.engine = ClockDomain("engine", local=True)
        m.d.sync += reset.eq(ResetSignal("sync"))
        m.d.comb += [ClockSignal("engine").eq(ClockSignal("sync")), ResetSignal("engine").eq(reset)]
        parts: dict[str, Any] = {"forward": forward, "fifo": fifo, "backward": backward, "model": model}
        parts |= {"loader": loader, "storer": storer, "chaining": scoreboard}
        parts |= {f"reader{index}": reader for index, reader in enumerate(readers)}
        for name, part in parts.items():
            m.submodules[name] = DomainRenamer("engine")(part)

        # Inputs cross the chip, so they go into registers first. Those that are stable during a run may take some
        # cycles to settle before it: a constraint names their register.
        addresses = data.ArrayLayout(64, config.ports)
        fields = {"settings": ENGINE_SETTINGS, "groups": COUNT_BITS, "model_address": 64, "lines_address": addresses}
        stable: Any = Signal(data.StructLayout(fields), reset_less=True)
        settings, groups, model_address = stable.settings, stable.groups, stable.model_address
        lines_address = [stable.lines_address[index] for index in range(config.ports)]
        commands: Any = Signal(COMMANDS)
        deltas: Any = Signal(self.deltas.payload.shape(), reset_less=True)
        m.d.comb += backward.deltas.payload.eq(deltas)
        m.d.engine += [
            settings.eq(self.settings),
            model_address.eq(self.model_address),
            groups.eq(self.groups),
            *(here.eq(there) for here, there in zip(lines_address, self.lines_address, strict=True)),
            commands.eq(self.commands),
            backward.deltas.valid.eq(self.deltas.valid),
            deltas.eq(self.deltas.payload),
        ]

        # Datapath.
        connect_stream(m, forward.kept, fifo.i)
        connect_stream(m, fifo.o, backward.lines)
        connect_stream(m, forward.dots, wiring.flipped(self.dots))
        wiring.connect(m, backward.gradients, model.gradients)
        takes_chunk = forward.took & forward.place.first_plane
        begins = takes_chunk & forward.place.first_chunk  # a micro-batch
        ends = forward.took & forward.place.last_plane & forward.place.last_chunk
        m.d.comb += [
            forward.precision.eq(settings.format_precision),
            forward.directory.eq(settings.format_directory),
            *(part.signed.eq(settings.format_signed) for part in (forward, backward)),
            *(part.micro_batches.eq(settings.micro_batches) for part in (forward, backward)),
            *(part.chunks.eq(settings.chunks) for part in (forward, scoreboard, storer)),
            *(part.start.eq(commands.train) for part in (forward, backward, scoreboard)),
            forward.unit_chunks.eq(settings.format_unit_chunks),
            model.gradient_shift.eq(settings.rate_gradient_shift),
            model.shrink.eq(settings.shrink),
            model.threshold.eq(settings.threshold),
            model.exempt.eq(settings.exempt),
            model.exempt_chunk.eq(settings.exempt_chunk),
            model.exempt_lane.eq(settings.exempt_lane),
            model.write_half.eq(scoreboard.write_half),
            scoreboard.stale.eq(settings.run_stale),
            scoreboard.reload.eq(commands.load | commands.zero),
            scoreboard.spend.eq((takes_chunk & forward.first_micro_batch) | forward.passed_over),
            scoreboard.read_all.eq(ends & forward.last_micro_batch),
            scoreboard.earn.eq(model.updated),
            scoreboard.earned_last.eq(model.updated_last),
            forward.permit_chunk.eq(~forward.first_micro_batch | scoreboard.credit),
        ]

        # Micro-batches in flight: their dot products or deltas may need room in a FIFO.
        in_flight = Signal(range(config.in_flight + 1))
        awaited = Signal(range(config.in_flight + 1))  # of these, those whose deltas have not come
        m.d.engine += [
            in_flight.eq(in_flight + begins - backward.began),
            awaited.eq(awaited + begins - backward.deltas.valid),
        ]
        m.d.comb += forward.permit_micro_batch.eq(in_flight != config.in_flight)

        # For the counters: if the next line must wait, is it for sums or for the backward pass? Without the weights of
        # its chunk it is for sums while some of the mini-batch before have not come, with staleness of the one before
        # that. With them it is for the backward pass to make room, which waits for sums unless it is busy or has deltas
        # to fill its tables with.
        awaiting = Signal()
        may_miss = Signal.like(settings.micro_batches, reset_less=True)
        m.d.engine += may_miss.eq(Mux(settings.run_stale, settings.micro_batches, 0))
        lacks_weights = forward.place.first_plane & ~forward.permit_chunk
        idles = (awaited == in_flight) & ~backward.busy
        m.d.comb += awaiting.eq(Mux(lacks_weights, awaited > may_miss, idles & ~forward.passes))

        for port, reader in zip((self.memory, *self.extra_memory), readers, strict=True):
            for channel in ("ar", "r"):
                wiring.connect(m, getattr(reader.memory, channel), wiring.flipped(getattr(port, channel)))
        for channel in ("aw", "w", "b"):
            wiring.connect(m, getattr(storer.memory, channel), wiring.flipped(getattr(self.memory, channel)))
        loading, zeroing, aborting = Signal(), Signal(), Signal()
        # What is read passes to the forward pass or, while loading, to the loader; while aborting it is discarded.
        all_valid = Cat(reader.data.valid for reader in readers).all()
        m.d.comb += [
            forward.lines.payload.eq(Cat(reader.data.payload for reader in readers)),
            forward.lines.valid.eq(all_valid & ~loading & ~aborting),
            loader.beats.payload.eq(readers[0].data.payload),
            loader.beats.valid.eq(readers[0].data.valid & loading),
        ]
        for reader in readers:
            taken = Mux(loading, loader.beats.ready, forward.lines.ready & all_valid)
            m.d.comb += reader.data.ready.eq(taken | aborting)
        # They read the wanted planes of all chunks of the run, or all lines of an image with directories; or the
        # weights.
        weight_beats_bits = (config.weight_beats - 1).bit_length()
        for reader, address in zip(readers, lines_address, strict=True):
            m.d.comb += [
                reader.base.eq(address),
                reader.burst_beats.eq(Mux(settings.format_directory, 1, settings.format_precision)),
                reader.stride_beats.eq(Mux(settings.format_directory, 1, settings.format_stored)),
                reader.bursts.eq(groups),
                reader.start.eq(commands.train),
                reader.stop.eq(commands.abort),
            ]
            if reader is readers[0]:
                with m.If(commands.load):
                    m.d.comb += [
                        reader.base.eq(model_address),
                        reader.burst_beats.eq(1),
                        reader.stride_beats.eq(1),
                        reader.bursts.eq(settings.chunks << weight_beats_bits),
                        reader.start.eq(1),
                    ]

        # The loader writes the model, zeros too. The storer reads the latest weights.
        version = Signal(config.chunk_bits)
        m.d.comb += [
            version[-1].eq(scoreboard.read_half),
            storer.base.eq(model_address),
            storer.start.eq(commands.store),
            loader.zero.eq(commands.zero),
            model.load_clear.eq(commands.load | commands.zero),
            model.load.payload.eq(loader.halves.payload),
            model.load.valid.eq(zeroing | loader.halves.valid),
            loader.halves.ready.eq(model.load.ready),
            model.read.address.eq(forward.weights.address | version),
            model.read.enable.eq(forward.weights.enable),
            forward.weights.data.eq(model.read.data),
        ]
        wiring.connect(m, storer.weights, model.halves)
        halves_left = Signal(len(settings.chunks) + 1, reset_less=True)
        with m.If(model.load.valid & model.load.ready):
            m.d.engine += halves_left.eq(halves_left - 1)

        idle = Signal()
        loaded = (halves_left == 0) & ~model.load_busy
        reading = Cat(reader.busy for reader in readers).any()
        with m.FSM(domain="engine"):
            with m.State("IDLE"):
                m.d.comb += idle.eq(1)
                m.d.engine += halves_left.eq(settings.chunks << 1)
                with m.If(commands.load):
                    m.next = "LOAD"
                with m.Elif(commands.zero):
                    m.next = "ZERO"
                with m.Elif(commands.train):
                    m.next = "TRAIN"
                with m.Elif(commands.store):
                    m.next = "STORE"
            with m.State("LOAD"):
                m.d.comb += loading.eq(1)
                with m.If(commands.abort):
                    m.next = "ABORT"
                with m.Elif(loaded):
                    m.next = "IDLE"
            with m.State("ZERO"):
                m.d.comb += zeroing.eq(halves_left != 0)
                with m.If(loaded):
                    m.next = "IDLE"
            with m.State("TRAIN"):  # a reader is busy until its last line has spent a credit, so `settled` is not early
                with m.If(commands.abort):
                    m.next = "ABORT"
                with m.Elif(~reading & scoreboard.settled):
                    m.next = "IDLE"
            with m.State("STORE"):
                with m.If(storer.done):
                    m.next = "IDLE"
            with m.State("ABORT"):
                m.d.comb += aborting.eq(1)
                with m.If(~reading & ~commands.abort):
                    m.next = "IDLE"

        m.d.engine += [
            self.state.idle.eq(idle),
            self.state.weight_saturated.eq(model.saturated),
            self.state.memory_error.eq(Cat(reader.error for reader in readers).any() | storer.error),
            self.state.took_line.eq(forward.took | forward.took_directory),
            self.state.lines_left.eq(reading),
            self.state.line_waiting.eq(forward.lines.valid),
            self.state.awaiting_sums.eq(awaiting),
            self.state.in_flight.eq(in_flight),
            self.state.events.mini_batch_begins.eq(begins & forward.first_micro_batch),
            self.state.events.forward_begins.eq(begins),
            self.state.events.forward_ends.eq(ends),
            self.state.events.backward_begins.eq(backward.took & backward.first_line),
            self.state.events.backward_ends.eq(backward.took & backward.last_line),
            self.state.events.update_begins.eq(model.wrote_first),
            self.state.events.update_ends.eq(model.wrote_last),
        ]
        return m
