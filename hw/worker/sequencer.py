"""The order of a run, and its number of micro-batches and chunks."""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.register_file import COUNTER_BITS, EventCounters
from p4sgd.hw.primitives import Component, hold
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, MAX_PRECISION
from p4sgd.hw.spec.packet import DropReason
from p4sgd.hw.spec.registers import ModelSource, counters
from p4sgd.hw.spec.run import COUNT_BITS, MAX_UNIT, UNIT_CHUNKS_BITS
from p4sgd.hw.worker.engine import COMMANDS

__all__ = ["END_CYCLES", "Counters", "Phase", "RunSizes", "Sequencer"]

_MICRO_BITS, _MINI_BITS, _CHUNK_BITS, _PLANE_BITS = 16, 32, 17, 4


class RunSizes(wiring.Component):
    """Multiplies the dimensions of a run, a bit of a factor each cycle, and checks that the worker has room for it.

    ``done`` comes at most 42 cycles after ``start``; results are stable until the next start.
    """

    start: In(1)  # pulse: begin
    # Micro-batches of a mini-batch, mini-batches of the run, chunks of an engine.
    micro_batches: In(_MICRO_BITS)
    mini_batches: In(_MINI_BITS)
    chunks: In(_CHUNK_BITS)
    # Planes to read, planes in the image; whether the model memory holds two versions.
    format_precision: In(_PLANE_BITS)
    format_stored: In(_PLANE_BITS)
    run_stale: In(1)
    # log2 of the chunks of a unit; whether the image has directories; whether there then is an engine without lines.
    format_unit_chunks: In(UNIT_CHUNKS_BITS)
    format_directory: In(1)
    no_lines: In(1)
    # Largest magnitude of a partial; whether an address is no multiple of `PAGE_BYTES`.
    partial_limit: In(ACTIVATION.width - 1)
    misplaced: In(1)
    # Micro-batches of the run; chunks that an engine reads in it. Both are below 2^40, see `RunSettings`.
    total_micro_batches: Out(COUNT_BITS)
    total_chunks: Out(COUNT_BITS)
    # The run has no micro-batch, chunk or plane; more planes than there are, or fewer, with directories; units of more
    # than 64 features; partials that may only be 0; an address that is `misplaced`; or its model, or the lines of a
    # micro-batch, exceed the worker. With directories only the host knows how many lines these are, but there must be
    # some.
    impossible: Out(1)
    done: Out(1)  # pulse: the results are valid

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        factor = Signal(max(_MICRO_BITS, _CHUNK_BITS), reset_less=True)
        exhausted = Signal()  # factor is 0; computed while it is shifted, so that no comparison precedes the FSM
        addend = Signal(COUNT_BITS, reset_less=True)
        lines = Signal(_CHUNK_BITS + _PLANE_BITS, reset_less=True)  # of a micro-batch
        checks = Signal(11, reset_less=True)
        total_micro_batches, total_chunks = hold(m, self.total_micro_batches), hold(m, self.total_chunks)
        m.d.sync += [self.done.eq(0), exhausted.eq(factor[1:] == 0)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    factor.eq(self.micro_batches),
                    addend.eq(self.mini_batches),
                    exhausted.eq(0),
                ]
                with m.If(self.start):
                    m.d.sync += total_micro_batches.eq(0)
                    m.next = "MICRO_BATCHES"
            with m.State("MICRO_BATCHES"):
                m.d.sync += [factor.eq(factor >> 1), addend.eq(addend << 1)]
                with m.If(factor[0]):
                    m.d.sync += total_micro_batches.eq(total_micro_batches + addend)
                with m.If(exhausted):
                    m.d.sync += [
                        factor.eq(self.chunks),
                        addend.eq(total_micro_batches),
                        total_chunks.eq(0),
                        exhausted.eq(0),
                    ]
                    m.next = "CHUNKS"
            with m.State("CHUNKS"):
                m.d.sync += [factor.eq(factor >> 1), addend.eq(addend << 1)]
                with m.If(factor[0]):
                    m.d.sync += total_chunks.eq(total_chunks + addend)
                with m.If(exhausted):
                    m.d.sync += [
                        factor.eq(self.format_precision),
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
                        total_chunks == 0,
                        lines == 0,
                        (lines > self._config.line_fifo_depth) & ~self.format_directory,
                        self.format_precision > self.format_stored,
                        (self.format_precision != self.format_stored) & self.format_directory,
                        self.no_lines & self.format_directory,
                        self.format_stored > MAX_PRECISION,
                        (self._config.lanes << self.format_unit_chunks) > MAX_UNIT,
                        (self.chunks << self.run_stale) > self._config.chunks,
                        self.partial_limit == 0,
                        self.misplaced,
                    )
                )
                m.next = "END"
            with m.State("END"):
                m.d.sync += [self.impossible.eq(checks.any()), self.done.eq(1)]
                m.next = "IDLE"
        return m


