"""A worker made of Verilog, served as a board."""

import random
import time

import numpy as np
import pytest
from support.bench import default_seed
from support.board import OneWorker, aggregating, serve_board
from support.jobs import configure, random_job, run_on, start

from p4sgd.host.board import server
from p4sgd.host.board.client import RemoteWorker
from p4sgd.host.board.simulated import SimulatedWorker
from p4sgd.host.control.address import ControlAddress
from p4sgd.host.devices.device import client_of
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.sim.cluster.build import build_board
from p4sgd.sim.cluster.protocol import MEMORY_BITS
from p4sgd.sim.network.aggregator import Aggregator

TINY = WorkerConfig.tiny()
MAC = 0x0250_3453_47FF

pytestmark = [pytest.mark.rtl, pytest.mark.slow]


@pytest.fixture
def address(tmp_path):
    return ControlAddress.parse(f"unix:{tmp_path}/board")


@pytest.fixture(scope="module", autouse=True)
def built():
    """The model: to compile it takes longer than what follows waits."""
    build_board(TINY)


@pytest.fixture
def board(address):
    made = []

    def make(config, send):
        made.append(SimulatedWorker(config, send))
        return made[0]

    try:
        with serve_board(TINY, str(address), memory_limit=1 << 30, make=make) as far:
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
    """Frames that are not of the protocol come between, of all lengths."""
    seed = default_seed()
    print(f"P4SGD_SEED={seed}")
    rng = random.Random(seed)
    job = random_job(TINY, 1, seed=seed, mini_batches=5)
    aggregator = serving(job)
    garbage = [rng.randbytes(rng.choice([1, 14, 60, 63, 64, 65, 128, 1514])) for _ in range(20)]
    for frame in garbage:
        board.send(frame)
    with aggregating(board, aggregator):
        weights, status, (counted,) = run_on(OneWorker(remote), job, runs=2, aggregator_mac=MAC, resend_cycles=500_000)
    assert weights[0].tolist() == job.golden(2).weights[0].tolist()
    assert not status[0]["network_error"]
    operations = job.settings.mini_batches * job.settings.micro_batches
    assert counted["PACKETS_SENT"] == counted["PACKETS_RECEIVED"] == 2 * operations


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
        weights, _, (counted,) = run_on(OneWorker(remote), job, aggregator_mac=MAC, resend_cycles=5000)
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


def test_it_gives_up_when_nobody_answers(board, remote):
    client = give_up(remote, resend_cycles=2000, resends=3)
    assert remote.await_end(10)
    assert client.read(registers.STATUS)["network_error"]
    assert client.read(registers.GIVEN_UP)["given_up"]
    board.setblocking(False)
    types = [Packet.from_bytes(board.recv(2048)).type for _ in range(5)]
    assert types.count(PacketType.PARTIAL) >= 4


def test_a_run_that_is_left_alone_is_aborted(board, remote, address, monkeypatch):
    monkeypatch.setattr(server, "_ORPHAN_S", 0.3)
    give_up(remote, resend_cycles=2000)
    assert not remote.await_end(0.05)
    remote.close()
    time.sleep(1.0)
    again = RemoteWorker(0, address)
    assert client_of(again).read(registers.STATUS)["aborted"]
    assert client_of(again).read(registers.CTRL)["idle"]
    again.close()


def test_a_bank_has_an_end(remote):
    """Of which the client is told; the worker goes on."""
    last = (1 << MEMORY_BITS) - 64
    remote.write_memory(0, last, np.arange(64, dtype=np.uint8))
    with pytest.raises(P4sgdError, match=r"worker 0 at .* refuses: bank 0 .* the simulated memory has 16,777,216"):
        remote.write_memory(0, last + 1, np.zeros(64, np.uint8))
    assert remote.read_memory(0, last, 64).tolist() == list(range(64))


def test_a_simulator_that_ends_is_told():
    """By who serves it, in words."""
    worker = SimulatedWorker(TINY, lambda frame: None)
    try:
        worker._process._kill()
        with pytest.raises(P4sgdError, match="the simulator ended unexpectedly"):
            worker.read_register(0)
    finally:
        worker.close()
