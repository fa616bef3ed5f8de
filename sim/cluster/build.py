"""Builds of the simulator of a cluster.

Elaboration takes several seconds, so the Verilog is cached as well, by configuration and by a hash of its sources.
"""

import hashlib
import logging
from functools import cache
from importlib.metadata import version
from pathlib import Path

from p4sgd import hw
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import to_verilog
from p4sgd.hw.worker.worker import ENGINE, WORKER, worker_verilog
from p4sgd.sim import verilator
from p4sgd.sim.cache import cached
from p4sgd.sim.cluster.cluster import Cluster

_logger = logging.getLogger(__name__)


@cache
def _source_hash() -> str:
    """Hash of every Python file that the Verilog of a cluster depends on, and of Amaranth's version."""
    digest = hashlib.sha256(version("amaranth").encode())
    for root in (Path(str(hw.__file__)).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _verilog(config: WorkerConfig, workers: int) -> str:
    key = hashlib.sha256(f"{_source_hash()} {config} {workers}".encode()).hexdigest()[:24]

    def generate(folder: Path) -> None:
        _logger.info("generating Verilog")
        text = "\n".join([to_verilog(Cluster(config, workers), "cluster"), *worker_verilog(config)])
        (folder / "cluster.v").write_text(text)

    return (cached("verilog", f"cluster-{key}", generate) / "cluster.v").read_text()


def build_cluster(config: WorkerConfig, workers: int, *, waves: bool = False) -> verilator.Build:
    """Compile the simulator of a cluster, or find it in the cache; raises as `p4sgd.sim.verilator.build`."""
    sources = [Path(__file__).with_name(name) for name in ("sim_storage.sv", "sim_trace.sv")]
    text = _verilog(config, workers)
    return verilator.build(text, "cluster", sources=sources, waves=waves, optimize=True, apart=(WORKER, ENGINE))
