"""Faults of the simulated cluster are where they are said to be: on the way up or down, or at a worker."""

import pytest
from support.jobs import random_job, run_on

from p4sgd.host.devices.device import client_of
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig

TINY = WorkerConfig.tiny()


def counted(worker, name):
    """A counter of a run in progress."""
    client = client_of(worker)
    client.write(registers.SNAPSHOT, take=1)
    return client.read_pair(registers.COUNTERS[name].registers)


@pytest.mark.rtl
@pytest.mark.parametrize("direction", ["up", pytest.param("down", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "fault",
    [{"loss": 0.99999}, pytest.param({"burst_begin": 0.99999, "burst_loss": 0.99999}, marks=pytest.mark.slow)],
)
def test_a_direction_that_loses_all(rtl, direction, fault):
    device = rtl(TINY, 2, seed=1, **{f"{direction}_{name}": chance for name, chance in fault.items()})
    wait = device.wait
    device.wait = lambda _: wait(1e-9)  # the least that there is
    with pytest.raises(P4sgdError, match="still running"):
        run_on(device, random_job(TINY, 2, seed=1))
    assert min(counted(worker, "PACKETS_RESENT") for worker in device.workers) > 3
    assert bool(device.aggregator.counters()["JOB0_ACCEPTED"]) == (direction == "down")
    assert not any(counted(worker, "PACKETS_RECEIVED") for worker in device.workers)


@pytest.mark.rtl
@pytest.mark.slow
def test_faults_change_while_a_device_is_open(rtl):
    job = random_job(TINY, 2, seed=1, mini_batches=4, micro_batches=4)
    device = rtl(TINY, 2, seed=1)
    cycles, resent = [], []
    for number, chances in enumerate(({}, {"worker_pause": 1 / 1000}, {"link_loss": 0.2}, {})):
        device.inject_faults(**chances)
        weights, _, counters = run_on(device, job, number=number, resend_cycles=1000)
        assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden().weights]
        cycles.append(counters[0]["CYCLES"])
        resent.append(counters[0]["PACKETS_RESENT"])
    assert cycles[1] > 2 * cycles[0]
    assert resent[2] > 0
    assert resent[0] == resent[3] == 0
