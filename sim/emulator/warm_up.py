"""Getting the compiled kernels ready before somebody waits for them."""

import numpy as np

from p4sgd.hw.spec import registers as spec
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.register_map import RegisterClient
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.sim.emulator.worker import EmulatedWorker, Run

__all__ = ["warm_up"]


def warm_up(config: WorkerConfig) -> None:
    """Do a small run with every kernel that workers of a configuration need: the first on a machine takes seconds.

    Other workers would take so long a wait for a lost packet.
    """
    worker = EmulatedWorker(config, 0)
    client = RegisterClient(worker.read_register, worker.write_register)
    client.write(spec.FORMAT, precision=1, stored=1)
    client.write(spec.RUN, model_source=ModelSource.ZERO.value)
    for register in (spec.CHUNKS, spec.MICRO_BATCHES, spec.MINI_BATCHES, spec.SHRINK_FACTOR, spec.THRESHOLD):
        client.write(register, value=1)
    for memory in range(config.memories):
        worker.write_memory(memory, 0, np.zeros(BANKS * config.lanes, np.uint8))
    run = Run(worker)
    run.update(0, run.partials(0))
