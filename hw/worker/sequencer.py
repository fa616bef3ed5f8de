"""The order of a run, and its number of micro-batches and chunks."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import MAX_PRECISION
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import COUNT_BITS, MAX_UNIT, UNIT_CHUNKS_BITS

__all__ = ["END_CYCLES", "Phase", "RunSizes", "Sequencer"]


_MICRO_BITS = 16
_MINI_BITS = 32
_CHUNK_BITS = 17
_PLANE_BITS = 4


class RunSizes(wiring.Component):
    """Multiplies the dimensions of a run, a bit of a factor each cycle, and checks that the worker has room for it.

    This happens once a run, so it is not worth a multiplier. ``done`` comes at most 42 cycles after ``start``; results
    are stable until the next start.

    Parameters
    ----------
    config
        Size of the worker.

    Members
    -------
    start
        Pulse: begin.
    micro_batches, mini_batches, chunks
        Micro-batches of a mini-batch, mini-batches of the run, chunks of an engine.
    precision, stored, stale
        Planes to read, planes in the image; whether the model memory holds two versions.
    unit_chunks, directory, no_lines
        log2 of the chunks of a unit; whether the image has directories; whether there then is an engine without lines.
    total_micro_batches, total_chunks
        Micro-batches of the run; chunks that an engine reads in it. Both are below 2^40, see `RunSettings`.
    impossible
        The run has no micro-batch, chunk or plane; or more planes than there are, or fewer, with directories; or units
        of more than 64 features; or its model, or the lines of a micro-batch, exceed what the worker holds. With
        directories only the host knows how many lines these are, but there must be some.
    done
        Pulse: the results are valid.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        super().__init__(
            {
                "start": In(1),
                "micro_batches": In(_MICRO_BITS),
                "mini_batches": In(_MINI_BITS),
                "chunks": In(_CHUNK_BITS),
                "precision": In(_PLANE_BITS),
                "stored": In(_PLANE_BITS),
                "unit_chunks": In(UNIT_CHUNKS_BITS),
                "directory": In(1),
                "no_lines": In(1),
                "stale": In(1),
                "total_micro_batches": Out(COUNT_BITS),
                "total_chunks": Out(COUNT_BITS),
                "impossible": Out(1),
                "done": Out(1),
            }
        )

    start: Signal
    micro_batches: Signal
    mini_batches: Signal
    chunks: Signal
    precision: Signal
    stored: Signal
    unit_chunks: Signal
    directory: Signal
    no_lines: Signal
    stale: Signal
    total_micro_batches: Signal
    total_chunks: Signal
    impossible: Signal
    done: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        factor = Signal(max(_MICRO_BITS, _CHUNK_BITS), reset_less=True)
        exhausted = Signal()  # factor is 0; computed while it is shifted, so that no comparison precedes the FSM
        addend = Signal(COUNT_BITS, reset_less=True)
        lines = Signal(_CHUNK_BITS + _PLANE_BITS, reset_less=True)  # of a micro-batch
        checks = Signal(9, reset_less=True)
        m.d.sync += [self.done.eq(0), exhausted.eq(factor[1:] == 0)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    factor.eq(self.micro_batches),
                    addend.eq(self.mini_batches),
                    exhausted.eq(0),
                ]
                with m.If(self.start):
                    m.d.sync += self.total_micro_batches.eq(0)
                    m.next = "MICRO_BATCHES"
            with m.State("MICRO_BATCHES"):
                m.d.sync += [factor.eq(factor >> 1), addend.eq(addend << 1)]
                with m.If(factor[0]):
                    m.d.sync += self.total_micro_batches.eq(self.total_micro_batches + addend)
                with m.If(exhausted):
                    m.d.sync += [
                        factor.eq(self.chunks),
                        addend.eq(self.total_micro_batches),
                        self.total_chunks.eq(0),
                        exhausted.eq(0),
                    ]
                    m.next = "CHUNKS"
            with m.State("CHUNKS"):
                m.d.sync += [factor.eq(factor >> 1), addend.eq(addend << 1)]
                with m.If(factor[0]):
                    m.d.sync += self.total_chunks.eq(self.total_chunks + addend)
                with m.If(exhausted):
                    m.d.sync += [
                        factor.eq(self.precision),
                        addend.eq(self.chunks),
                        lines.eq(0),
                        exhausted.eq(0),
                    ]
                    m.next = "LINES"
            with m.State("LINES"):
                m.d.sync += [factor.eq(factor >> 1), addend.eq(addend << 1)]
                with m.If(factor[0]):
                    m.d.sync += lines.eq(lines + addend)
                with m.If(exhausted):
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += checks.eq(
                    Cat(
                        self.total_chunks == 0,
                        lines == 0,
                        (lines > self._config.line_fifo_depth) & ~self.directory,
                        self.precision > self.stored,
                        (self.precision != self.stored) & self.directory,
                        self.no_lines & self.directory,
                        self.stored > MAX_PRECISION,
                        (self._config.lanes << self.unit_chunks) > MAX_UNIT,
                        (self.chunks << self.stale) > self._config.chunks,
                    )
                )
                m.next = "END"
            with m.State("END"):
                m.d.sync += [self.impossible.eq(checks.any()), self.done.eq(1)]
                m.next = "IDLE"
        return m


