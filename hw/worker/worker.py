"""The worker: all that one FPGA has between its memory, its host and its network; and its Verilog."""

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, DomainRenamer, Module, Mux, ResetSignal, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import Axi4LiteSignature, Axi4Signature, FrameBeat
from p4sgd.hw.bus.register_file import RegisterFile
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.datapath.loss import LossUnit
from p4sgd.hw.datapath.partials import PartialSum
from p4sgd.hw.datapath.strided_reader import StridedReader
from p4sgd.hw.debug_cores import CoreKind, add_debug_core
from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.net.prober import Prober
from p4sgd.hw.net.udp import UdpReceiver, UdpSender
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import LABEL_BYTES
from p4sgd.hw.spec.packet import EchoValue
from p4sgd.hw.spec.registers import counters as register_counters
from p4sgd.hw.spec.registers import identity, worker_map
from p4sgd.hw.spec.run import ENGINE_EVENTS, EVENTS
from p4sgd.hw.verilog import BlackBox, to_verilog
from p4sgd.hw.worker.counters import Counters
from p4sgd.hw.worker.engine import ENGINE_SETTINGS, Engine, EngineCommands
from p4sgd.hw.worker.sequencer import RunSizes, Sequencer

__all__ = [
    "ANALYSER",
    "ENGINE",
    "WORKER",
    "Worker",
    "engine_verilog",
    "labels_reader",
    "memory_port",
    "worker_signature",
    "worker_verilog",
]


def worker_signature(config: WorkerConfig) -> wiring.Signature:
    """Ports of a `Worker`."""
    return wiring.Signature(
        {
            "control": In(Axi4LiteSignature()),
            "memory": Out(Axi4Signature(data_bits=config.port_bits)).array(config.engines),
            "extra_memory": Out(Axi4Signature(data_bits=config.port_bits, write=False)).array(
                config.engines * (config.ports - 1)
            ),
            "labels_memory": Out(Axi4Signature(data_bits=8 * LABEL_BYTES, write=False)),
            "tx": Out(stream.Signature(FrameBeat)),
            "rx": In(stream.Signature(FrameBeat)),
            "idle": Out(1),
            "events": Out(data.StructLayout(dict.fromkeys(EVENTS, 1))),
        }
    )


def memory_port(config: WorkerConfig, worker: Any, number: int) -> Any:
    """Memory port of a `Worker` or of an interface with its signature, numbered as in `WorkerConfig.memories`."""
    if number == config.labels_memory:
        return worker.labels_memory
    engine, port = divmod(number, config.ports)
    return worker.memory[engine] if port == 0 else worker.extra_memory[engine * (config.ports - 1) + port - 1]


def labels_reader() -> StridedReader:
    """The reader of the labels."""
    return StridedReader(8 * LABEL_BYTES, fifo_beats=64, burst_limit=32)


