"""The worker: all that one FPGA has between its memory, its host and its network; and its Verilog."""

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, DomainRenamer, Module, Mux, ResetSignal, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import Axi4LiteSignature, Axi4Signature, FrameBeat
from p4sgd.hw.bus.ports import FlatPorts
from p4sgd.hw.bus.register_file import RegisterFile
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.datapath.loss import LossUnit
from p4sgd.hw.datapath.partials import PartialSum
from p4sgd.hw.datapath.strided_reader import StridedReader
from p4sgd.hw.net.endpoint import Endpoint, Prober
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import LABEL_BYTES
from p4sgd.hw.spec.registers import PAGE_BYTES, engine_addresses, identity, worker_map
from p4sgd.hw.spec.run import ENGINE_EVENTS, EVENTS
from p4sgd.hw.verilog import BlackBox, CoreKind, add_debug_core, to_verilog
from p4sgd.hw.worker.engine import ENGINE_SETTINGS, Engine, engine_state
from p4sgd.hw.worker.sequencer import Counters, RunSizes, Sequencer

__all__ = [
    "ANALYSER",
    "ENGINE",
    "WORKER",
    "Worker",
    "engine_verilog",
    "labels_reader",
    "memory_path",
    "memory_port",
    "with_ports",
    "worker_parts",
    "worker_signature",
    "worker_verilog",
]


_PAGE_BITS = PAGE_BYTES.bit_length() - 1  # low bits of an address that must be 0


def worker_signature(config: WorkerConfig) -> wiring.Signature:
    """Ports of a `Worker`."""
    return wiring.Signature(
        {
            "control": In(Axi4LiteSignature()),  # the registers of `p4sgd.hw.spec.registers`
            # Of each engine port 0: lines and weights; its other ports, engine by engine: lines.
            "memory": Out(Axi4Signature(data_bits=config.port_bits)).array(config.engines),
            "extra_memory": Out(Axi4Signature(data_bits=config.port_bits, write=False)).array(
                config.engines * (config.ports - 1)
            ),
            "labels_memory": Out(Axi4Signature(data_bits=8 * LABEL_BYTES, write=False)),
            # Ethernet frames to and from the MAC.
            "tx": Out(stream.Signature(FrameBeat)),
            "rx": In(stream.Signature(FrameBeat)),
            "idle": Out(1),  # No run is wanted or under way, and the counters show the last one. The same as CTRL.idle.
            # A pulse for each of `p4sgd.hw.spec.run.EVENTS`, a cycle after it, for monitors; free if left open.
            "events": Out(data.StructLayout(dict.fromkeys(EVENTS, 1))),
        }
    )


def memory_path(config: WorkerConfig, number: int) -> tuple[str | int, ...]:
    """Member, and index in it, of a memory port of a `Worker`, numbered as in `WorkerConfig.memories`."""
    if number == config.labels_memory:
        return ("labels_memory",)
    engine, port = divmod(number, config.ports)
    return ("memory", engine) if port == 0 else ("extra_memory", engine * (config.ports - 1) + port - 1)


def memory_port(config: WorkerConfig, worker: Any, number: int) -> Any:
    """Memory port of a `Worker` or of an interface with its signature, numbered as in `WorkerConfig.memories`."""
    name, *index = memory_path(config, number)
    member = getattr(worker, str(name))
    return member[index[0]] if index else member


def labels_reader() -> StridedReader:
    """The reader of the labels."""
    return StridedReader(8 * LABEL_BYTES, fifo_beats=64, burst_limit=32)


