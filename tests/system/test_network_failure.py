"""Workers that nobody answers end their runs, say who is missing, and train on as if nothing had been."""

import random

import pytest
from support.bench import default_seed
from support.jobs import random_job, run_on

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.diagnosis import explain_network_error
from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig

TINY = WorkerConfig.tiny()


class EndedError(Exception):
    """A run has ended early."""


def clients_of(device):
    return [client_of(worker) for worker in device.workers]


def run_into(device, job, cycles, fault):
    """Begin a run, let a fault happen after some cycles, and wait for the end; returns what STATUS says."""
    wait = device.wait

    def wait_for_fault(timeout_s=None):
        device._request("run", cycles=cycles)
        fault()
        wait(0.002)
        raise EndedError

    device.wait = wait_for_fault
    try:
        with pytest.raises(EndedError):
            run_on(device, job, resend_cycles=400, resends=5)
    finally:
        device.wait = wait
    clients = clients_of(device)
    assert all(client.read(registers.CTRL)["idle"] for client in clients)
    return [client.read(registers.STATUS) for client in clients]


def assert_right(device, job):
    weights, status, _ = run_on(device, job)
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden().weights]
    assert not any(flags["network_error"] or flags["aborted"] for flags in status)


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize("stall", [0.0, 0.2])
def test_a_missing_worker_is_named_and_the_next_run_is_right(stall):
    seed = default_seed()
    pick = random.Random(seed)
    device = RtlDevice(TINY, 3, seed=seed, memory_stall=stall, link_stall=stall)
    try:
        for number in range(6):
            job = random_job(TINY, 3, seed=seed + number, mini_batches=30)  # 3,000 cycles or more: network's way alone
            cycles = pick.randrange(1, 1500)
            print(f"P4SGD_SEED={seed}, worker 2 is lost after {cycles} cycles of {job.settings}")
            # Nobody hears it any more.
            status = run_into(
                device, job, cycles, lambda: clients_of(device)[2].write_pair(registers.PEER_MAC, 0x0250_0000_0BAD)
            )
            assert all(flags["network_error"] for flags in status)
            said = explain_network_error(clients_of(device))
            assert said.startswith("worker 2 no longer answers: worker 0, 1 waited for it in vain (slot "), said
            assert_right(device, job)
    finally:
        device.close()


@pytest.mark.rtl
def test_a_run_is_aborted_at_any_time():
    seed = default_seed()
    pick = random.Random(seed)
    device = RtlDevice(TINY, 2, seed=seed, memory_stall=0.1)

    def abort():
        for client in clients_of(device):
            client.write(registers.ABORT, abort=1)

    try:
        ended = 0
        for number in range(12):
            job = random_job(TINY, 2, seed=seed + number, mini_batches=12)
            cycles = pick.choice([pick.randrange(1, 60), pick.randrange(60, 2000)])
            print(f"P4SGD_SEED={seed}, aborted after {cycles} cycles of {job.settings}")
            status = run_into(device, job, cycles, abort)
            assert not any(flags["network_error"] for flags in status)
            ended += all(flags["aborted"] for flags in status)
            assert_right(device, job)
        assert ended > 3, "nearly all runs were over before"
    finally:
        device.close()


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            lambda device: device.aggregator.set_mac(0x0250_0000_0BAD),
            "the aggregator does not answer worker 0, 1, not even a probe",
        ),
        (
            lambda device: clients_of(device)[1].write_pair(registers.LOCAL_MAC, 0x0250_0000_0BAD),
            "the aggregator drops what worker 1 sends: it is from another MAC address",
        ),
        (
            lambda device: device.aggregator.end(0),
            "the aggregator drops what worker 0 sends: it is of another job",
        ),
    ],
    ids=["aggregator", "address", "job"],
)
def test_the_reason_is_found(fault, says):
    seed = default_seed()
    device = RtlDevice(TINY, 2, seed=seed)
    try:
        status = run_into(device, random_job(TINY, 2, seed=seed, mini_batches=30), 200, lambda: fault(device))
        assert any(flags["network_error"] for flags in status)
        assert explain_network_error(clients_of(device)).startswith(says)
    finally:
        device.close()
