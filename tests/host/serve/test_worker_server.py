"""The control socket of a worker process: registers and memory, bounds on all that comes, one client at a time."""

import contextlib
import os
import random
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.aggregator_model import Aggregator
from support.bench import default_seed
from support.jobs import configure, random_job, run_on, start
from support.worker_process import OneWorker, aggregating, serve_worker

from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.remote_worker import RemoteWorker
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.client import ControlClient
from p4sgd.host.serve import worker as server
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.udp import address_of
from p4sgd.sim.emulator import warm_up
from p4sgd.sim.rpc import HEADER_LIMIT, MAGIC, PREFIX, VERSION, Channel, RefusedError, encode, greeting

TINY = WorkerConfig.tiny()
LIMIT = 1 << 20
MAC = 0x0250_3453_47FF
GREETING = greeting(server="worker", process=1)


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


def test_it_says_what_it_is(remote):
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


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=3000)), max_size=8))
def test_memory_is_what_was_written_last(writes):
    known = {}
    control = f"unix:/tmp/p4sgd-board-{os.getpid()}"  # a folder of a fixture would serve all examples
    with serve_worker(TINY, control, memory_limit=LIMIT):
        worker = connect(control)
        for address, data in writes:
            worker.write_memory(1, address, np.frombuffer(data, np.uint8))
            known |= dict(enumerate(data, address))
        for address in known:
            if address + 1 in known:
                assert worker.read_memory(1, address, 2).tolist() == [known[address], known[address + 1]]
        worker.close()


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda worker: worker.write_memory(0, 0, np.zeros(LIMIT + 1, np.uint8)), "--memory-limit"),
        (lambda worker: worker.write_memory(0, 0, np.zeros(0, np.uint8)), "size must be a whole number, 1 to"),
        (lambda worker: worker.write_memory(TINY.memories, 0, np.zeros(1, np.uint8)), "bank must be a whole number, 0"),
        (lambda worker: worker.read_memory(0, 0, 1 << 40), "were not written"),
        (lambda worker: worker.read_memory(0, -1, 1), "address"),
        (lambda worker: worker.read_memory(0, 1, 1 << 64), "size"),
        (lambda worker: worker.read_register(2), "0x2 is not the address of a register"),
        (lambda worker: write(worker, 1 << 12, 0), "offset must be a whole number, 0 to 4095"),
        (lambda worker: write(worker, registers.JOB.offset, 1 << 32), "word must be a whole number"),
        (lambda worker: worker.write_register(0, 1 << 32), "word must be a whole number, 0 to 4294967295"),
        (lambda worker: worker.await_end(1e6), "within_ms"),
        (lambda worker: worker.write_register(registers.CTRL.offset, 1), "worker 0"),
    ],
)
def test_what_cannot_be_is_refused_and_the_next_request_works(remote, address, ask, says):
    with pytest.raises(P4sgdError, match=says) as failure:
        ask(remote)
    assert address in str(failure.value)
    assert remote.read_register(registers.MAGIC_WORD.offset) == registers.MAGIC


def write(worker, offset, word):
    worker.write_register(offset, word)
    worker.read_register(0)


def test_settings_are_written_together_before_anything_else(remote, monkeypatch):
    asked, call = [], ControlClient.call
    monkeypatch.setattr(
        ControlClient, "call", lambda self, do, *body, **more: asked.append(do) or call(self, do, *body, **more)
    )
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


def test_small_pieces_count_as_pages(remote):
    for page in range(LIMIT // 4096):
        remote.write_memory(0, 2 * page, np.zeros(1, np.uint8))
    with pytest.raises(P4sgdError, match="--memory-limit"):
        remote.write_memory(0, LIMIT, np.zeros(1, np.uint8))


def test_a_second_client_is_told(remote, address):
    with pytest.raises(UserError, match="in use by another program"):
        connect(address, 7)
    assert remote.read_register(registers.MAGIC_WORD.offset) == registers.MAGIC
    remote.close()
    again = connect(address)
    again.close()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not answer as it should: another program is there"),
        (MAGIC + b"\0\2" + encode({}), f"it has version 2 of the control protocol, not {VERSION}"),
        (greeting(server="aggregator", process=1), "it is 'aggregator', not 'worker'"),
        (b"", "hangs up before it has answered, .*: try again in a moment"),
        (GREETING, "is gone"),
        (GREETING + PREFIX.pack(5, 0) + b"hello", "does not answer as it should: "),
        (GREETING + PREFIX.pack(HEADER_LIMIT + 1, 0), "does not answer as it should: .* is too long"),
        (GREETING + PREFIX.pack(2, 1 << 63) + b"{}", "does not answer as it should: .* is too long"),
        (GREETING + encode({}), "does not answer as it should: it sends something else than an answer"),
        (GREETING + encode({"ok": 5}), "does not answer as it should: 5 is no list of words"),
        (GREETING + encode({"ok": ["5"] * 8}), "does not answer as it should: '5' is no word of 32 bits"),
        (GREETING + encode({"ok": [1 << 32] * 8}), "does not answer as it should: 4294967296 is no word of 32 bits"),
    ],
)
def test_something_else_is_there(tmp_path, answer, says):
    path = f"{tmp_path}/other"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        connecting = ControlAddress.parse(f"unix:{path}")

        def talk():
            for _ in range(1 if answer else 5):  # without a greeting the client connects again
                with other.accept()[0] as connection:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1000)  # the request, if there is one

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(P4sgdError, match=says):
            RemoteWorker(0, connecting)
        thread.join()