END_CYCLES = 4  # from the last one counted to ``done``: by then the outputs of `Counters` include it


class Phase(enum.Enum, shape=2):
    """Phase of a worker, as the cycle counters distinguish it."""

    IDLE = 0
    MODEL = 1  # the run is prepared, or the model is loaded, cleared or stored
    TRAIN = 2  # lines are read, or updates are outstanding
    FINISH = 3  # acknowledgements are outstanding, or an aborted run is cleaned up


class Sequencer(wiring.Component):
    """Finite state machine that takes a run through its phases::

        start ─▶ count ─▶ load | zero | keep ─▶ train ─▶ finish ─▶ (store) ─▶ end ─▶ done
                   │          └───────────┴────────┴─▶ abort ─▶ reset ◀┘  ▲
                   │                                             └────────┤
                   └─▶ refused ───────────────────────────────────────────┘

    A phase begins with a command to the engines; ``engines_idle`` falls within 4 cycles and rises when they have
    finished. An abort waits until no more comes from memory, then resets all that trains; so does the end of a store,
    if the run was to end early. ``done`` comes `END_CYCLES` after the end of the run.
    """

    start: In(1)  # level: the host wants a run
    started: Out(1)  # pulse: the run has started
    done: Out(1)  # pulse: the run has ended
    idle: Out(1)  # no run is under way
    phase: Out(Phase)  # current phase
    # A `ModelSource`; whether to store the model.
    run_model_source: In(2)
    run_model_store: In(1)
    # Pulses to and from `RunSizes`.
    count: Out(1)
    counted: In(1)
    impossible: In(1)  # with `counted`: the run is refused
    status_refused: Out(1)  # pulse: a run was refused
    commands: Out(COMMANDS)  # to the engines
    end_early: In(1)  # Level: end the run as soon as memory allows. A store is completed first.
    aborting: Out(1)  # data from memory are discarded
    reset: Out(1)  # resets all that takes part in training
    labels_idle: In(1)  # the reader of labels is idle
    engines_idle: In(1)  # all engines are idle
    network_busy: In(1)  # the endpoint has unacknowledged packets

    def elaborate(self, platform: object) -> Module:
        m = Module()
        pulses = [self.started, self.count, self.status_refused, self.aborting, self.commands]
        m.d.sync += [pulse.eq(0) for pulse in pulses]
        # A command takes four cycles to reach an engine and lower its idle here, which is ignored until then.
        issued = Signal(5)
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
            return [command.eq(1), issued.eq(~0)]

        def leave() -> None:
            m.d.sync += [self.reset.eq(1), issued.eq(~0)]
            m.next = "RESET"

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
                    m.d.sync += self.status_refused.eq(1)
                    m.d.comb += ends.eq(1)
                    m.next = "IDLE"
                with m.Elif(self.counted):
                    with m.If(self.run_model_source == ModelSource.MEMORY.value):
                        m.d.sync += issue(self.commands.load)
                    with m.Elif(self.run_model_source == ModelSource.ZERO.value):
                        m.d.sync += issue(self.commands.zero)
                    m.next = "MODEL"
            with m.State("MODEL"):
                m.d.comb += self.phase.eq(Phase.MODEL)
                with m.If(self.end_early & (issued == 0)):
                    m.d.sync += issue(self.commands.abort)
                    m.next = "ABORT"
                with m.Elif(idle):
                    m.d.sync += issue(self.commands.train)
                    m.next = "TRAIN"
            with m.State("TRAIN"):
                m.d.comb += self.phase.eq(Phase.TRAIN)
                with m.If(self.end_early & (issued == 0)):
                    m.d.sync += issue(self.commands.abort)
                    m.next = "ABORT"
                with m.Elif(idle):
                    m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += self.phase.eq(Phase.FINISH)
                with m.If(self.end_early):
                    m.d.sync += issue(self.commands.abort)
                    m.next = "ABORT"
                with m.Elif(~self.network_busy):
                    with m.If(self.run_model_store):
                        m.d.sync += issue(self.commands.store)
                        m.next = "STORE"
                    with m.Else():
                        m.d.comb += ends.eq(1)
                        m.next = "IDLE"
            with m.State("STORE"):
                m.d.comb += self.phase.eq(Phase.MODEL)
                with m.If(idle & self.end_early):
                    leave()
                with m.Elif(idle):
                    m.d.comb += ends.eq(1)
                    m.next = "IDLE"
            with m.State("ABORT"):
                m.d.comb += self.phase.eq(Phase.FINISH)
                m.d.sync += self.aborting.eq(1)
                with m.If(idle & self.labels_idle):
                    leave()
            with m.State("RESET"):
                m.d.comb += self.phase.eq(Phase.FINISH)
                with m.If(issued == 0):
                    m.d.sync += self.reset.eq(0)
                    m.d.comb += ends.eq(1)
                    m.next = "IDLE"
        return m


