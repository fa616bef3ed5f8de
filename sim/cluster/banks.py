"""The memory banks of a simulated worker."""

from typing import Any

from amaranth.hdl import Module, Value, ValueLike
from amaranth.lib import wiring

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import LABEL_BYTES
from p4sgd.hw.worker.worker import memory_port
from p4sgd.sim.cluster.memory import SimMemory
from p4sgd.sim.cluster.protocol import MEMORY_BITS, memory_file

__all__ = ["attach_memories"]


def attach_memories(
    m: Module, config: WorkerConfig, worker: Any, index: int, *, seed: Value, stall: ValueLike, load: Value, save: Value
) -> None:
    """Give a worker its memories.

    Parameters
    ----------
    m
        The design, which has the worker already.
    config
        The worker's size.
    worker
        Its interface.
    index
        Its number, for the names of files and random numbers.
    seed, stall
        As of `SimMemory`.
    load, save
        A rising edge of a bit loads or saves the bank of that number.
    """
    for bank in range(config.memories):
        port = memory_port(config, worker, bank)
        bits = 8 * LABEL_BYTES if bank == config.labels_memory else config.port_bits
        number = index * config.memories + bank
        m.submodules[f"memory{number}"] = memory = SimMemory(
            bits, MEMORY_BITS, file=memory_file(index, bank), instance=1000 + number
        )
        for channel in ("aw", "w", "b", "ar", "r"):
            if hasattr(port, channel):
                wiring.connect(m, getattr(port, channel), getattr(memory.bus, channel))
        m.d.comb += [
            memory.seed.eq(seed),
            memory.stall.eq(stall),
            memory.load.eq(load[bank]),
            memory.save.eq(save[bank]),
        ]
