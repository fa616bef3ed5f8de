"""A whole cluster as one design: workers, aggregator, cables and memories.

The workers are instances of Verilog that is generated once, as for a board.
"""

from typing import Any

from amaranth.hdl import Cat, ClockSignal, Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.bus import axi4_lite
from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.bus.stream import connect_stream
from p4sgd.hw.external import External
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.events import EVENTS
from p4sgd.hw.spec.image import LABEL_BYTES
from p4sgd.hw.worker.verilog import WORKER
from p4sgd.hw.worker.worker import memory_port, worker_signature
from p4sgd.sim.cluster.link import Link
from p4sgd.sim.cluster.memory import SimMemory
from p4sgd.sim.cluster.merge import Merge
from p4sgd.sim.cluster.protocol import EVENTS_FILE, EVENTS_LIMIT, MEMORY_BITS, memory_file

__all__ = ["Cluster"]

_CABLE_CYCLES = 20
"""Cycles from a worker to the aggregator or back, MACs included."""


class Cluster(wiring.Component):
    """``workers`` workers around one aggregator, in one clock domain::

        SimMemory × …    ◀─▶ Worker ── Link ──▶ ┌───────┐    ┌────────────┐
                                 ▲     ...       │ Merge ├───▶│ Aggregator │
                                 │               └───────┘    └─────┬──────┘
                                 └───── Link ◀── by port bitmap ────┘

    Worker i is behind port i of the aggregator.

    Parameters
    ----------
    config
        Size of every worker.
    workers
        How many, 1 to 32.

    Members
    -------
    control : In(AXI4-Lite).array(workers), aggregator_control : In(AXI4-Lite)
    idle : Out(workers), all_idle : Out(1)
        Workers without a run; for a simulator that waits without looking at every clock edge.
    seed : In(32)
        Of all random numbers; stable before reset ends.
    memory_stall, link_stall : In(8)
        Chance of a stall in each cycle and channel, in 1/256.
    link_loss, link_duplication, link_reordering : In(16)
        Chance that a frame is lost, comes twice, or is overtaken by others, in 1/65536; see `Link`.
    note_events : In(1)
        Note the workers' events in a file; see ``sim_trace.sv``.
    load, save : In(workers · memories)
        A rising edge loads or saves a memory bank (bit worker · memories + bank) from or to its file.
    """

    def __init__(self, config: WorkerConfig, workers: int) -> None:
        self._config = config
        self._workers = workers
        banks = workers * config.memories
        super().__init__(
            {
                "control": In(axi4_lite.Signature()).array(workers),
                "aggregator_control": In(axi4_lite.Signature()),
                "idle": Out(workers),
                "all_idle": Out(1),
                "seed": In(32),
                "memory_stall": In(8),
                "link_stall": In(8),
                "link_loss": In(16),
                "link_duplication": In(16),
                "link_reordering": In(16),
                "note_events": In(1),
                "load": In(banks),
                "save": In(banks),
            }
        )

    control: list[Any]
    aggregator_control: Any
    idle: Signal
    all_idle: Signal
    seed: Signal
    memory_stall: Signal
    link_stall: Signal
    link_loss: Signal
    link_duplication: Signal
    link_reordering: Signal
    note_events: Signal
    load: Signal
    save: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        workers: list[Any] = [External(worker_signature(self._config), WORKER) for _ in range(self._workers)]
        m.submodules.merge = merge = Merge(FrameBeat, self._workers)
        m.submodules.aggregator = aggregator = Aggregator(
            AggregatorConfig(slots=self._config.slots, jobs=1, ports=self._workers)
        )
        wiring.connect(m, wiring.flipped(self.aggregator_control), aggregator.control)
        for index, worker in enumerate(workers):
            m.submodules[f"worker{index}"] = worker
            wiring.connect(m, wiring.flipped(self.control[index]), worker.control)
            m.d.comb += self.idle[index].eq(worker.idle)
            self._attach_memories(m, index, worker)

            up = self._link(m, f"up{index}", 2 * index)
            connect_stream(m, worker.tx, up.i)
            connect_stream(m, up.o, merge.i[index])
            down = self._link(m, f"down{index}", 2 * index + 1)
            connect_stream(m, down.o, worker.rx)
            m.d.comb += [  # a link is always ready
                down.i.payload.eq(aggregator.tx.payload.beat),
                down.i.valid.eq(aggregator.tx.valid & aggregator.tx.payload.ports[index]),
            ]
        m.submodules.notes = Instance(
            "sim_trace",
            p_WORKERS=self._workers,
            p_EVENTS=len(EVENTS),
            p_LIMIT=EVENTS_LIMIT,
            p_FILE=EVENTS_FILE,
            i_clk=ClockSignal(),
            i_enable=self.note_events,
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

    def _link(self, m: Module, name: str, instance: int) -> Link:
        m.submodules[name] = link = Link(_CABLE_CYCLES, instance)
        m.d.comb += [
            link.seed.eq(self.seed),
            link.loss.eq(self.link_loss),
            link.duplication.eq(self.link_duplication),
            link.reordering.eq(self.link_reordering),
            link.stall.eq(self.link_stall),
        ]
        return link

    def _attach_memories(self, m: Module, index: int, worker: Any) -> None:
        config = self._config
        for bank in range(config.memories):
            number = index * config.memories + bank
            labels = bank == config.labels_memory
            port = memory_port(config, worker, bank)
            bits = 8 * LABEL_BYTES if labels else config.port_bits
            m.submodules[f"memory{number}"] = memory = SimMemory(
                bits, MEMORY_BITS, file=memory_file(index, bank), instance=1000 + number
            )
            for channel in ("aw", "w", "b", "ar", "r"):
                if hasattr(port, channel):
                    wiring.connect(m, getattr(port, channel), getattr(memory.bus, channel))
            m.d.comb += [
                memory.seed.eq(self.seed),
                memory.stall.eq(self.memory_stall),
                memory.load.eq(self.load[number]),
                memory.save.eq(self.save[number]),
            ]
