"""The order of a run, and how many micro-batches and chunks it has.

How many micro-batches and chunks a run has, and whether the worker can do it.

The order of a run.
"""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import MAX_PRECISION
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import COUNT_BITS

__all__ = ["END_CYCLES", "Phase", "RunSizes", "Sequencer"]


_MICRO_BITS = 16
_MINI_BITS = 32
_CHUNK_BITS = 17
_PLANE_BITS = 4


class RunSizes(wiring.Component):
    """Multiplies the run's dimensions, one bit a cycle: no multiplier is spent on what is needed once a run.

    ``done`` comes at most 42 cycles after ``start``; the results stay until the next start.

    Parameters
    ----------
    config
        What the worker has room for.

    Members
    -------
    start : In(1)
        Pulse.
    micro_batches, mini_batches, chunks : In
        Micro-batches of a mini-batch, mini-batches of the run, chunks of an engine.
    precision, stored : In(4), stale : In(1)
        Planes to read and planes in the image; whether the model memory holds two versions.
    total_micro_batches, total_chunks : Out(40)
        Micro-batches of the run; chunks of an engine over the run. Both are below 2^40, see `RunSettings`.
    impossible : Out(1)
        There is no such run: it would have no micro-batch, chunk or plane, or planes that there are not; or its model
        or the lines of a micro-batch are more than the worker holds.
    done : Out(1)
        Pulse.
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
    stale: Signal
    total_micro_batches: Signal
    total_chunks: Signal
    impossible: Signal
    done: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        factor = Signal(max(_MICRO_BITS, _CHUNK_BITS), reset_less=True)
        exhausted = Signal()  # factor is 0, worked out while it is shifted
        addend = Signal(COUNT_BITS, reset_less=True)
        lines = Signal(_CHUNK_BITS + _PLANE_BITS, reset_less=True)  # of a micro-batch
        checks = Signal(6, reset_less=True)
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
                        lines > self._config.line_fifo_depth,
                        self.precision > self.stored,
                        self.stored > MAX_PRECISION,
                        (self.chunks << self.stale) > self._config.chunks,
                    )
                )
                m.next = "END"
            with m.State("END"):
                m.d.sync += [self.impossible.eq(checks.any()), self.done.eq(1)]
                m.next = "IDLE"
        return m


END_CYCLES = 4
"""Cycles from the last of a run, as counted, to ``done``: after them the counters show it (`Counters`)."""


class Phase(enum.Enum, shape=2):
    """What a worker is doing, for the cycle counters."""

    IDLE = 0
    MODEL = 1
    """Preparing the run, loading, clearing or storing the model."""
    TRAIN = 2
    """Lines are being taken, or updates are outstanding."""
    FINISH = 3
    """Training is over; the network has acknowledgements to collect, or what is left of a run is thrown away."""


class Sequencer(wiring.Component):
    """Takes a run through its phases::

        start ─▶ count ─▶ load | zero | keep ─▶ train ─▶ finish ─▶ (store) ─▶ end ─▶ done
                   │          └───────────┴────────┴─▶ abort ─▶ reset ────────▲
                   └─▶ refused ───────────────────────────────────────────────┘

    Each phase is a one-cycle command to the engines, which fall out of ``engines_idle`` within 3 cycles and return
    to it when they are through. A run that is aborted leaves nothing but the reset that all its parts get. At the end
    the counters get the cycles that they need to be shown as they are.

    Members
    -------
    start : In(1)
        Level: a run is wanted.
    started : Out(1)
        Pulse: the start was taken.
    done : Out(1)
        Pulse: the run has ended.
    idle : Out(1)
        No run is under way.
    phase : Out(Phase)
        Current phase.
    model_source : In(2)
        A `ModelSource`.
    model_store : In(1)
        Whether to store the model.
    count : Out(1), counted : In(1)
        Pulses to and from `RunSizes`.
    impossible : In(1)
        With ``counted``: there is no such run, it ends here.
    refused : Out(1)
        Pulse: so it does.
    end_early : In(1)
        Level: end the run as soon as memory allows; a store is completed first, and what was stored is good.
    load, zero, train, store, give_up : Out(1)
        Commands to the engines; the last is their ``abort``.
    aborting : Out(1), reset : Out(1)
        What comes from memory goes away; then, all that takes part in training is reset.
    labels_idle : In(1)
        So is the reader of labels.
    engines_idle : In(1)
        All engines are idle.
    network_busy : In(1)
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
        # A command takes three cycles to show in an engine's idle: wait them out before looking at it.
        issued = Signal(4)
        m.d.sync += issued.eq(issued >> 1)
        idle = self.engines_idle & (issued == 0)
        # What ends is done, and another may begin, when the counters show it.
        ends, ending = Signal(), Signal()
        ended = Signal(END_CYCLES)  # one bit after the other
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
                # `started` is high in the cycle in which the register file still shows the old start.
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
