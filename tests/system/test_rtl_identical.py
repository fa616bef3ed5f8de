"""The RTL cluster ends with the golden model's weights, bit for bit, whatever memory and network do."""

import pytest
from support.bench import default_seed
from support.jobs import random_job, run_on

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.spec.config import WorkerConfig

TINY = WorkerConfig.tiny()
SMALL = WorkerConfig(engines=2, lanes=8, chunks=16, line_fifo_depth=128, slots=4, table_segments=64)


def check(device, job, runs=1, **options):
    weights, status, counters = run_on(device, job, runs=runs, **options)
    expected = job.golden(runs)
    for worker, (got, wanted) in enumerate(zip(weights, expected.weights, strict=True)):
        assert got.tolist() == wanted.tolist(), f"worker {worker}"
        for name, flag in vars(expected.flags[worker]).items():
            assert status[worker][name] == flag, f"worker {worker}: {name}"
        assert status[worker]["memory_error"] == 0
    for counted in counters:
        causes = [value for name, value in counted.items() if name.startswith("CYCLES_")]
        assert counted["CYCLES"] == sum(causes)
    return counters


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("config", [TINY, SMALL], ids=["E1", "E2"])
def test_random_jobs(config, workers):
    seed = default_seed()
    for number, (stall, loss) in enumerate([(0.0, 0.0), (0.2, 0.0), (0.2, 0.05)]):
        device = RtlDevice(config, workers, seed=seed + number, memory_stall=stall, link_stall=stall, link_loss=loss)
        try:
            for case in range(4):
                job = random_job(config, workers, seed=seed + 100 * number + case, wild=case % 2 == 1)
                print(f"P4SGD_SEED={seed}, disturbance {number}, case {case}: {job.settings}")
                check(device, job, runs=1 + case % 2)
        finally:
            device.close()
