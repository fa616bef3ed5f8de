"""The server of a worker process: registers and memory, bounds on all that comes, one client at a time, runs."""

import contextlib
import time
from ipaddress import IPv4Address

import numpy as np
import pytest
from support.jobs import configure, random_job, start
from support.worker_process import serve_worker

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.remote_worker import RemoteWorker
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.client import ControlClient, RefusalError
from p4sgd.host.serve import worker as server
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.udp import address_of
from p4sgd.sim.emulator import warm_up

TINY = WorkerConfig.tiny()
LIMIT = 1 << 20
MAC = 0x0250_3453_47FF


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path}/board"


@pytest.fixture
def board(address):
    with serve_worker(TINY, address, memory_limit=LIMIT) as far:
        yield far


def connect(address, index=0):
    return RemoteWorker(index, ControlAddress.parse(address))


@pytest.fixture
def remote(board, address):
    worker = connect(address)
    yield worker
    worker.close()


def test_it_says_what_it_is_to_one_client(remote, address):
    with pytest.raises(UserError, match="in use by another program"):
        connect(address, 7)
    assert remote.config == TINY
    assert client_of(remote).read(registers.CTRL)["idle"]
    assert remote.read_register(0xFFC) == 0, "nothing is there"


def test_addresses_that_its_link_does_not_have_or_reach(address):
    own, other = (address_of(IPv4Address("10.0.0.2"), port) for port in (51201, 51202))
    come_from = r"its packets come from 10\.0\.0\.2:51201, not from"
    with serve_worker(TINY, address, link_address=own), contextlib.closing(connect(address)) as worker:
        client = client_of(worker)
        for local, peer, says in (
            (other, MAC, rf"{come_from} 10\.0\.0\.2:51202: the cluster file must have the former as its udp"),
            (0x0250_3453_4700, other, f"{come_from} 02:50:34:53:47:00: the cluster"),
            (own, MAC, "the aggregator's 02:50:34:53:47:ff stands for no IPv4 address: give the aggregator its udp"),
        ):
            client.write_pair(registers.LOCAL_MAC, local)
            client.write_pair(registers.PEER_MAC, peer)
            with pytest.raises(P4sgdError, match=f"refuses: .*{says}"):
                client.write(registers.JOIN, round=1)
        client.write_pair(registers.PEER_MAC, other)
        client.write(registers.JOIN, round=1)


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (lambda worker: worker.write_memory(0, 0, np.zeros(LIMIT + 1, np.uint8)), "--memory-limit"),
        (lambda worker: worker.write_memory(0, 0, np.zeros(0, np.uint8)), "Expected `int` >= 1 - at `$.size`"),
        (lambda worker: worker.write_memory(2 * TINY.memories, 0, np.zeros(1, np.uint8)), "bank must be 0 to"),
        (lambda worker: worker.read_memory(0, 0, 1 << 40), "were not written"),
        (lambda worker: worker.read_memory(0, -1, 1), "Expected `int` >= 0 - at `$.address`"),
        (lambda worker: worker.read_register(2), "multiple of 4"),
        (lambda worker: write(worker, 1 << 13, 0), "Expected `int` <= 8191"),
        (lambda worker: write(worker, registers.JOB.offset, 1 << 32), "Expected `int` <= 4294967295"),
        (lambda worker: worker.await_end(1e6), "at `$.within_ms`"),
        (lambda worker: worker.write_register(registers.CTRL.offset, 1), "worker 0"),
        (lambda worker: ask(worker, "read_registers"), "missing required field `offsets`"),
        (lambda worker: ask(worker, "read_registers", offsets=[0] * 1025), "Expected `array` of length <= 1024"),
        (lambda worker: ask(worker, "read_registers", offsets=[True]), "Expected `int`, got `bool`"),
        (lambda worker: ask(worker, "write_registers", words=[[0]]), "Expected `array` of length 2"),
        (lambda worker: ask(worker, "write_registers", words=[[64, 1], [66, 0]]), "multiple of 4 - at `$.words[1][0]`"),
        (lambda worker: ask(worker, "write_memory", bank=0, address=0, size=2), "the body has 3 bytes, not 2"),
    ],
)
def test_what_cannot_be_is_refused_and_the_next_request_works(remote, address, asks, says):
    with pytest.raises(P4sgdError) as failure:
        asks(remote)
    assert f"worker 0 at {address} refuses: " in str(failure.value)
    assert says in str(failure.value)
    assert remote.read_register(registers.MAGIC_WORD.offset) == registers.MAGIC


