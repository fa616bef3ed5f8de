"""Builds of the simulator of a cluster, or of a single worker.

Elaboration takes several seconds, so the Verilog is cached as well, by configuration and by a hash of its sources.
"""

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

from amaranth.lib import wiring

from p4sgd import hw
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import to_verilog
from p4sgd.hw.worker.worker import ENGINE, WORKER, worker_verilog
from p4sgd.sim import verilator
from p4sgd.sim.cache import cached
from p4sgd.sim.cluster.cluster import Cluster, SingleWorker

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


def _verilog(config: WorkerConfig, top: str, size: str, make: Callable[[], wiring.Component]) -> str:
    key = hashlib.sha256(f"{_source_hash()} {config} {size}".encode()).hexdigest()[:24]

    def generate(folder: Path) -> None:
        _logger.info("generating Verilog")
        (folder / f"{top}.v").write_text("\n".join([to_verilog(make(), top), *worker_verilog(config)]))

    return (cached("verilog", f"{top}-{key}", generate) / f"{top}.v").read_text()


def build_cluster(config: WorkerConfig, workers: int, *, waves: bool = False) -> verilator.Build:
    """Compile the simulator of a cluster, or find it in the cache; raises as `p4sgd.sim.verilator.build`."""
    text = _verilog(config, "cluster", str(workers), lambda: Cluster(config, workers))
    return _compile(text, "cluster", "sim_storage.sv", "sim_trace.sv", waves=waves)


def build_single_worker(config: WorkerConfig) -> verilator.Build:
    """Compile the simulator of a single worker, or find it in the cache; raises as `p4sgd.sim.verilator.build`."""
    text = _verilog(config, "single_worker", "", lambda: SingleWorker(config))
    return _compile(text, "single_worker", "sim_storage.sv")


def _compile(text: str, top: str, *models: str, waves: bool = False) -> verilator.Build:
    sources = [Path(__file__).with_name(name) for name in models]
    return verilator.build(text, top, sources=sources, waves=waves, optimize=True, apart=(WORKER, ENGINE))