class Worker(wiring.Component):
    """Trains on a shard of the features: forward pass, AllReduce, backward pass::

                     ┌──────────────┐ dots ┌────────────┐ partials ┌──────────┐  tx
        memory    ◀─▶│ Engine × E   ├─────▶│ PartialSum ├─────────▶│          ├──────▶
                     │              │      └────────────┘          │ Endpoint │
                     │              │      ┌────────────┐  sums    │          │◀──────
                     │              │◀─────┤  LossUnit  │◀─────────┤          │  rx
                     └──────▲───────┘deltas└─────▲──────┘          └──────────┘
                            │                    │ labels
        control ──▶ RegisterFile ─ Sequencer  StridedReader ◀── labels_memory

    If packets travel in UDP there is a `UdpSender` before ``tx`` and a `UdpReceiver` behind ``rx``.

    The reset must last at least 2 cycles, as that of an `Engine`.

    Parameters
    ----------
    config
        Size of the worker.
    build_id
        Number that the host can read back, to tell builds apart.
    engine
        Makes an `Engine`, or a `BlackBox` where engines are written as Verilog of their own.

    Members
    -------
    control
        The registers of :mod:`p4sgd.hw.spec.registers`.
    memory
        Port 0 of each engine: lines and weights.
    extra_memory
        The other ports of each engine, engine by engine: lines.
    labels_memory
        Labels.
    tx, rx
        Ethernet frames to and from the MAC.
    idle
        No run is wanted or under way, and the counters show the last one. The same as CTRL.idle.
    events
        A pulse for every event of :mod:`p4sgd.hw.spec.run`, a cycle after it, for monitors. Costs nothing if left open.
    """

    def __init__(
        self, config: WorkerConfig, *, build_id: int = 0, engine: Callable[[WorkerConfig], Any] = Engine
    ) -> None:
        self._config = config
        self._build_id = build_id
        self._engine = engine
        super().__init__(worker_signature(config))

    control: Any
    memory: list[Any]
    extra_memory: list[Any]
    labels_memory: Any
    tx: stream.Interface
    rx: stream.Interface
    idle: Signal
    events: data.View

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        m.submodules.registers = registers = RegisterFile(worker_map(config))
        m.submodules.sequencer = sequencer = Sequencer()
        m.submodules.counters = counters = Counters(config)
        m.submodules.endpoint = endpoint = Endpoint(config)
        m.submodules.prober = prober = Prober(config)
        run_sizes = RunSizes(config)
        partial_sum = PartialSum(config)
        loss = LossUnit(config)
        labels = labels_reader()
        engines = [self._engine(config) for _ in range(config.engines)]

        # All that takes part in training is reset at the end of an aborted run, too. The clock is the same. Each engine
        # has a register for its reset, and the other parts have one together: so all are in reset at the same time.
        resets = {"engines": ResetSignal("sync") | sequencer.reset, "training": Signal(init=1, reset_less=True)}
        m.d.sync += resets["training"].eq(resets["engines"])
        for domain, reset in resets.items():
            setattr(m.domains, domain, ClockDomain(domain))
            m.d.comb += [ClockSignal(domain).eq(ClockSignal("sync")), ResetSignal(domain).eq(reset)]
        parts = {"totals": run_sizes, "partial_sum": partial_sum, "loss": loss, "labels": labels}
        for name, part in parts.items():
            m.submodules[name] = DomainRenamer("training")(part)
        for index, engine in enumerate(engines):
            m.submodules[f"engine{index}"] = DomainRenamer("engines")(engine)

        # Reasons to end a run early are held until it has ended: an abort by the host, and a memory error. A worker
        # that has not joined a job also ends its run early. A run that ends early leaves the job, because packets of it
        # may still be in the network.
        aborting, failed = Signal(), Signal()
        memory_error = Cat(engine.state.memory_error for engine in engines).any() | labels.error
        with m.If(sequencer.done):
            m.d.sync += [aborting.eq(0), failed.eq(0)]
        with m.Elif(~self.idle):
            with m.If(registers.abort_abort_strobe):
                m.d.sync += aborting.eq(1)
            with m.If(memory_error):
                m.d.sync += failed.eq(1)

        # Data path.
        for index, engine in enumerate(engines):
            for port, memory in enumerate((engine.memory, *engine.extra_memory)):
                wiring.connect(m, memory, wiring.flipped(memory_port(config, self, index * config.ports + port)))
            connect_stream(m, engine.dots, partial_sum.dots[index])
            m.d.comb += [
                engine.deltas.payload.eq(loss.deltas.payload),
                engine.deltas.valid.eq(loss.deltas.valid),
            ]
        connect_stream(m, partial_sum.partials, endpoint.partials)
        connect_stream(m, endpoint.sums, loss.sums)
        if config.udp:
            self._connect_udp(m, registers, endpoint)
        else:
            connect_stream(m, endpoint.tx, wiring.flipped(self.tx))
            connect_stream(m, wiring.flipped(self.rx), endpoint.rx)
        wiring.connect(m, labels.memory, wiring.flipped(self.labels_memory))
        m.d.comb += [  # a beat of 32 bytes holds the eight labels of a micro-batch, or their weights
            loss.labels.payload.eq(labels.data.payload),
            loss.labels.valid.eq(labels.data.valid),
            labels.data.ready.eq(loss.labels.ready | sequencer.aborting),
        ]

        wiring.connect(m, wiring.flipped(self.control), registers.bus)
        m.d.comb += registers.show(identity(config, self._build_id))
        self._connect_control(m, registers, sequencer, run_sizes)
        self._configure_network(m, registers, endpoint, prober)
        self._configure_arithmetic(m, registers, partial_sum, loss)
        self._command_engines(m, registers, sequencer, run_sizes, engines)
        m.d.comb += [
            labels.start.eq(sequencer.train),
            labels.base.eq(registers.wide("labels_address")),
            labels.burst_beats.eq(1 + registers.label_mode_weighted),
            labels.stride_beats.eq(1 + registers.label_mode_weighted),
            labels.bursts.eq(run_sizes.total_micro_batches),
            sequencer.engines_idle.eq(Cat(engine.state.idle for engine in engines).all()),
            labels.stop.eq(sequencer.give_up),
            sequencer.labels_idle.eq(~labels.busy),
            sequencer.network_busy.eq(endpoint.busy),
            sequencer.end_early.eq(~endpoint.joined | aborting | failed),
            endpoint.leave.eq(sequencer.reset),
            registers.status_network_error.eq(endpoint.given_up & ~self.idle),
            registers.status_aborted.eq(sequencer.give_up & aborting),
            registers.status_not_joined.eq(sequencer.started & ~endpoint.joined),
            registers.status_refused.eq(sequencer.refused),
            registers.status_partial_clamped.eq(partial_sum.clamped),
            registers.status_residual_saturated.eq(loss.saturated),
            registers.status_weight_saturated.eq(Cat(engine.state.weight_saturated for engine in engines).any()),
            registers.status_memory_error.eq(memory_error),
        ]
        self._connect_counters(m, registers, sequencer, counters, engines, endpoint)
        m.d.comb += [self.events[name].eq(getattr(engines[0].state, name)) for name in ENGINE_EVENTS]
        m.d.sync += [
            self.events["partial_sent"].eq(endpoint.partials.valid & endpoint.partials.ready),
            self.events["sums_came"].eq(loss.sums.valid & loss.sums.ready),
            self.events["deltas_came"].eq(loss.deltas.valid),
        ]
        # Dots of one engine are shown whole: those of all would take hundreds of block RAMs.
        probes = [
            Cat(self.idle, aborting, failed, sequencer.phase),
            Cat(engine.dots.valid for engine in engines),
            engines[0].dots.payload,
            *(endpoint.partials.valid, endpoint.partials.ready, endpoint.partials.payload),
            *(endpoint.sums.valid, endpoint.sums.ready, endpoint.sums.payload),
        ]
        add_debug_core(m, platform, CoreKind.ANALYSER, ANALYSER, ClockSignal(), probes)
        return m

    def _connect_udp(self, m: Module, registers: RegisterFile, endpoint: Endpoint) -> None:
        """Put UDP headers around the packets of the endpoint."""
        m.submodules.udp_sender = sender = UdpSender()
        m.submodules.udp_receiver = receiver = UdpReceiver()
        m.d.comb += [
            sender.frames.payload.beat.eq(endpoint.tx.payload),
            sender.frames.valid.eq(endpoint.tx.valid),
            endpoint.tx.ready.eq(sender.frames.ready),
            self.tx.payload.eq(sender.tx.payload.beat),
            self.tx.valid.eq(sender.tx.valid),
            sender.tx.ready.eq(self.tx.ready),
            receiver.rx.payload.beat.eq(self.rx.payload),
            receiver.rx.valid.eq(self.rx.valid),
            self.rx.ready.eq(receiver.rx.ready),
            endpoint.rx.payload.eq(receiver.frames.payload.beat),
            endpoint.rx.valid.eq(receiver.frames.valid),
            sender.ipv4.eq(registers.wide("local_mac")[:32]),
            sender.ethernet_mac.eq(registers.wide("ethernet_mac")),
            sender.next_hop_mac.eq(registers.wide("next_hop_mac")),
        ]

    def _connect_control(self, m: Module, registers: RegisterFile, sequencer: Sequencer, run_sizes: RunSizes) -> None:
        """Connect the control block of the registers, the sequencer and the run sizes."""
        without_lines = Signal(self._config.engines, reset_less=True)  # of numbers of 40 bits, so compared in time
        for index in range(self._config.engines):
            m.d.sync += without_lines[index].eq(registers.wide(f"lines{index}") == 0)
        m.d.comb += [
            sequencer.start.eq(registers.ctrl_start),
            registers.ctrl_start_clear.eq(sequencer.started),
            registers.ctrl_ready.eq(sequencer.started),
            registers.ctrl_done.eq(sequencer.done),
            self.idle.eq(sequencer.idle & ~registers.ctrl_start),
            registers.ctrl_idle.eq(self.idle),
            sequencer.model_source.eq(registers.run_model_source),
            sequencer.model_store.eq(registers.run_model_store),
            run_sizes.start.eq(sequencer.count),
            run_sizes.micro_batches.eq(registers.micro_batches),
            run_sizes.mini_batches.eq(registers.mini_batches),
            run_sizes.chunks.eq(registers.chunks),
            run_sizes.precision.eq(registers.format_precision),
            run_sizes.stored.eq(registers.format_stored),
            run_sizes.unit_chunks.eq(registers.format_unit_chunks),
            run_sizes.directory.eq(registers.format_directory),
            run_sizes.no_lines.eq(without_lines.any()),
            run_sizes.stale.eq(registers.run_stale),
            sequencer.counted.eq(run_sizes.done),
            sequencer.impossible.eq(run_sizes.impossible),
        ]

    def _configure_network(self, m: Module, registers: RegisterFile, endpoint: Endpoint, prober: Prober) -> None:
        """Connect the registers of the network and of probes."""
        connect_stream(m, prober.probe, endpoint.probe)
        connect_stream(m, endpoint.echo, prober.echo)
        answer = prober.answer
        values = answer["values"]
        m.d.comb += [
            endpoint.resend_limit.eq(registers.resend_limit),
            endpoint.doublings.eq(registers.resend_doublings),
            prober.given_up.eq(endpoint.given_up),
            prober.given_up_slot.eq(endpoint.given_up_slot),
            prober.ask.eq(registers.probe_slot_strobe),
            prober.question.slot.eq(registers.probe_slot),
            prober.question.number.eq(registers.probe_number),
            prober.question.broadcast.eq(registers.probe_broadcast),
            registers.given_up_slot.eq(endpoint.given_up_slot),
            registers.given_up_partial.eq(endpoint.given_up_partial),
            registers.given_up_given_up.eq(endpoint.given_up),
            registers.given_up_round.eq(endpoint.given_up_round),
            registers.echo_number.eq(values[EchoValue.NUMBER]),
            registers.echo_verdict.eq(values[EchoValue.VERDICT]),
            registers.echo_port.eq(values[EchoValue.PORT]),
            registers.echo_version.eq(answer.version),
            registers.echo_came.eq(prober.came),
            registers.echo_job_round.eq(answer.round),
            registers.echo_job_workers.eq(values[EchoValue.WORKERS]),
            registers.echo_aggregated.eq(answer.aggregated),
            registers.echo_acknowledged.eq(values[EchoValue.ACKNOWLEDGED]),
            registers.echo_slots.eq(values[EchoValue.SLOTS]),
            registers.wide("echo_source").eq(answer.source),
            registers.echo_expected_low.eq(values[EchoValue.MAC_LOW]),
            registers.echo_expected_high.eq(values[EchoValue.MAC_HIGH]),
            registers.echo_cycles.eq(prober.cycles),
            endpoint.job.eq(registers.job_job),
            endpoint.shard.eq(registers.job_shard),
            endpoint.workers.eq(registers.job_workers),
            endpoint.local_mac.eq(registers.wide("local_mac")),
            endpoint.peer_mac.eq(registers.wide("peer_mac")),
            endpoint.resend_cycles.eq(registers.resend_cycles),
            endpoint.join.eq(registers.join_round_strobe & self.idle),
            endpoint.join_round.eq(registers.join_round),
        ]

    def _configure_arithmetic(
        self, m: Module, registers: RegisterFile, partial_sum: PartialSum, loss: LossUnit
    ) -> None:
        """Connect the registers of the arithmetic. Writing an intercept writes a segment and selects the next one."""
        segment = Signal(self._config.segment_bits)
        with m.If(registers.table_index_strobe):
            m.d.sync += segment.eq(registers.table_index)
        with m.Elif(registers.table_intercept_strobe):
            m.d.sync += segment.eq(segment + 1)
        m.d.comb += [
            partial_sum.precision.eq(registers.format_precision),
            partial_sum.signed.eq(registers.format_signed),
            partial_sum.limit.eq(registers.partial_limit),
            loss.label_sign.eq(registers.label_mode_sign),
            loss.label_offset.eq(registers.label_mode_offset),
            loss.label_constant.eq(registers.label_mode_constant),
            loss.weighted.eq(registers.label_mode_weighted),
            loss.mantissa.eq(registers.rate_mantissa),
            loss.table_shift.eq(registers.table_shift),
            loss.table_write.enable.eq(registers.table_intercept_strobe),
            loss.table_write.index.eq(segment),
            loss.table_write.slope.eq(registers.table_slope),
            loss.table_write.intercept.eq(registers.table_intercept),
        ]

    def _command_engines(
        self, m: Module, registers: RegisterFile, sequencer: Sequencer, run_sizes: RunSizes, engines: list[Any]
    ) -> None:
        """Pass settings and commands to the engines."""
        settings: Any = Signal(ENGINE_SETTINGS)
        m.d.comb += [
            settings.precision.eq(registers.format_precision),
            settings.stored.eq(registers.format_stored),
            settings.signed.eq(registers.format_signed),
            settings.chunks.eq(registers.chunks),
            settings.unit_chunks.eq(registers.format_unit_chunks),
            settings.directory.eq(registers.format_directory),
            settings.micro_batches.eq(registers.micro_batches),
            settings.gradient_shift.eq(registers.rate_gradient_shift),
            settings.shrink.eq(registers.shrink),
            settings.threshold.eq(registers.threshold),
            settings.exempt_chunk.eq(registers.exempt_chunk),
            settings.exempt_lane.eq(registers.exempt_lane),
            settings.stale.eq(registers.run_stale),
        ]
        for index, engine in enumerate(engines):
            m.d.comb += [
                engine.settings.eq(settings),
                engine.settings.exempt.eq(registers.exempt_exempt & (registers.exempt_engine == index)),
                engine.groups.eq(
                    Mux(settings.directory, registers.wide(f"lines{index}"), run_sizes.total_chunks),
                ),
                engine.model_address.eq(registers.wide(f"model{index}_address")),
                *(
                    engine.lines_address[port].eq(registers.wide(f"lines{index}_{port}_address"))
                    for port in range(self._config.ports)
                ),
                *(
                    getattr(engine.commands, name).eq(getattr(sequencer, "give_up" if name == "abort" else name))
                    for name in EngineCommands().members
                ),
            ]

    def _connect_counters(
        self,
        m: Module,
        registers: RegisterFile,
        sequencer: Sequencer,
        counters: Counters,
        engines: list[Any],
        endpoint: Endpoint,
    ) -> None:
        """Connect the counters to what they count and to their registers."""
        states = [engine.state for engine in engines]
        m.d.comb += [
            counters.clear.eq(sequencer.started),
            counters.snapshot.eq(registers.snapshot_take_strobe),
            counters.phase.eq(sequencer.phase),
            counters.took_line.eq(Cat(state.took_line for state in states)),
            counters.lines_left.eq(Cat(state.lines_left for state in states)),
            counters.line_waiting.eq(Cat(state.line_waiting for state in states)),
            counters.awaiting_sums.eq(states[0].awaiting_sums),
            counters.in_flight.eq(states[0].in_flight),
            counters.sent.eq(endpoint.sent),
            counters.resent.eq(endpoint.resent),
            counters.received.eq(endpoint.received),
            counters.dropped.eq(endpoint.dropped),
            counters.drop.eq(endpoint.drop),
            registers.in_flight_now.eq(states[0].in_flight),
            registers.in_flight_most.eq(counters.most_in_flight),
        ]
        for name in map(str.lower, register_counters(self._config)):
            m.d.comb += registers.wide(name).eq(getattr(counters, name))


WORKER = "p4sgd_worker"
"""Name of the worker's module."""

ENGINE = f"{WORKER}_engine"
"""Name of an engine's module."""

ANALYSER = f"{WORKER}_ila"
"""Module of the logic analyser in a worker that has one."""


def engine_verilog(config: WorkerConfig) -> str:
    """Verilog of one engine, module `ENGINE`."""
    return to_verilog(Engine(config), ENGINE)


def worker_verilog(config: WorkerConfig, *, build_id: int = 0) -> tuple[str, str]:
    """Verilog of a worker as two texts: `WORKER` with instances of `ENGINE`, and `ENGINE`.

    Elaborating the engine once instead of once for every instance saves minutes at the size of a board.
    """
    engine = Engine(config)
    worker = Worker(config, build_id=build_id, engine=lambda _: BlackBox(engine.signature, ENGINE))
    return to_verilog(worker, WORKER), to_verilog(engine, ENGINE)