def write(worker, offset, word):
    worker.write_register(offset, word)
    worker.read_register(0)


def ask(worker, do, **arguments):
    worker._client.call(do, b"abc", **arguments)


@pytest.fixture
def asked(remote, monkeypatch):
    """The methods that are called."""
    called, call = [], ControlClient.call
    monkeypatch.setattr(
        ControlClient, "call", lambda self, do, *body, **more: called.append(do) or call(self, do, *body, **more)
    )
    return called


def test_settings_are_written_together_before_anything_else(remote, asked):
    client = client_of(remote)
    for number in range(3):
        client.write(registers.MICRO_BATCHES, value=number)
        client.write(registers.LABEL_MODE)
    assert asked == []
    assert client.read(registers.MICRO_BATCHES)["value"] == 2
    client.write(registers.MICRO_BATCHES, value=7)
    client.write(registers.ABORT, abort=1)
    assert asked == ["write_registers", "read_registers", "write_registers"]
    client.write(registers.MICRO_BATCHES, value=8)
    remote.close()
    assert asked[-1] == "write_registers"


def test_the_limit_is_of_all_memories(remote):
    for bank in range(TINY.memories):
        for _ in range(3):  # over what was there
            remote.write_memory(bank, 0, np.zeros(LIMIT // TINY.memories, np.uint8))
    with pytest.raises(P4sgdError, match="--memory-limit"):
        remote.write_memory(0, LIMIT, np.zeros(1, np.uint8))


@pytest.mark.parametrize(
    ("bank", "size", "expected"),
    [
        (0, LIMIT - 1, ["write_memory"]),
        (0, LIMIT, ["prepare_write", "write_memory"]),
        (0, LIMIT + 1, ["prepare_write"]),
        (2 * TINY.memories, LIMIT, ["prepare_write"]),
    ],
    ids=["small", "large", "too large", "no bank"],
)
def test_a_large_write_is_refused_before_it_is_sent(remote, asked, bank, size, expected):
    with pytest.raises(RefusalError) if "write_memory" not in expected else contextlib.nullcontext():
        remote.write_memory(bank, 0, np.zeros(size, np.uint8))
    assert asked == expected


def started(remote):
    """A run under way that nobody answers."""
    warm_up(TINY)
    job = random_job(TINY, 1, seed=1)
    (client,) = configure([remote], job, aggregator_mac=MAC, resend_cycles=250_000, resends=0)
    start([client], job)
    assert not remote.await_end(0.05)
    return client


def test_a_client_that_has_gone_finds_its_run_again(board, remote, address):
    client = started(remote)
    remote.close()
    assert not client.read(registers.CTRL)["idle"]


def test_a_run_that_was_left_is_aborted_when_another_client_comes(board, remote, address):
    started(remote)
    remote.close()
    with contextlib.closing(connect(address)) as other:
        client = client_of(other)
        assert client.read(registers.CTRL)["idle"]
        assert client.read(registers.STATUS)["aborted"]


def test_a_run_that_is_left_alone_is_aborted(board, remote, address, monkeypatch):
    monkeypatch.setattr(server, "LEASE_S", 0.3)
    started(remote)
    remote.close()
    time.sleep(1.0)
    board.setblocking(False)
    with pytest.raises(BlockingIOError):  # noqa: PT012 - all that was sent before
        while True:
            board.recv(100)
    again = connect(address)
    client = client_of(again)
    assert client.read(registers.STATUS)["aborted"]
    client.write(registers.CTRL, start=1)
    assert again.await_end(5)
    assert client.read(registers.STATUS)["not_joined"], "the worker is in no job any more"
    again.close()
    time.sleep(0.1)
    with pytest.raises(BlockingIOError):
        board.recv(100)
