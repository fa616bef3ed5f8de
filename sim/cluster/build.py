"""Building the simulator of a cluster."""

from pathlib import Path

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import to_verilog
from p4sgd.sim import verilator
from p4sgd.sim.cluster.cluster import Cluster

__all__ = ["MEMORY_BYTES", "build_cluster"]

_MEMORY_BITS = 24

MEMORY_BYTES = 1 << _MEMORY_BITS
"""Bytes of every simulated memory bank."""


def build_cluster(config: WorkerConfig, workers: int, *, waves: bool = False) -> verilator.Build:
    """Compile a cluster, or find it in the cache.

    Raises
    ------
    MissingToolError, SimulationError
        As :func:`p4sgd.sim.verilator.build`.
    """
    top = "cluster"
    text = to_verilog(Cluster(config, workers, memory_bits=_MEMORY_BITS), top)
    storage = Path(__file__).with_name("sim_storage.sv")
    return verilator.build(text, top, sources=[storage], waves=waves, optimize=True)
