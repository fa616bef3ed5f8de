"""A job may have any number, first round and aggregator's address: the simulated aggregator is told what they are."""

import random

import pytest
from support.bench import default_seed
from support.jobs import random_job, run_on

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.spec.config import WorkerConfig

TINY = WorkerConfig.tiny()


@pytest.mark.rtl
def test_jobs_one_after_the_other():
    seed = default_seed()
    pick = random.Random(seed)
    device = RtlDevice(TINY, 2, seed=seed, memory_stall=0.1, link_stall=0.1, link_loss=0.02)
    try:
        for number in range(4):
            # Both sides go from round 65535 to 0 in the first job: it is 8 rounds of all slots long, or longer.
            first_round = pick.randrange(1 << 16) if number else 65530
            job = random_job(TINY, 2, seed=seed + number)
            runs = -(-8 * TINY.slots // (job.settings.micro_batches * job.settings.mini_batches))
            who = {"number": pick.randrange(256), "first_round": first_round, "aggregator_mac": pick.getrandbits(40)}
            print(f"P4SGD_SEED={seed}, {who}, {runs} runs: {job.settings}")
            weights, _, _ = run_on(device, job, runs=runs, **who)
            assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden(runs).weights]
    finally:
        device.close()
