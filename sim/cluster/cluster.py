"""The simulated cluster and its simulator. Workers are instances of their generated Verilog, as on a board."""

import hashlib
import logging
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, ClockSignal, Instance, Module, Mux, ResetSignal, ShapeLike, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd import hw
from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import LABEL_BYTES
from p4sgd.hw.spec.run import EVENTS
from p4sgd.hw.verilog import BlackBox, instances, modules, to_verilog
from p4sgd.hw.worker.worker import ENGINE, memory_port, worker_parts, worker_signature
from p4sgd.sim import verilator
from p4sgd.sim.cache import cached
from p4sgd.sim.cluster.link import Link, Pause
from p4sgd.sim.cluster.memory import MEMORY_TIMING, SimMemory
from p4sgd.sim.cluster.protocol import EVENTS_FILE, EVENTS_LIMIT, MEMORY_BITS, memory_file
from p4sgd.sim.network.faults import DIRECTIONS, LINK_CHANCES

_logger = logging.getLogger(__name__)


class Merge(Component):
    """Merges ``count`` streams, which it visits in rotation, and tags every item with the number of its stream."""

    def __init__(self, shape: ShapeLike, count: int) -> None:
        self._count = count
        self.payload = data.StructLayout({"item": shape, "port": max(1, (count - 1).bit_length())})
        super().__init__({"i": In(stream.Signature(shape)).array(count), "o": Out(stream.Signature(self.payload))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        turn = Signal(range(self._count))
        free = ~self.o.valid | self.o.ready
        with m.If(free):
            m.d.sync += [self.o.valid.eq(0), turn.eq(turn + 1)]
            with m.If(turn == self._count - 1):
                m.d.sync += turn.eq(0)
            with m.Switch(turn):
                for port, taken in enumerate(self.i):
                    with m.Case(port):
                        m.d.comb += taken.ready.eq(1)
                        m.d.sync += [
                            self.o.valid.eq(taken.valid),
                            self.o.payload.item.eq(taken.payload),
                            self.o.payload.port.eq(port),
                        ]
        return m


CABLE_CYCLES = 20
"""Latency from a worker to the aggregator or back, in cycles, including the MACs."""

_WORKER = "cluster_worker"
"""Module of a worker with the ports of `Worker`: the top that `p4sgd generate` writes has no ``events``."""

_JOBS = 2  # jobs that the aggregator can serve at a time

_PAUSES = 5000  # instance number of the first worker's `Pause`; smaller ones belong to memories and links


class Cluster(Component):
    """``workers`` workers around one aggregator, in one clock domain::

        SimMemory × …    ◀─▶ Worker ── Link ──▶ ┌───────┐    ┌────────────┐
                                 ▲     ...       │ Merge ├───▶│ Aggregator │
                                 │               └───────┘    └─────┬──────┘
                                 └───── Link ◀── by port bitmap ────┘

    Worker i is behind port i of the aggregator.
    """

    def __init__(self, config: WorkerConfig, workers: int) -> None:
        self._config = config
        self._workers = workers
        banks = workers * config.memories
        super().__init__(
            {
                "control": In(Axi4LiteSignature()).array(workers),
                "aggregator_control": In(Axi4LiteSignature()),
                "idle": Out(workers),  # the workers' idle
                "all_idle": Out(1),  # a simulator waits for an edge faster than it samples every cycle
                "seed": In(32),  # of all random numbers; stable before reset ends
                # Faults: chances in 1/256 per cycle and channel, and of LINK_CHANCES, see `Link`.
                "memory_stall": In(8),
                "link_stall": In(8),
                "memory_gap": In(16),  # see `SimMemory`
                **{f"{direction}_{name}": In(16) for direction in DIRECTIONS for name in LINK_CHANCES},
                "up_cut": In(workers),  # links from workers that lose all frames
                "down_cut": In(workers),  # and links to them
                "worker_pause": In(16),  # see `Pause`; during a pause a worker's links hold their frames
                "spared": In(workers),  # workers that are exempt from all of these faults
                **{f"memory_{name}": In(field.shape) for name, field in MEMORY_TIMING},  # a `MemoryTiming`, stable
                "note_events": In(1),  # record the workers' events in a file, see sim_trace.sv
                # A rising edge loads or saves a memory bank, bit worker · memories + bank, from or to its file.
                "load": In(banks),
                "save": In(banks),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        workers: list[Any] = [BlackBox(worker_signature(self._config), _WORKER) for _ in range(self._workers)]
        m.submodules.merge = merge = Merge(FrameBeat, self._workers)
        m.submodules.aggregator = aggregator = Aggregator(
            AggregatorConfig(slots=self._config.slots, jobs=_JOBS, ports=self._workers)
        )
        wiring.connect(m, wiring.flipped(self.aggregator_control), aggregator.control)
        for index, worker in enumerate(workers):
            m.submodules[f"worker{index}"] = worker
            wiring.connect(m, wiring.flipped(self.control[index]), worker.control)
            m.d.comb += self.idle[index].eq(worker.idle)
            self._attach_memories(m, worker, index)
            m.submodules[f"pause{index}"] = pause = Pause(_PAUSES + index)
            m.d.comb += [pause.seed.eq(self.seed), pause.chance.eq(self._chance("worker_pause", index))]
            up = self._link(m, "up", index, pause.paused)
            connect_stream(m, up.o, merge.i[index])
            down = self._link(m, "down", index, pause.paused)
            connect_stream(m, down.o, worker.rx)
            m.d.comb += [  # a link is always ready
                worker.tx.ready.eq(1),
                up.i.payload.eq(worker.tx.payload),
                up.i.valid.eq(worker.tx.valid & ~self.up_cut[index]),
                down.i.payload.eq(aggregator.tx.payload.beat),
                down.i.valid.eq(aggregator.tx.valid & aggregator.tx.payload.ports[index] & ~self.down_cut[index]),
            ]
        m.submodules.notes = Instance(
            "sim_trace",
            p_WORKERS=self._workers,
            p_EVENTS=len(EVENTS),
            p_LIMIT=EVENTS_LIMIT,
            p_FILE=EVENTS_FILE,
            i_clk=ClockSignal(),
            i_enable=self.note_events & ~ResetSignal(),  # in which they have any value
            i_events=Cat(worker.events for worker in workers),
        )
        m.d.comb += [
            self.all_idle.eq(self.idle.all()),
            aggregator.tx.ready.eq(1),
            aggregator.rx.payload.beat.eq(merge.o.payload.item),
            aggregator.rx.payload.port.eq(merge.o.payload.port),
            aggregator.rx.valid.eq(merge.o.valid),
            merge.o.ready.eq(aggregator.rx.ready),
        ]
        return m

    def _attach_memories(self, m: Module, worker: Any, index: int) -> None:
        config = self._config
        for bank in range(config.memories):
            port, number = memory_port(config, worker, bank), index * config.memories + bank
            bits = 8 * LABEL_BYTES if bank == config.labels_memory else config.port_bits
            file = memory_file(index, bank)
            memory = SimMemory(bits, MEMORY_BITS, file=file, instance=1000 + number)
            m.submodules[f"memory{number}"] = memory
            for channel in ("aw", "w", "b", "ar", "r"):
                if hasattr(port, channel):
                    wiring.connect(m, getattr(port, channel), getattr(memory.bus, channel))
            m.d.comb += [
                memory.seed.eq(self.seed),
                memory.stall.eq(self._chance("memory_stall", index)),
                memory.gap.eq(self._chance("memory_gap", index)),
                memory.timing.eq(Cat(getattr(self, f"memory_{name}") for name, _ in MEMORY_TIMING)),
                memory.load.eq(self.load[number]),
                memory.save.eq(self.save[number]),
            ]

    def _chance(self, name: str, worker: int) -> Value:
        return Mux(self.spared[worker], 0, getattr(self, name))

    def _link(self, m: Module, direction: str, worker: int, hold: Signal) -> Link:
        instance = 2 * worker + DIRECTIONS.index(direction)
        m.submodules[f"{direction}{worker}"] = link = Link(CABLE_CYCLES, instance)
        m.d.comb += [link.seed.eq(self.seed), link.stall.eq(self._chance("link_stall", worker)), link.hold.eq(hold)]
        m.d.comb += [getattr(link, name).eq(self._chance(f"{direction}_{name}", worker)) for name in LINK_CHANCES]
        return link


@cache
def _source_hash() -> str:
    """Hash of every Python file that the Verilog of a cluster depends on, and of Amaranth's version."""
    digest = hashlib.sha256(version("amaranth").encode())
    for root in (Path(str(hw.__file__)).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def cluster_verilog(config: WorkerConfig, workers: int) -> str:
    """The Verilog of a cluster, module ``cluster``, and of all modules in it."""
    worker, engine = worker_parts(config)
    parts = {"cluster": Cluster(config, workers), _WORKER: worker, ENGINE: engine}
    return "\n".join(to_verilog(part, name) for name, part in parts.items())


def _verilog(config: WorkerConfig, workers: int) -> str:
    """The Verilog from the cache: elaboration takes several seconds."""
    key = hashlib.sha256(f"{_source_hash()} {config} {workers}".encode()).hexdigest()[:24]

    def generate(folder: Path) -> None:
        _logger.info("generating Verilog")
        (folder / "cluster.v").write_text(cluster_verilog(config, workers))

    return (cached("verilog", f"cluster-{key}", generate) / "cluster.v").read_text()


def check_scope(config: WorkerConfig, workers: int, scope: str) -> None:
    """ValueError if a cluster has no such instance, ``worker0.engine1``: it names those there are."""
    found = modules(_verilog(config, workers))
    module, inside = "cluster", "the cluster"
    for name in scope.split("."):
        parts = {instance: module for module, instance in instances(found.get(module, ""))}
        if name not in parts:
            raise ValueError(f"{inside} has {', '.join(sorted(parts)) or 'no instances'}, but no {name}")
        module, inside = parts[name], name


def build_cluster(config: WorkerConfig, workers: int, *, waves: bool = False) -> verilator.Build:
    """Compile the simulator of a cluster, or find it in the cache; raises as `p4sgd.sim.verilator.build`."""
    return compile_cluster(_verilog(config, workers), waves=waves)


def compile_cluster(text: str, *, waves: bool = False) -> verilator.Build:
    """`build_cluster`, of what `cluster_verilog` makes.

    Registers and memories begin with random values: what has no reset must not depend on them.
    """
    sources = [Path(__file__).with_name(name) for name in ("sim_storage.sv", "sim_trace.sv")]
    text = verilator.random_registers(verilator.random_memories(text))
    return verilator.build(text, "cluster", sources=sources, waves=waves, optimize=True, apart=(_WORKER, ENGINE))