def raw(address):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(address.removeprefix("unix:"))
    channel = Channel(connection)
    assert "error" not in channel.receive_greeting("worker")
    return connection, channel


def test_garbage_stops_nothing(board, address):
    seed = default_seed()
    pick = random.Random(seed)
    methods = [
        "read_registers",
        "write_registers",
        "read_memory",
        "prepare_write",
        "write_memory",
        "await_end",
        "no",
        7,
    ]
    arguments = ["offset", "word", "bank", "address", "size", "within_ms"]
    values = [0, 4, 1 << 63, 1 << 64, -1, 1e300, True, None, "0", [], {}]
    for _ in range(200):
        connection, channel = raw(address)
        kind = pick.random()
        if kind < 0.3:
            text = pick.randbytes(pick.randrange(200))
        elif kind < 0.5:
            text = PREFIX.pack(pick.choice([0, 5, 1 << 18, 1 << 31]), pick.randrange(1 << 64)) + pick.randbytes(100)
        else:
            request = {"do": pick.choice(methods)} | {name: pick.choice(values) for name in pick.sample(arguments, 3)}
            text = encode(request, pick.choice([0, 10, 1 << 63])) + pick.randbytes(pick.randrange(50))
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(text)
        if pick.random() < 0.5:
            connection.shutdown(socket.SHUT_WR)
        channel.close()
    worker = connect(address)
    assert worker.read_register(registers.MAGIC_WORD.offset) == registers.MAGIC
    worker.close()


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"[]", "must be a JSON object"),
        (b'{"do": "read_registers"}', "read_registers needs the arguments offsets"),
        (b'{"do": "read_registers", "offsets": [0], "word": 0}', "read_registers needs the arguments offsets"),
        (b'{"do": "read_registers", "offsets": 0}', "offsets must be a list of up to 1024 addresses"),
        (b'{"do": "read_registers", "offsets": [' + b"0," * 1024 + b"0]}", "offsets must be a list of up to 1024 addr"),
        (b'{"do": "read_registers", "offsets": [true]}', "offset must be a whole number"),
        (b'{"do": "read_registers", "offsets": [0, NaN]}', "offset must be a whole number"),
        (b'{"do": "write_registers", "words": 0}', "words must be a list of up to 4096 pairs"),
        (b'{"do": "write_registers", "words": [[0]]}', "words must be a list of pairs"),
        (b'{"do": "write_registers", "words": [[64, 1], [66, 0]]}', "0x42 is not the address of a register"),
        (b'{"do": "write_memory", "bank": 0, "address": 0, "size": 2}', "the body has 3 bytes, not 2"),
    ],
)
def test_what_is_no_request_is_refused_and_the_next_one_works(board, address, header, says):
    connection, channel = raw(address)
    connection.sendall(PREFIX.pack(len(header), 3) + header + b"abc")
    answer, _ = channel.receive()
    assert says in answer["error"]
    assert channel.call("read_registers", offsets=[registers.MAGIC_WORD.offset])[0] == [registers.MAGIC]
    channel.close()


def test_a_body_that_is_refused_is_not_kept(board, address):
    """Of whatever length it is; what follows is the next request."""
    _, channel = raw(address)
    body = bytes(10_000_000)
    for do, arguments in (("write_memory", {"bank": 0, "address": 0, "size": len(body)}), ("read_registers", {})):
        with pytest.raises(RefusedError, match="a body of 10,000,000 bytes is too long"):
            channel.call(do, body, **arguments)
    assert channel.call("read_registers", offsets=[registers.MAGIC_WORD.offset])[0] == [registers.MAGIC]
    channel.close()


@pytest.mark.parametrize(
    ("bank", "size", "expected"),
    [
        (0, LIMIT - 1, ["write_memory"]),
        (0, LIMIT, ["prepare_write", "write_memory"]),
        (0, LIMIT + 1, ["prepare_write"]),
        (TINY.memories, LIMIT, ["prepare_write"]),
    ],
    ids=["small", "large", "too large", "no bank"],
)
def test_a_large_write_is_refused_before_it_is_sent(remote, monkeypatch, bank, size, expected):
    sent, send = [], Channel.send

    def record(channel, header, body=b""):
        if "do" in header:  # else it is an answer
            sent.append((header["do"], len(body)))
        send(channel, header, body)

    monkeypatch.setattr(Channel, "send", record)
    with pytest.raises(P4sgdError, match="refuses") if "write_memory" not in expected else contextlib.nullcontext():
        remote.write_memory(bank, 0, np.zeros(size, np.uint8))
    assert sent == [(do, size if do == "write_memory" else 0) for do in expected]


