"""Workers that nobody answers end their runs, say who is missing, and train on as if nothing had been."""

import random

import pytest
from support.jobs import configure, random_job, run_on, start

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.diagnosis import diagnose_worker, explain_network_error
from p4sgd.host.devices.session import Session
from p4sgd.host.experiments.cycles import random_image
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec import aggregator, registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim.emulator.device import EmulatedDevice

TINY = WorkerConfig.tiny()


class EndedError(Exception):
    """A run has ended early."""


def clients_of(device):
    return [client_of(worker) for worker in device.workers]


def run_into(device, job, cycles, fault):
    """Begin a run, let a fault happen after some cycles, and wait for the end; returns what STATUS says."""

    def wait_for_fault(timeout_s=None):
        device._simulator.request("run", cycles=cycles)
        fault()
        type(device).wait(device, 0.002)
        raise EndedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "wait", wait_for_fault)
        with pytest.raises(EndedError):
            run_on(device, job, resend_cycles=400, resends=5)
    clients = clients_of(device)
    assert all(client.read(registers.CTRL)["idle"] for client in clients)
    return [client.read(registers.STATUS) for client in clients]


def assert_right(device, job):
    weights, status, _ = run_on(device, job)
    assert [got.tolist() for got in weights] == [wanted.tolist() for wanted in job.golden().weights]
    assert not any(flags["network_error"] or flags["aborted"] for flags in status)


@pytest.mark.rtl
@pytest.mark.slow
def test_a_missing_worker_is_named_and_the_next_run_is_right(rtl, seed):
    pick = random.Random(seed)
    device = rtl(TINY, 2, seed=seed, memory_stall=0.2, link_stall=0.2)
    for number in range(4):
        job = random_job(TINY, 2, seed=seed + number, mini_batches=30)  # 3,000 cycles or more: network's way alone
        cycles = pick.randrange(1, 1500)
        print(f"P4SGD_SEED={seed}, worker 1 is lost after {cycles} cycles of {job.settings}")
        # Nobody hears it any more.
        status = run_into(
            device, job, cycles, lambda: clients_of(device)[1].write_pair(registers.PEER_MAC, 0x0250_0000_0BAD)
        )
        assert all(flags["network_error"] for flags in status)
        said, _ = explain_network_error([diagnose_worker(client, 0.0) for client in clients_of(device)])
        assert said.startswith("worker 1 no longer answers: worker 0 waited for it in vain (slot "), said
        assert_right(device, job)


@pytest.mark.rtl
@pytest.mark.slow
def test_a_run_is_aborted_at_any_time(rtl, seed):
    pick = random.Random(seed)
    device = rtl(TINY, 2, seed=seed, memory_stall=0.1)

    def abort():
        for client in clients_of(device):
            client.write(registers.ABORT, abort=1)

    ended = 0
    for number in range(8):
        job = random_job(TINY, 2, seed=seed + number, mini_batches=12)
        cycles = pick.choice([pick.randrange(1, 60), pick.randrange(60, 2000)])
        print(f"P4SGD_SEED={seed}, aborted after {cycles} cycles of {job.settings}")
        status = run_into(device, job, cycles, abort)
        assert not any(flags["network_error"] for flags in status)
        ended += all(flags["aborted"] for flags in status)
        assert_right(device, job)
    assert ended > 3, "nearly all runs were over before"


@pytest.mark.rtl
def test_no_run_begins_outside_of_a_job_or_that_cannot_be(rtl, seed):
    """After an abort the sums of before may still come: the next run ends at once, and says why."""
    device = rtl(TINY, 2, seed=seed, link_reordering=0.2)
    job = random_job(TINY, 2, seed=seed, mini_batches=12)
    run_into(device, job, 300, lambda: [client.write(registers.ABORT, abort=1) for client in clients_of(device)])
    clients = clients_of(device)
    for client in clients:
        client.write(registers.STATUS, **{field.name: 1 for field in registers.STATUS.fields})
        client.write(registers.CTRL, start=1)
    device.wait(0.0002)
    for client in clients:
        assert client.read(registers.CTRL)["done"]
        assert [name for name, value in client.read(registers.STATUS).items() if value] == ["not_joined"]
        counters = client.read_counters(registers.counters(TINY))
        assert counters["PACKETS_SENT"] == counters["ENGINE0_LINES"] == 0
    assert_right(device, job)
    clients = configure(device.workers, job)
    addresses = [low for low, _ in (registers.LABELS_ADDRESS, *registers.engine_addresses(TINY, 0))]
    for register, changes in (
        (registers.MINI_BATCHES, {"value": 0}),
        (registers.CHUNKS, {"value": TINY.chunks + 1}),
        (registers.FORMAT, {"directory": 1, "stored": job.settings.features.precision}),  # with no lines
        (registers.PARTIAL_LIMIT, {"value": 0}),
        *((low, {"value": 1 << random.Random(seed).randrange(12)}) for low in addresses),
    ):
        good = [client.read(register) for client in clients]
        for client, known in zip(clients, good, strict=True):
            client.write(register, **known | changes)
        start(clients, job)
        device.wait(0.0002)
        for client, known in zip(clients, good, strict=True):
            assert client.read(registers.STATUS)["refused"]
            client.write(registers.STATUS, refused=1)
            client.write(register, **known)
    assert_right(device, job)


@pytest.mark.rtl
@pytest.mark.slow
def test_a_session_goes_on_after_a_run_was_interrupted(rtl, seed):
    """In a new job, whatever of the old one is under way; no worker is left running."""
    pick = random.Random(seed)
    expected = begin_session(EmulatedDevice(TINY, 2), seed)
    expected.run(ModelSource.ZERO)
    device = rtl(TINY, 2, seed=seed, link_stall=0.3, link_reordering=0.2, link_loss=0.05)
    wait = device.wait

    def interrupted(timeout_s=None):
        device.wait = wait
        device._simulator.request("run", cycles=pick.randrange(200, 2000))
        raise KeyboardInterrupt

    session = begin_session(device, seed)
    for _ in range(4):
        device.wait = interrupted
        with pytest.raises(KeyboardInterrupt):
            session.run(ModelSource.ZERO)
        assert all(client.read(registers.CTRL)["idle"] for client in clients_of(device))
        session.run(ModelSource.ZERO, timeout_s=0.002)
        for got, wanted in zip(session.read_weights(), expected.read_weights(), strict=True):
            assert [each.tolist() for each in got] == [each.tolist() for each in wanted]


def begin_session(device, seed):
    """A session with 640 samples of 60 features a worker, ready to run."""
    layout = ImageLayout(TINY, 60, 640, 4)
    loss = get_loss("logistic")
    session = Session(device)
    session.load_table(loss.table())
    session.upload([random_image(layout, seed + worker) for worker in range(2)])
    features = FeatureFormat(4, 4, False)
    session.configure(
        RunSettings(features, layout.chunks, 2, 40, loss.label_mode, rate_mantissa=128, rate_exponent=16, workers=2)
    )
    return session


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            lambda device: device.aggregator._client.write_pair(aggregator.MAC, 0x0250_0000_0BAD),
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
def test_the_reason_is_found(rtl, seed, fault, says):
    device = rtl(TINY, 2, seed=seed)
    status = run_into(device, random_job(TINY, 2, seed=seed, mini_batches=30), 200, lambda: fault(device))
    assert any(flags["network_error"] for flags in status)
    assert explain_network_error([diagnose_worker(client, 0.0) for client in clients_of(device)])[0].startswith(says)
