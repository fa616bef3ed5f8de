"""The order of a run."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.registers import ModelSource

__all__ = ["END_CYCLES", "Phase", "Sequencer"]

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
        Pulses to and from `Totals`.
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