class Worker(Component):
    """Trains on a shard of the features: forward pass, AllReduce, backward pass::

                     ┌──────────────┐ dots ┌────────────┐ partials ┌──────────┐  tx
        memory    ◀─▶│ Engine × E   ├─────▶│ PartialSum ├─────────▶│          ├──────▶
                     │              │      └────────────┘          │ Endpoint │
                     │              │      ┌────────────┐  sums    │          │◀──────
                     │              │◀─────┤  LossUnit  │◀─────────┤          │  rx
                     └──────▲───────┘deltas└─────▲──────┘          └──────────┘
                            │                    │ labels
        control ──▶ RegisterFile ─ Sequencer  StridedReader ◀── labels_memory

    Ports of components that are named as fields of registers are connected to these (`RegisterFile.connect`). Engines
    may be on other dies than the rest: what passes between them comes from a register and goes into one. The reset must
    last at least `RESET_CYCLES`. ``engine`` makes an `Engine`: or a `BlackBox`, for Verilog of its own.
    """

    def __init__(
        self, config: WorkerConfig, *, build_id: int = 0, engine: Callable[[WorkerConfig], Any] = Engine
    ) -> None:
        self._config = config
        self._build_id = build_id
        self._engine = engine
        super().__init__(worker_signature(config))

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
        shape, numbers = engine_state(config), range(config.engines)
        states: list[Any] = [Signal(shape, name=f"state{number}", reset_less=True) for number in numbers]
        m.d.sync += [state.eq(engine.state) for state, engine in zip(states, engines, strict=True)]

        # All that trains is reset at the end of an aborted run, too. Each engine has a register for its reset, the
        # other parts one together: so all are in reset at the same time.
        resets = {name: Signal(init=1, name=f"{name}_reset", reset_less=True) for name in ("engines", "training")}
        m.d.sync += [
            resets["engines"].eq(ResetSignal("sync") | sequencer.reset),
            resets["training"].eq(resets["engines"]),
        ]
        for domain, reset in resets.items():
            setattr(m.domains, domain, ClockDomain(domain))
            m.d.comb += [ClockSignal(domain).eq(ClockSignal("sync")), ResetSignal(domain).eq(reset)]
        parts = {"totals": run_sizes, "partial_sum": partial_sum, "loss": loss, "labels": labels}
        for name, part in parts.items():
            m.submodules[name] = DomainRenamer("training")(part)
        for index, engine in enumerate(engines):
            m.submodules[f"engine{index}"] = DomainRenamer("engines")(engine)

        # Registers, but those of an engine.
        wiring.connect(m, wiring.flipped(self.control), registers.bus)
        m.d.comb += registers.show(identity(config, self._build_id))
        for owner in (sequencer, run_sizes, partial_sum, loss, endpoint, prober, counters):
            registers.connect(m, owner)

        # The data path.
        connect_stream(m, partial_sum.partials, endpoint.partials)
        connect_stream(m, endpoint.sums, loss.sums)
        connect_stream(m, endpoint.tx, wiring.flipped(self.tx))
        connect_stream(m, wiring.flipped(self.rx), endpoint.rx)
        wiring.connect(m, labels.memory, wiring.flipped(self.labels_memory))
        m.d.comb += [  # a beat of 32 bytes holds the eight labels of a micro-batch, or their weights
            loss.labels.payload.eq(labels.data.payload),
            loss.labels.valid.eq(labels.data.valid),
            labels.data.ready.eq(loss.labels.ready | sequencer.aborting),
            labels.start.eq(sequencer.commands.train),
            labels.stop.eq(sequencer.commands.abort),
            labels.base.eq(registers.wide("labels_address")),
            labels.burst_beats.eq(1 + registers.label_mode_weighted),
            labels.stride_beats.eq(1 + registers.label_mode_weighted),
            labels.bursts.eq(run_sizes.total_micro_batches),
        ]

        # Reasons to end a run early are held until it has ended: an abort by the host, a memory error, no job. Such a
        # run leaves the job, because packets of it may still be in the network.
        aborting, failed = Signal(), Signal()
        memory_error = Cat(state.memory_error for state in states).any() | labels.error
        with m.If(sequencer.done):
            m.d.sync += [aborting.eq(0), failed.eq(0)]
        with m.Elif(~self.idle):
            with m.If(registers.abort_abort_strobe):
                m.d.sync += aborting.eq(1)
            with m.If(memory_error):
                m.d.sync += failed.eq(1)
        connect_stream(m, prober.probe, endpoint.probe)
        connect_stream(m, endpoint.echo, prober.echo)
        m.d.comb += [
            self.idle.eq(sequencer.idle & ~registers.ctrl_start),
            sequencer.start.eq(registers.ctrl_start),
            registers.ctrl_start_clear.eq(sequencer.started),
            registers.ctrl_ready.eq(sequencer.started),
            registers.ctrl_done.eq(sequencer.done),
            registers.ctrl_idle.eq(self.idle),
            run_sizes.start.eq(sequencer.count),
            sequencer.counted.eq(run_sizes.done),
            sequencer.impossible.eq(run_sizes.impossible),
            sequencer.engines_idle.eq(Cat(state.idle for state in states).all()),
            sequencer.labels_idle.eq(~labels.busy),
            sequencer.network_busy.eq(endpoint.busy),
            sequencer.end_early.eq(~endpoint.joined | aborting | failed),
            endpoint.leave.eq(sequencer.reset),
            endpoint.join.eq(registers.join_round_strobe & self.idle),
            endpoint.job.eq(registers.job_job),
            endpoint.shard.eq(registers.job_shard),
            endpoint.workers.eq(registers.job_workers),
            endpoint.doublings.eq(registers.resend_doublings),
            registers.given_up_given_up.eq(endpoint.given_up),
            prober.given_up.eq(endpoint.given_up),
            prober.given_up_slot.eq(endpoint.given_up_slot),
            registers.status_network_error.eq(endpoint.given_up & ~self.idle),
            registers.status_aborted.eq(sequencer.commands.abort & aborting),
            registers.status_not_joined.eq(sequencer.started & ~endpoint.joined),
            registers.status_weight_saturated.eq(Cat(state.weight_saturated for state in states).any()),
            registers.status_memory_error.eq(memory_error),
        ]
        settings: Any = Signal(ENGINE_SETTINGS)
        registers.connect(m, settings)
        without_lines = Signal(config.engines, reset_less=True)  # of numbers of 40 bits, so compared in time
        misplaced = Signal(config.engines + 1, reset_less=True)  # the last one is for the labels
        m.d.comb += [run_sizes.no_lines.eq(without_lines.any()), run_sizes.misplaced.eq(misplaced.any())]
        m.d.sync += misplaced[-1].eq(registers.labels_address_low[:_PAGE_BITS].any())
        for index, engine in enumerate(engines):
            for port, memory in enumerate((engine.memory, *engine.extra_memory)):
                wiring.connect(m, memory, wiring.flipped(memory_port(config, self, index * config.ports + port)))
            connect_stream(m, engine.dots, partial_sum.dots[index])
            lines = registers.wide(f"lines{index}")
            addresses = [getattr(registers, low.name.lower()) for low, _ in engine_addresses(config, index)]
            m.d.sync += [
                without_lines[index].eq(lines == 0),
                misplaced[index].eq(Cat(low[:_PAGE_BITS] for low in addresses).any()),
            ]
            m.d.comb += [
                engine.deltas.payload.eq(loss.deltas.payload),
                engine.deltas.valid.eq(loss.deltas.valid),
                engine.commands.eq(sequencer.commands),
                engine.settings.eq(settings),
                engine.settings.exempt.eq(registers.exempt_exempt & (registers.exempt_engine == index)),
                engine.groups.eq(Mux(settings.format_directory, lines, run_sizes.total_chunks)),
                engine.model_address.eq(registers.wide(f"model{index}_address")),
                *(
                    address.eq(registers.wide(f"lines{index}_{port}_address"))
                    for port, address in enumerate(engine.lines_address)
                ),
            ]

        m.d.comb += [
            counters.clear.eq(sequencer.started),
            counters.phase.eq(sequencer.phase),
            *(
                getattr(counters, flag).eq(Cat(state[flag] for state in states))
                for flag in ("took_line", "lines_left", "line_waiting")
            ),
            counters.awaiting_sums.eq(states[0].awaiting_sums),
            counters.in_flight_now.eq(states[0].in_flight),
            registers.in_flight_now.eq(states[0].in_flight),
            *(
                getattr(counters, name).eq(getattr(endpoint, name))
                for name in ("sent", "resent", "received", "dropped", "drop")
            ),
            *(self.events[name].eq(engines[0].state.events[name]) for name in ENGINE_EVENTS),
        ]
        m.d.sync += [
            self.events.partial_sent.eq(endpoint.partials.valid & endpoint.partials.ready),
            self.events.sums_came.eq(loss.sums.valid & loss.sums.ready),
            self.events.deltas_came.eq(loss.deltas.valid),
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


WORKER = "p4sgd_worker"  # name of the worker's module
ENGINE = f"{WORKER}_engine"  # name of an engine's module
ANALYSER = f"{WORKER}_ila"  # module of the logic analyser in a worker that has one


def engine_verilog(config: WorkerConfig, *, platform: object = None) -> str:
    """Verilog of one engine, module `ENGINE`, as `to_verilog` writes it."""
    return to_verilog(Engine(config), ENGINE, platform=platform)


def worker_parts(config: WorkerConfig, *, build_id: int = 0, module: str = ENGINE) -> tuple[Worker, Engine]:
    """A worker with instances of ``module``, and the engine that this is, which is elaborated once."""
    engine = Engine(config)
    return Worker(config, build_id=build_id, engine=lambda _: BlackBox(engine.signature, module)), engine


def with_ports(worker: Worker, config: WorkerConfig) -> FlatPorts:
    """A worker with the ports of `WORKER`: ``s_axi_control``, a master ``m_axi_<i>`` for each memory, numbered as in
    `WorkerConfig.memories`, the streams ``tx`` and ``rx``, and ``idle``.
    """
    names: dict[tuple[str | int, ...], str] = {("control",): "s_axi_control"}
    names |= {memory_path(config, number): f"m_axi_{number}" for number in range(config.memories)}
    return FlatPorts(worker, names | {(name,): name for name in ("tx", "rx", "idle")})


def worker_verilog(config: WorkerConfig, *, build_id: int = 0, platform: object = None) -> tuple[str, str]:
    """Verilog of a worker as two texts: `WORKER`, and `ENGINE`, of which it has instances."""
    worker, engine = worker_parts(config, build_id=build_id)
    top = with_ports(worker, config)
    return to_verilog(top, WORKER, platform=platform), to_verilog(engine, ENGINE, platform=platform)