@pytest.mark.parametrize("part", [5, 15, -1])
def test_who_stops_in_the_middle_is_cut_off(board, address, monkeypatch, part):
    monkeypatch.setattr("p4sgd.host.rpc.server._STALL_S", 0.2)
    connection, channel = raw(address)
    request = {"do": "write_memory", "bank": 0, "address": 0, "size": 10}
    connection.sendall((encode(request, 10) + bytes(10))[:part])
    assert connection.recv(1) == b"", "hung up"
    channel.close()
    connect(address).close()


def test_who_takes_no_answers_is_cut_off(board, address, monkeypatch, remote):
    monkeypatch.setattr("p4sgd.host.rpc.server._STALL_S", 0.2)
    remote.write_memory(0, 0, np.zeros(LIMIT, np.uint8))
    remote.close()
    connection, channel = raw(address)
    for _ in range(5):
        channel.send({"do": "read_memory", "bank": 0, "address": 0, "size": LIMIT})
    hung_up = select.poll()
    hung_up.register(connection, select.POLLRDHUP)
    assert hung_up.poll()
    connect(address).close()
    channel.close()


def started(remote):
    """A run under way that nobody answers."""
    warm_up(TINY)
    job = random_job(TINY, 1, seed=1)
    (client,) = configure([remote], job, aggregator_mac=MAC, resend_cycles=250_000, resends=0)
    start([client], job)
    assert not remote.await_end(0.05)
    return client


def test_a_client_that_has_gone_finds_its_run_again(board, remote, address):
    started(remote)
    remote.close()
    again = connect(address)
    assert not client_of(again).read(registers.CTRL)["idle"]
    again.close()


def test_a_run_that_is_left_alone_is_aborted(board, remote, address, monkeypatch):
    monkeypatch.setattr(server, "_ORPHAN_S", 0.3)
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


def interrupt(worker, ask):
    """Ask, and press Ctrl-C before the answer comes."""

    def press(most):
        raise KeyboardInterrupt

    if worker._client._channel is None:
        worker._client._connect()
    worker._client._channel.receive = press
    with pytest.raises(KeyboardInterrupt):
        ask()


def test_an_interrupted_request_is_forgotten(remote):
    interrupt(remote, lambda: remote.read_register(registers.SLOTS.offset))
    assert remote.read_register(registers.MAGIC_WORD.offset) == registers.MAGIC


def test_a_wait_that_is_interrupted_can_be_followed_by_an_abort(board, remote):
    client = started(remote)
    for _ in range(20):
        interrupt(remote, lambda: remote.await_end(5))
        assert not client.read(registers.CTRL)["idle"]
    client.write(registers.ABORT, abort=1)
    assert client.read(registers.STATUS)["aborted"]


def test_a_worker_that_is_gone_is_named(address):
    with serve_worker(TINY, address):
        worker = connect(address, 2)
    for _ in range(2):
        with pytest.raises(P4sgdError, match=f"worker 2 at {address} is gone .* start it again"):
            worker.read_register(0)


def test_a_worker_that_was_started_anew_is_not_taken_for_the_old_one(address):
    with serve_worker(TINY, address):
        worker = connect(address)
        interrupt(worker, lambda: worker.read_register(0))
    with serve_worker(TINY, address):
        for _ in range(2):
            with pytest.raises(P4sgdError, match="was started again"):
                worker.read_register(0)


def test_a_server_that_hangs_is_not_waited_for_again(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(f"{tmp_path}/hung")
        hung.listen()
        address = ControlAddress.parse(f"unix:{tmp_path}/hung")
        with pytest.raises(P4sgdError, match=r"^worker 1 has not answered for 0\.5 s$"):
            ControlClient(address, "worker", "worker 1", "p4sgd worker", timeout_s=0.5)
        accepted, _ = hung.accept()
        accepted.close()
        with ThreadPoolExecutor() as pool:
            accepting = pool.submit(hung.accept)
            connecting = pool.submit(ControlClient, address, "worker", "worker 1", "p4sgd worker", timeout_s=0.5)
            accepted, _ = accepting.result()
            accepted.sendall(greeting(server="worker", process=1))
            client = connecting.result()
        for _ in range(3):
            with pytest.raises(P4sgdError, match=r"^worker 1 has not answered for 0\.5 s$"):
                client.call("read_registers", offsets=[0])
            monkeypatch.setattr(ControlAddress, "connect", lambda *_: pytest.fail("it is connected to again"))
        assert accepted.recv(1000, socket.MSG_WAITALL) == encode({"do": "read_registers", "offsets": [0]}), "asked once"
        accepted.close()


def test_a_run_with_a_network(board, remote):
    """The other end of the link is an aggregator."""
    aggregator = Aggregator(TINY.slots, mac=MAC)
    aggregator.begin(0, Job(0, (Member(0x0200_0000, 0),), 1 << 40, 1))
    job = random_job(TINY, 1, seed=4, mini_batches=5)
    with aggregating(board, aggregator):
        weights, status, _ = run_on(OneWorker(remote), job, aggregator_mac=MAC, resend_cycles=500_000)
    assert weights[0].tolist() == job.golden().weights[0].tolist()
    assert not status[0]["network_error"]
