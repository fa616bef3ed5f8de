"""Workers and the simulated aggregator must agree on job, first round and address; the device says if they do not."""

import random

import pytest
from support.bench import default_seed
from support.jobs import random_job, run_on

from p4sgd.host.devices.device import client_of
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig

TINY = WorkerConfig.tiny()


@pytest.mark.rtl
def test_any_number_round_and_address_one_after_the_other(rtl, seed):
    pick = random.Random(seed)
    device = rtl(TINY, 2, seed=seed, memory_stall=0.1, link_stall=0.1, link_loss=0.02)
    for number in range(4):
        # Both sides go from round 65535 to 0 in the first job: it is 8 rounds of all slots long, or longer.
        first_round = pick.randrange(1 << 16) if number else 65530
        job = random_job(TINY, 2, seed=seed + number)
        runs = -(-8 * TINY.slots // (job.settings.micro_batches * job.settings.mini_batches))
        who = {"number": pick.randrange(256), "first_round": first_round, "aggregator_mac": pick.getrandbits(40)}
        print(f"P4SGD_SEED={seed}, {who}, {runs} runs: {job.settings}")
        weights, _, _ = run_on(device, job, runs=runs, **who)
        assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden(runs).weights]


@pytest.mark.rtl
def test_a_join_in_a_run_is_ignored(rtl, seed):
    device = rtl(TINY, 2, seed=seed)
    write = device.cluster_write

    def write_and_join(worker, offset, word):
        write(worker, offset, word)
        if offset == registers.CTRL.offset and word:
            write(worker, registers.JOIN.offset, registers.JOIN.encode(round=999))

    device.cluster_write = write_and_join
    job = random_job(TINY, 2, seed=seed, mini_batches=8)
    weights, _, _ = run_on(device, job, runs=2)
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden(2).weights]


@pytest.mark.rtl
def test_a_worker_that_nobody_hears(rtl):
    device = rtl(TINY, 2, seed=default_seed())
    run_on(device, random_job(TINY, 2, seed=default_seed()))
    clients = [client_of(worker) for worker in device.workers]
    clients[1].write_pair(registers.PEER_MAC, 0xBAD)
    for client in clients:
        client.write(registers.CTRL, start=1)
    with pytest.raises(
        P4sgdError,
        match=r"after 200,000 cycles; .* taken [1-9][0-9,]* packets and dropped [1-9][0-9,]* addressed to",
    ):
        device.wait(0.0001)
