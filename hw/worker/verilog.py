"""Verilog of a worker, in which an engine is written once."""

from p4sgd.hw.external import External
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import to_verilog
from p4sgd.hw.worker.engine import Engine
from p4sgd.hw.worker.worker import Worker

__all__ = ["ENGINE", "WORKER", "engine_verilog", "worker_verilog"]

WORKER = "p4sgd_worker"
"""Module of the worker."""

ENGINE = f"{WORKER}_engine"
"""Module of an engine."""


def engine_verilog(config: WorkerConfig) -> str:
    """One engine, module `ENGINE`."""
    return to_verilog(Engine(config), ENGINE)


def worker_verilog(config: WorkerConfig, *, build_id: int = 0) -> tuple[str, str]:
    """The worker in two texts: `WORKER` with instances of `ENGINE`, and `ENGINE`.

    An engine that is elaborated once and not for every instance takes minutes less at the size of a board.
    """
    engine = Engine(config)
    worker = Worker(config, build_id=build_id, engine=lambda _: External(engine.signature, ENGINE))
    return to_verilog(worker, WORKER), to_verilog(engine, ENGINE)