END_CYCLES = 4
"""Cycles from the last one that is counted to ``done``. By then the outputs of `Counters` include it."""


class Phase(enum.Enum, shape=2):
    """What a worker is doing, as the cycle counters tell it apart."""

    IDLE = 0
    MODEL = 1
    """The run is prepared, or the model is loaded, cleared or stored."""
    TRAIN = 2
    """Lines are read, or updates are outstanding."""
    FINISH = 3
    """Training is over: acknowledgements are outstanding, or an aborted run is cleaned up."""


class Sequencer(wiring.Component):
    """Finite state machine that takes a run through its phases::

        start ─▶ count ─▶ load | zero | keep ─▶ train ─▶ finish ─▶ (store) ─▶ end ─▶ done
                   │          └───────────┴────────┴─▶ abort ─▶ reset ────────▲
                   └─▶ refused ───────────────────────────────────────────────┘

    A phase begins with a one-cycle command to the engines. ``engines_idle`` falls within 3 cycles and rises when they
    have finished. An abort waits until no more data come from memory and then resets all that takes part in training.
    ``done`` comes `END_CYCLES` after the end of the run.

    Members
    -------
    start
        Level: the host wants a run.
    started
        Pulse: the run has started.
    done
        Pulse: the run has ended.
    idle
        No run is under way.
    phase
        Current phase.
    model_source, model_store
        A `ModelSource`; whether to store the model.
    count, counted
        Pulses to and from `RunSizes`.
    impossible
        With ``counted``: the run is refused.
    refused
        Pulse: a run was refused.
    end_early
        Level: end the run as soon as memory allows. A store is completed first, and is valid.
    load, zero, train, store, give_up
        Commands to the engines; the last is their ``abort``.
    aborting
        Data from memory are discarded.
    reset
        Resets all that takes part in training.
    labels_idle
        The reader of labels is idle.
    engines_idle
        All engines are idle.
    network_busy
        The endpoint has unacknowledged packets.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "start": In(1),
                "started": Out(1),
                "done": Out(1),
                "idle": Out(1),
                "phase": Out(Phase),
                "model_source": In(2),
                "model_store": In(1),
                "count": Out(1),
                "counted": In(1),
                "impossible": In(1),
                "refused": Out(1),
                "load": Out(1),
                "zero": Out(1),
                "train": Out(1),
                "store": Out(1),
                "end_early": In(1),
                "give_up": Out(1),
                "aborting": Out(1),
                "reset": Out(1),
                "labels_idle": In(1),
                "engines_idle": In(1),
                "network_busy": In(1),
            }
        )

    start: Signal
    started: Signal
    done: Signal
    idle: Signal
    phase: Signal
    model_source: Signal
    model_store: Signal
    count: Signal
    counted: Signal
    impossible: Signal
    refused: Signal
    load: Signal
    zero: Signal
    train: Signal
    store: Signal
    end_early: Signal
    give_up: Signal
    aborting: Signal
    reset: Signal
    labels_idle: Signal
    engines_idle: Signal
    network_busy: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        commands = [self.load, self.zero, self.train, self.store, self.give_up]
        pulses = [self.started, self.count, self.refused, self.aborting, *commands]
        m.d.sync += [pulse.eq(0) for pulse in pulses]
        # A command takes three cycles to reach an engine and lower its idle, which is ignored until then.
        issued = Signal(4)
        m.d.sync += issued.eq(issued >> 1)
        idle = self.engines_idle & (issued == 0)
        # A run that ends is done, and another may begin, when the counters show all of it.
        ends, ending = Signal(), Signal()
        ended = Signal(END_CYCLES)  # shift register
        m.d.sync += [ended.eq(Cat(ends, ended)), self.done.eq(ended[-1])]
        with m.If(ends):
            m.d.sync += ending.eq(1)
        with m.Elif(ended[-1]):
            m.d.sync += ending.eq(0)

        def issue(command: Signal) -> list[object]:
            return [command.eq(1), issued.eq(0b1111)]

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.phase.eq(Phase.IDLE), self.idle.eq(~ending)]
                # In the cycle of `started` the register file still shows the start that was taken.
                with m.If(self.start & ~self.started & ~self.done & ~ending):
                    m.d.sync += [self.started.eq(1), self.count.eq(1)]
                    m.next = "COUNT"
            with m.State("COUNT"):
                m.d.comb += self.phase.eq(Phase.MODEL)
                with m.If(self.counted & self.impossible):
                    m.d.sync += self.refused.eq(1)
                    m.d.comb += ends.eq(1)
                    m.next = "IDLE"
                with m.Elif(self.counted):
                    with m.If(self.model_source == ModelSource.MEMORY.value):
                        m.d.sync += issue(self.load)
                    with m.Elif(self.model_source == ModelSource.ZERO.value):
                        m.d.sync += issue(self.zero)
                    m.next = "MODEL"
            with m.State("MODEL"):
                m.d.comb += self.phase.eq(Phase.MODEL)
                with m.If(self.end_early & (issued == 0)):
                    m.d.sync += issue(self.give_up)
                    m.next = "ABORT"
                with m.Elif(idle):
                    m.d.sync += issue(self.train)
                    m.next = "TRAIN"
            with m.State("TRAIN"):
                m.d.comb += self.phase.eq(Phase.TRAIN)
                with m.If(self.end_early & (issued == 0)):
                    m.d.sync += issue(self.give_up)
                    m.next = "ABORT"
                with m.Elif(idle):
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += self.phase.eq(Phase.FINISH)
                with m.If(self.end_early):
                    m.d.sync += issue(self.give_up)
                    m.next = "ABORT"
                with m.Elif(~self.network_busy):
                    with m.If(self.model_store):
                        m.d.sync += issue(self.store)
                        m.next = "STORE"
                    with m.Else():
                        m.d.comb += ends.eq(1)
                        m.next = "IDLE"
            with m.State("STORE"):
                m.d.comb += self.phase.eq(Phase.MODEL)
                with m.If(idle):
                    m.d.comb += ends.eq(1)
                    m.next = "IDLE"
            with m.State("ABORT"):
                m.d.comb += self.phase.eq(Phase.FINISH)
                m.d.sync += self.aborting.eq(1)
                with m.If(idle & self.labels_idle):
                    m.d.sync += [self.reset.eq(1), issued.eq(0b1111)]
                    m.next = "RESET"
            with m.State("RESET"):
                m.d.comb += self.phase.eq(Phase.FINISH)
                with m.If(issued == 0):
                    m.d.sync += self.reset.eq(0)
                    m.d.comb += ends.eq(1)
                    m.next = "IDLE"
        return m
