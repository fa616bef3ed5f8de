"""RTL cluster and emulator end with the golden model's weights, bit for bit, whatever memory and network do.

In every other case images of some workers have directories.
"""

import itertools

import pytest
from support.bench import default_seed, times
from support.jobs import SMALL, check_exact, random_job, with_directories

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.losses import LOSSES
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.registers import identity, worker_map
from p4sgd.sim.emulator import EmulatedDevice

TINY = WorkerConfig.tiny()


STALLS = {"memory_stall": 0.2, "memory_gap": 1 / 1000, "link_stall": 0.2}
FAULTS = ({}, STALLS, STALLS | {"link_loss": 0.05, "link_duplication": 0.1, "link_reordering": 0.1})


CASES = [
    {"precision": precision, "signed": signed, "loss": loss, "stale": number % 3 == 0}
    for number, ((precision, signed, _), loss) in enumerate(
        zip(itertools.product((1, 4, 8), (False, True), range(3)), itertools.cycle(LOSSES), strict=False)
    )
] + [{"wild": True, "stale": number % 2 == 0} for number in range(6)]
"""Every precision and sign, and every loss, some with staleness, then a few at the limits of every number."""


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("config", "workers"),
    [
        pytest.param(TINY, 2, id="E1-2"),
        pytest.param(SMALL, 2, id="E2-2", marks=pytest.mark.slow),
    ],
)
def test_random_jobs(config, workers):
    """Every case with one of the `FAULTS`, or as many times with another of them."""
    seed = default_seed()
    places = {name: worker_map(config)[name].offset for name in identity(config)}
    for number in range(times(len(FAULTS))):
        faults = FAULTS[number % len(FAULTS)]
        emulator = EmulatedDevice(config, workers)
        device = RtlDevice(config, workers, seed=seed + number, **faults)
        try:
            for worker in (*device.workers, *emulator.workers):
                assert {name: worker.read_register(offset) for name, offset in places.items()} == identity(config)
            turn = seed + number + number // len(FAULTS)  # of three losses in turn, each time another is first
            for case in (case for case in range(len(CASES)) if (turn + case + case // 3) % 3 == 0):
                job = random_job(config, workers, seed=seed + 1000 * number + case, **CASES[case])
                if case % 2:
                    job = with_directories(job, seed + case)
                print(f"P4SGD_SEED={seed}, {faults}, case {case}: {job.settings}, {job.directories}")
                runs = 1 + case // 2 % 2
                check_exact(device, job, runs, counts=True)
                check_exact(emulator, job, runs, counts=False)
        finally:
            device.close()
