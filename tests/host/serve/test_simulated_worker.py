"""A worker process that simulates the Verilog of a worker."""

import random
import time
from collections import Counter

import numpy as np
import pytest
from support.aggregator_model import Aggregator
from support.bench import default_seed
from support.jobs import configure, random_job, run_on, start
from support.worker_process import OneWorker, aggregating, serve_worker

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.remote_worker import RemoteWorker
from p4sgd.host.errors import P4sgdError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.serve import worker as server
from p4sgd.host.serve.simulated_worker import SimulatedWorker
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.sim.cluster.build import build_single_worker
from p4sgd.sim.cluster.protocol import MEMORY_BITS

TINY = WorkerConfig.tiny()
MAC = 0x0250_3453_47FF

HASTY, PATIENT = 2_500_000, 250_000_000
"""RESEND_CYCLES: about 10 ms and 1 s of this machine's time."""

pytestmark = [pytest.mark.rtl, pytest.mark.slow]


@pytest.fixture
def address(tmp_path):
    return ControlAddress.parse(f"unix:{tmp_path}/board")


@pytest.fixture(scope="module", autouse=True)
def built():
    """The model: to compile it takes longer than what follows waits."""
    build_single_worker(TINY)


@pytest.fixture
def board(address):
    made = []

    def make(config, send):
        made.append(SimulatedWorker(config, send))
        return made[0]

    try:
        with serve_worker(TINY, str(address), memory_limit=1 << 30, make=make) as far:
            yield far
    finally:
        for worker in made:
            worker.close()


@pytest.fixture
def remote(board, address):
    worker = RemoteWorker(0, address)
    yield worker
    worker.close()


def serving(job):
    """An aggregator with a job of one worker, as `configure` numbers it."""
    aggregator = Aggregator(TINY.slots, mac=MAC)
    aggregator.begin(0, Job(0, (Member(0x0200_0000, 0),), 1 << 40, 1))
    return aggregator


def test_its_weights_are_golden_run_after_run(board, remote):
    """Before every answer come frames that are not of the protocol, of all lengths."""
    seed = default_seed()
    rng = random.Random(seed)
    job = random_job(TINY, 1, seed=seed, mini_batches=5)
    aggregator = serving(job)
    answer = aggregator.receive_frame

    def disturb(frame, port):
        board.send(rng.randbytes(rng.choice([1, 14, 60, 63, 64, 65, 128, 1514])))
        return answer(frame, port)

    aggregator.receive_frame = disturb
    with aggregating(board, aggregator):
        weights, status, (counted,) = run_on(OneWorker(remote), job, runs=2, aggregator_mac=MAC, resend_cycles=PATIENT)
    assert weights[0].tolist() == job.golden(2).weights[0].tolist()
    assert not status[0]["network_error"]
    operations = job.settings.mini_batches * job.settings.micro_batches
    assert counted["PACKETS_SENT"] == 2 * operations
    assert counted["PACKETS_RECEIVED"] == 4 * operations
    assert counted["PACKETS_DROPPED"] == 2 * operations


def test_lost_packets_are_sent_again(board, remote):
    """The aggregator hears nothing of every third."""
    job = random_job(TINY, 1, seed=3, mini_batches=5)
    aggregator = serving(job)
    hear, heard = aggregator.receive_frame, []

    def lose(frame, port):
        heard.append(frame)
        return hear(frame, port) if len(heard) % 3 else None

    aggregator.receive_frame = lose
    with aggregating(board, aggregator):
        weights, _, (counted,) = run_on(OneWorker(remote), job, aggregator_mac=MAC, resend_cycles=HASTY)
    assert weights[0].tolist() == job.golden().weights[0].tolist()
    assert counted["PACKETS_RESENT"] >= len(heard) // 3 > 3


def test_a_probe_is_answered_without_a_run(board, remote):
    job = random_job(TINY, 1, seed=5)
    aggregator = serving(job)
    (client,) = configure([remote], job, aggregator_mac=MAC)
    with aggregating(board, aggregator):
        client.write(registers.PROBE, slot=1, number=77, broadcast=0)
        end = time.monotonic() + 10
        while not client.read(registers.ECHO)["came"]:
            assert time.monotonic() < end
    assert client.read(registers.ECHO)["number"] == 77
    assert client.read(registers.ECHO)["verdict"] == 0


def give_up(remote, **options):
    """A run that nobody answers."""
    job = random_job(TINY, 1, seed=1)
    (client,) = configure([remote], job, aggregator_mac=MAC, **options)
    start([client], job)
    return client


def drain(board, silence_s, within_s=60.0):
    """Packets that come until none has come for a time."""
    packets = []
    board.settimeout(silence_s)
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            packets.append(Packet.from_bytes(board.recv(2048)))
        except TimeoutError:
            return packets
    raise AssertionError("packets do not end")


def test_it_gives_up_when_nobody_answers(board, remote):
    """After a packet and three resends of each slot, with a probe."""
    client = give_up(remote, resend_cycles=HASTY, resends=3)
    packets = drain(board, 3.0)
    assert remote.await_end(10)
    assert client.read(registers.STATUS)["network_error"]
    assert client.read(registers.GIVEN_UP)["given_up"]
    *partials, probe = packets
    assert probe.type is PacketType.PROBE
    assert {packet.type for packet in partials} == {PacketType.PARTIAL}
    counts = Counter(packet.slot for packet in partials)
    assert counts[probe.slot] == max(counts.values()) == 4


def test_a_run_that_is_left_alone_is_aborted(board, remote, address, monkeypatch):
    monkeypatch.setattr(server, "_ORPHAN_S", 0.3)
    give_up(remote, resend_cycles=HASTY)
    assert not remote.await_end(0.05)
    remote.close()
    assert drain(board, 3.0), "resends, until it is aborted"
    again = RemoteWorker(0, address)
    client = client_of(again)
    assert client.read(registers.STATUS)["aborted"]
    client.write(registers.CTRL, start=1)
    assert again.await_end(10)
    assert client.read(registers.STATUS)["not_joined"], "the worker is in no job any more"
    again.close()
    assert drain(board, 0.2) == []


def test_memory_waits_for_the_end_of_a_run(board, remote):
    client = give_up(remote, resend_cycles=PATIENT)
    with pytest.raises(P4sgdError, match="refuses: a run is under way"):
        remote.read_memory(0, 0, 64)
    with pytest.raises(P4sgdError, match="refuses: a run is under way"):
        remote.write_memory(0, 0, np.zeros(64, np.uint8))
    client.write(registers.ABORT, abort=1)
    assert remote.await_end(10)
    remote.write_memory(0, 0, np.full(64, 7, np.uint8))
    assert remote.read_memory(0, 0, 64).tolist() == [7] * 64


def test_a_bank_has_an_end(remote):
    """Of which the client is told; the worker goes on."""
    last = (1 << MEMORY_BITS) - 64
    remote.write_memory(0, last, np.arange(64, dtype=np.uint8))
    for ask in (
        lambda: remote.write_memory(0, last + 1, np.zeros(64, np.uint8)),
        lambda: remote.read_memory(0, 1, last + 64),
    ):
        with pytest.raises(P4sgdError, match=r"refuses: bank 0 needs 16,777,217 bytes, the simulated memory has"):
            ask()
    assert remote.read_memory(0, last, 64).tolist() == list(range(64))