class Counters(Component):
    """Counters of a run: its cycles by cause, its packets and dropped frames.

    Every cycle of a run has exactly one cause. Training cycles are judged by the forward pass of engine 0: it takes a
    line (busy); its last line is gone (drain); there is no line (memory); the line waits for sums that have not come
    (network) or for the backward pass (chaining). Cycles before the first line is requested are preparation (model).

    Between runs the outputs follow the counters, at most `END_CYCLES` behind; during a run they change at a snapshot.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._names = [name.lower() for name in counters(config)]
        ports = {
            "clear": In(1),  # pulse at the start of a run
            "snapshot_take_strobe": In(1),  # update the outputs
            "phase": In(Phase),
            # Bit e: the flag of engine e, as in `engine_state`.
            "took_line": In(config.engines),
            "lines_left": In(config.engines),
            "line_waiting": In(config.engines),
            # As in `engine_state`, of engine 0.
            "awaiting_sums": In(1),
            "in_flight_now": In(16),
            "in_flight_most": Out(16),  # largest of the run
            # Pulses of the endpoint, and the reason of the last.
            "sent": In(1),
            "resent": In(1),
            "received": In(1),
            "dropped": In(1),
            "drop": In(DropReason),
            # One for each of `p4sgd.hw.spec.registers.counters`.
            **dict.fromkeys(self._names, Out(COUNTER_BITS)),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        running = self.phase != Phase.IDLE
        begun = Signal()  # the engines have requested lines
        training = Signal()
        m.d.comb += training.eq((self.phase == Phase.TRAIN) & (begun | self.lines_left[0]))
        with m.If(self.clear):
            m.d.sync += begun.eq(0)
        with m.Elif(training):
            m.d.sync += begun.eq(1)
        took_line, lines_left, line_waiting = self.took_line[0], self.lines_left[0], self.line_waiting[0]
        stalled = training & ~took_line
        blocked = stalled & lines_left & line_waiting
        events: dict[str, Value] = {
            "cycles": running,
            "cycles_model": (self.phase == Phase.MODEL) | ((self.phase == Phase.TRAIN) & ~training),
            "cycles_busy": training & took_line,
            "cycles_memory": stalled & lines_left & ~line_waiting,
            "cycles_network": blocked & self.awaiting_sums,
            "cycles_chaining": blocked & ~self.awaiting_sums,
            "cycles_drain": (stalled & ~lines_left) | (self.phase == Phase.FINISH),
            "packets_sent": running & self.sent,
            "packets_resent": running & self.resent,
            "packets_received": running & self.received,
            "packets_dropped": running & self.dropped,
        }
        for drop in DropReason:
            events[f"dropped_{drop.name.lower()}"] = running & self.dropped & (self.drop == drop)
        for index in range(len(self.took_line)):
            events[f"engine{index}_lines"] = training & self.took_line[index]
            events[f"engine{index}_starved"] = training & self.lines_left[index] & ~self.line_waiting[index]
        show = Signal()
        m.d.sync += show.eq(self.snapshot_take_strobe | ~running)
        m.submodules.counts = counts = EventCounters(len(self._names))
        m.d.comb += [
            counts.events.eq(Cat(events[name] for name in self._names)),
            counts.clear.eq(self.clear),
            counts.show.eq(show),
            *(getattr(self, name).eq(shown) for name, shown in zip(self._names, counts.shown, strict=True)),
        ]
        with m.If(self.clear):
            m.d.sync += self.in_flight_most.eq(0)
        with m.Elif(self.in_flight_now > self.in_flight_most):
            m.d.sync += self.in_flight_most.eq(self.in_flight_now)
        return m
