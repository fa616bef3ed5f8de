"""Top level of a simulated board: a worker with its memories, whose frames come from and go to the outside."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus import axi4_lite
from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.external import External
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.worker.verilog import WORKER
from p4sgd.hw.worker.worker import worker_signature
from p4sgd.sim.cluster.banks import attach_memories

__all__ = ["Board"]

_WAITING = 64
"""Frames that may wait for the simulator's client to take them."""


class Board(wiring.Component):
    """A worker whose frames a program carries::

        SimMemory × … ◀─▶ Worker ──▶ FIFO ──▶ tx
                                 ◀─────────── rx

    Parameters
    ----------
    config
        Size of the worker.

    Members
    -------
    control : In(AXI4-Lite).array(1)
    idle : Out(1), all_idle : Out(1)
        The worker has no run; named as of a cluster.
    seed : In(32), memory_stall : In(8), load : In(memories), save : In(memories)
        As of a `Cluster`.
    tx : Out(stream of FrameBeat), rx : In(stream of FrameBeat)
        Frames to and from the network.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        super().__init__(
            {
                "control": In(axi4_lite.Signature()).array(1),
                "idle": Out(1),
                "all_idle": Out(1),
                "seed": In(32),
                "memory_stall": In(8),
                "load": In(config.memories),
                "save": In(config.memories),
                "tx": Out(stream.Signature(FrameBeat)),
                "rx": In(stream.Signature(FrameBeat)),
            }
        )

    control: list[Any]
    idle: Signal
    all_idle: Signal
    seed: Signal
    memory_stall: Signal
    load: Signal
    save: Signal
    tx: stream.Interface
    rx: stream.Interface

    def elaborate(self, platform: object) -> Module:
        m = Module()
        worker: Any = External(worker_signature(self._config), WORKER)
        m.submodules.worker = worker
        wiring.connect(m, wiring.flipped(self.control[0]), worker.control)
        wiring.connect(m, wiring.flipped(self.rx), worker.rx)
        attach_memories(
            m,
            self._config,
            worker,
            0,
            seed=self.seed,
            stall=self.memory_stall,
            load=self.load,
            save=self.save,
        )
        m.submodules.sent = sent = SyncFIFOBuffered(width=FrameBeat.size, depth=_WAITING)
        m.d.comb += [
            self.idle.eq(worker.idle),
            self.all_idle.eq(worker.idle),
            sent.w_data.eq(worker.tx.payload),
            sent.w_en.eq(worker.tx.valid),
            worker.tx.ready.eq(sent.w_rdy),
            self.tx.payload.eq(sent.r_data),
            self.tx.valid.eq(sent.r_rdy),
            sent.r_en.eq(self.tx.ready),
        ]
        return m
