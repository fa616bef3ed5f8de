"""A worker made of two texts, as `p4sgd generate` writes it, trains as the emulator does."""

import functools

import pytest
from support.bench import default_seed
from support.jobs import random_job, run_on

from p4sgd.build.external import External
from p4sgd.build.verilog import ENGINE
from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.verilog import to_verilog
from p4sgd.hw.worker.engine import Engine
from p4sgd.hw.worker.worker import Worker
from p4sgd.sim.cluster import build, cluster

CONFIG = WorkerConfig(engines=2, lanes=8, chunks=4, line_fifo_depth=64, slots=4, table_segments=16)


@pytest.mark.rtl
@pytest.mark.slow
def test_engines_written_once(monkeypatch, tmp_path):
    engine = Engine(CONFIG)
    worker = functools.partial(Worker, engine=lambda _: External(engine.signature, ENGINE))
    monkeypatch.setenv("P4SGD_CACHE", str(tmp_path))
    monkeypatch.setattr(cluster, "Worker", worker)
    monkeypatch.setattr(build, "to_verilog", lambda *top: f"{to_verilog(*top)}\n{to_verilog(engine, ENGINE)}")
    seed = default_seed()
    device = RtlDevice(CONFIG, 1, seed=seed)
    try:
        for case in range(3):
            job = random_job(CONFIG, 1, seed=seed + case, wild=case == 2)
            weights, _, _ = run_on(device, job)
            (expected,) = job.golden().weights
            assert weights[0].tolist() == expected.tolist(), f"P4SGD_SEED={seed}, case {case}"
    finally:
        device.close()
