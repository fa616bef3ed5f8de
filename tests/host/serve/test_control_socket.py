"""The control socket of a software aggregator: right requests, mistakes of every kind, and clients that vanish."""

import contextlib
import errno
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from ipaddress import IPv4Address
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch import answers_of
from support.switch import from_worker, job_of

from p4sgd.host.aggregators import software
from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.aggregators.software import SoftwareAggregator, job_from_json, job_to_json
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc import address as listening
from p4sgd.host.rpc.address import ControlAddress, ControlListener, check_address
from p4sgd.host.rpc.client import ControlClient
from p4sgd.host.rpc.server import ControlServer, Methods, Until
from p4sgd.host.serve.aggregator import Requests, SoftwareAggregatorServer
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import MOST_BYTES, PacketType
from p4sgd.hw.spec.udp import address_of
from p4sgd.sim.network.batch import BatchAggregator
from p4sgd.sim.rpc import HEADER_LIMIT, PREFIX, Channel, RefusedError, encode

SLOTS, PLACES = 6, 3


class Link:
    lost = 2
    most_bytes = MOST_BYTES

    def __init__(self, foreign=(), address=None):
        self._foreign = foreign
        self.address = address

    def reaches(self, address):
        return address not in self._foreign


def requests_of(model, foreign=()):
    """Of an aggregator with two ports, of which the second does not reach some addresses."""
    return Requests(model, {"a": Link(), "b": Link(foreign)}, slots=SLOTS, places=PLACES)


class Port(Link):
    """A link that nothing comes from."""

    def __init__(self):
        super().__init__()
        self._ends = socket.socketpair()

    def fileno(self):
        return self._ends[0].fileno()

    def receive_batch(self, batch):
        return 0


class Loop:
    def __init__(self, address):
        links = {"a": Port(), "b": Port()}
        self.server = SoftwareAggregatorServer(links, address, slots=SLOTS, jobs=PLACES)
        self.model = self.server.aggregator
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()

    def close(self):
        self.server.stop()
        self._thread.join()
        self.server.close()


@pytest.fixture
def address(tmp_path):
    return ControlAddress(path=tmp_path / "control")


@pytest.fixture
def loop(address):
    with contextlib.closing(Loop(address)) as running:
        yield running


@pytest.fixture
def client(loop, address):
    return SoftwareAggregator(address)


def connect(address):
    channel = Channel(address.connect(10))
    assert "error" not in channel.receive_greeting("aggregator")
    return channel


def test_what_a_controller_can_do(loop, client):
    assert (client.slots, client.jobs) == (SLOTS, PLACES)
    assert client.served() == {}
    client.set_mac(0x0250_0000_0001)
    assert loop.model.mac == 0x0250_0000_0001
    assert client.read_slots(1, range(2, 4)) == [SlotView(0, 0, 0)] * 2
    first, second = job_of(2), job_of(1, number=7, ports=[1])
    client.begin(1, first, 10)
    client.begin(0, second, 0)
    assert client.served() == {0: second, 1: first}
    assert client.read_slots(1, range(SLOTS)) == [SlotView(9, 0, 0)] * SLOTS
    assert client.read_slots(0, range(1)) == [SlotView(65535, 0, 0)]
    for kind, shard in ((PacketType.PARTIAL, 0), (PacketType.PARTIAL, 1), (PacketType.ACK, 0)):
        answers_of(loop.model, [from_worker(kind, 4, 10, shard, 2).to_bytes()], shard)
    assert client.read_slots(1, range(3, 6)) == [SlotView(9, 0, 0), SlotView(10, 3, 1), SlotView(9, 0, 0)]
    client.end(1)
    client.end(1)
    client.begin(1, first, 20)
    assert client.read_slots(1, range(4, 5)) == [SlotView(19, 0, 0)]
    client.end(1)
    assert client.served() == {0: second}
    assert client.counters() == loop.model.counters() | {"OVERRUNS": 4}
    with pytest.raises(P4sgdError, match="refuses: place 0 serves job 7: end that"):
        client.begin(0, first, 1)
    client.close()


def test_an_aggregator_that_is_stopped_again_while_it_closes(loop):
    """As by a second SIGTERM or Ctrl-C, whose handler may come at any time."""
    loop.close()
    loop.server.stop()


@pytest.mark.parametrize("size", [5, {}, {"slots": 6, "jobs": 3}, {"slots": "6", "jobs": 3, "most": 0}])
def test_a_size_that_is_none(loop, address, monkeypatch, size):
    monkeypatch.setattr(ControlClient, "call", lambda *_: (size, b""))
    with pytest.raises(P4sgdError, match=f"the aggregator at {address} does not answer as it should: .* is not its"):
        SoftwareAggregator(address)


def test_a_job_whose_workers_a_port_cannot_reach_is_refused():
    job = job_of(2)
    begin = {"do": "begin", "place": 0, "job": job_to_json(job), "first_round": 1}
    model = BatchAggregator(SLOTS, jobs=PLACES)
    with pytest.raises(RefusedError, match=r"port 1, b, cannot send to 02:00:00:00:01:01, .* its udp"):
        requests_of(model, {job.members[1].mac}).methods.call(begin)
    assert model.jobs == {}
    requests_of(model, {job.group_mac}).methods.call(begin)  # then each worker gets an answer of its own
    assert model.jobs == {0: job}


def test_a_job_of_workers_that_send_to_another_address_is_refused():
    here, there = (address_of(IPv4Address("10.0.0.9"), port) for port in (51207, 51208))
    begin = {"do": "begin", "place": 0, "job": job_to_json(job_of(1)), "first_round": 1}
    for mac, text in ((5, "00:00:00:00:00:05"), (there, r"10\.0\.0\.9:51208")):
        model = BatchAggregator(SLOTS, jobs=PLACES, mac=mac)
        requests = Requests(model, {"udp:10.0.0.9:51207": Link(address=here)}, slots=SLOTS, places=PLACES)
        with pytest.raises(RefusedError, match=rf"sent to 10\.0\.0\.9:51207, not to {text}: .* former as the"):
            requests.methods.call(begin)
        assert model.jobs == {}
    requests.methods.call({"do": "set_mac", "mac": here})
    requests.methods.call(begin)
    assert model.jobs == {0: job_of(1)}


GOOD = job_to_json(job_of(2))


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({}, "there is no method 'None'"),
        ({"do": "reboot"}, "there is no method 'reboot'; there are size, set_mac"),
        ({"do": "end"}, "end needs the arguments place, and no others"),
        ({"do": "size", "place": 0}, r"size needs the arguments \(none\), and no others"),
        ({"do": "end", "place": True}, "place must be a whole number"),
        ({"do": "end", "place": -1}, "place must be a whole number"),
        ({"do": "set_mac", "mac": 1 << 48}, "mac must be a whole number"),
        ({"do": "read_slots", "place": 0, "first": 0, "count": 7}, "count must be a whole number, 1 to 6"),
        ({"do": "read_slots", "place": 0, "first": 6, "count": 1}, "first must be a whole number, 0 to 5"),
        ({"do": "begin", "place": 0, "job": GOOD, "first_round": 65536}, "first_round must be"),
        ({"do": "begin", "place": 1, "job": GOOD | {"number": 9}, "first_round": 1}, "job 9 is being served already"),
        ({"do": "begin", "place": 1, "job": GOOD | {"ports": 4}, "first_round": 1}, "needs a port .*: there are 2"),
        ({"do": "begin", "place": 1, "job": GOOD | {"members": [[5, 2]]}, "first_round": 1}, "needs a port that"),
        ({"do": "begin", "place": 3, "job": GOOD, "first_round": 1}, "place must be a whole number, 0 to 2"),
        ({"do": "begin", "place": 0, "job": [], "first_round": 1}, "a job must have number, members"),
        ({"do": "begin", "place": 0, "job": GOOD | {"more": 1}, "first_round": 1}, "a job must have number, members"),
        ({"do": "begin", "place": 0, "job": GOOD | {"members": [[1]]}, "first_round": 1}, "members must be a list"),
        ({"do": "begin", "place": 0, "job": GOOD | {"members": []}, "first_round": 1}, "a job has 1 to 32 workers"),
        ({"do": "begin", "place": 0, "job": GOOD | {"members": [["1", 0]]}, "first_round": 1}, "whole numbers"),
        ({"do": "begin", "place": 0, "job": GOOD | {"number": 256}, "first_round": 1}, "number must be 0 to 255"),
        ({"do": "begin", "place": 0, "job": GOOD | {"group_mac": 2}, "first_round": 1}, "is no address of a group"),
        ({"do": "begin", "place": 0, "job": GOOD | {"ports": 1 << 32}, "first_round": 1}, "has 32 bits"),
        ({"do": "begin", "place": 0, "job": GOOD | {"key": 1 << 64}, "first_round": 1}, "key has 64 bits"),
    ],
)
def test_mistakes_change_nothing(request_, says):
    model = BatchAggregator(SLOTS, jobs=PLACES, mac=5)
    model.begin(0, job_of(2, number=9), 3)
    with pytest.raises(RefusedError, match=says):
        requests_of(model).methods.call(request_)
    assert model.jobs == {0: job_of(2, number=9)}
    assert model.mac == 5


members = st.builds(Member, st.integers(0, (1 << 48) - 1), st.integers(0, 31))
jobs = st.builds(
    Job,
    st.integers(0, 255),
    st.lists(members, min_size=1, max_size=32).map(tuple),
    st.integers(0, (1 << 48) - 1).map(lambda mac: mac | 1 << 40),
    st.integers(0, (1 << 32) - 1),
    st.none() | st.integers(0, (1 << 64) - 1),
)


@given(jobs)
def test_a_job_comes_back_from_json(job):
    assert job_from_json(json.loads(json.dumps(job_to_json(job)))) == job


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
named = st.fixed_dictionaries(
    {"do": st.sampled_from(["size", "set_mac", "begin", "end", "served", "counters", "read_slots"])},
    optional=dict.fromkeys(("place", "job", "first_round", "mac", "first", "count"), plain),
)


@given(st.lists(st.dictionaries(st.text(), plain, max_size=4) | named, max_size=20))
def test_whatever_is_asked_there_is_an_answer_or_a_refusal(asked):
    requests = requests_of(BatchAggregator(SLOTS, jobs=PLACES))
    for request in asked:
        with contextlib.suppress(RefusedError):
            json.dumps(requests.methods.call(request))


def test_headers_that_are_no_requests(address, client):
    with address.connect(10) as connection:
        channel = Channel(connection)
        channel.receive_greeting("aggregator")
        for header in (
            b"",
            b"hello",
            b"\xff\xfe",
            b"[" * 60000,
            b'{"do":' + b"9" * 5000 + b"}",
            b'{"do": "size"} x',
            b"NaN",
        ):
            connection.sendall(PREFIX.pack(len(header), 0) + header)
            answer, _ = channel.receive()
            assert "this is not a request" in answer["error"]
        channel.close()
    assert client.served() == {}


def test_lines_of_text(address, client):
    with address.connect(10) as connection:
        channel = Channel(connection)
        channel.receive_greeting("aggregator")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(100):
                connection.sendall(b"x" * 8192)
        with contextlib.suppress(ConnectionResetError):
            assert f"at most {HEADER_LIMIT} bytes" in channel.receive()[0]["error"]
        channel.close()
    assert client.served() == {}


def test_many_requests_at_once_are_answered_in_order(loop, address):
    channel = connect(address)
    requests = [*({"do": "set_mac", "mac": mac} for mac in range(500)), {"do": "size"}]
    channel.socket.sendall(b"".join(map(encode, requests)))
    assert [channel.receive()[0] for _ in range(500)] == [{"ok": None}] * 500
    assert channel.receive()[0] == {"ok": {"slots": SLOTS, "jobs": PLACES, "most": 46}}
    channel.close()
    assert loop.model.mac == 499


def test_clients_that_say_nothing_do_not_keep_others_out(address, client):
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(address.connect(10))
        assert client.served() == {}


def test_more_clients_than_there_is_room_for(address, client):
    with contextlib.ExitStack() as opened:
        greetings = []
        for _ in range(60):
            channel = opened.enter_context(contextlib.closing(Channel(address.connect(10))))
            greetings.append(channel.receive_greeting("aggregator"))
        assert ["error" in greeting for greeting in greetings] == [False] * 32 + [True] * 28
        with pytest.raises(UserError, match="is in use by 32 other programs, which is the most: try again"):
            SoftwareAggregator(address)
        with pytest.raises(P4sgdError, match="is in use by 32 other programs, which is the most: try again"):
            client.served()
    assert client.served() == {}, "clients that have hung up make room"


def test_a_restarted_aggregator_is_not_taken_for_the_old_one(address):
    loop = Loop(address)
    client = SoftwareAggregator(address)
    loop.close()
    loop = Loop(address)
    for _ in range(2):
        with pytest.raises(P4sgdError, match=f"the aggregator at {address} was started again"):
            client.served()
    loop.close()


def test_a_process_that_has_ended_is_noticed_and_not_one_that_pauses(address, monkeypatch):
    monkeypatch.setattr(software, "_CHECK_S", 0)
    loop = Loop(address)
    client = SoftwareAggregator(address)
    client.check_process()
    loop.close()
    with pytest.raises(P4sgdError, match=r"is gone \(No such file or directory\): see why it ended and start it again"):
        client.check_process()
    with contextlib.closing(Loop(address)):
        client = SoftwareAggregator(address)
    with contextlib.closing(Loop(address)), pytest.raises(P4sgdError, match="was started again in the meantime"):
        client.check_process()
    with contextlib.closing(Loop(address)):
        client = SoftwareAggregator(address)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(address.path))
        killed.listen(1)
        for _ in range(3):  # nobody accepts, and then there is no room to wait in
            client.check_process()
    with pytest.raises(P4sgdError, match=r"is gone \(Connection refused\)"):
        client.check_process()


def test_clients_that_are_killed_in_the_middle_of_a_request(address, client):
    program = """
import socket, sys, time
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(bytes.fromhex(sys.argv[2]))
print("there", flush=True)
time.sleep(60)
"""
    for _ in range(3):
        text = encode({"do": "counters"}) * 200 + encode({"do": "begin"})[:20]
        command = [sys.executable, "-c", program, str(address.path), text.hex()]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"there\n"
            os.kill(process.pid, signal.SIGKILL)
    assert client.served() == {}


def pump(server, seconds, is_over=lambda: False):
    """Turn a server until something is so, at most for a time."""
    end = time.monotonic() + seconds
    while not is_over() and time.monotonic() < end:
        server.turn(0.01)


def serving(address, *, most_clients=1, body_limit=0, idle_s=None, **methods):
    options = {"most_clients": most_clients, "busy": "is busy", "body_limit": body_limit, "idle_s": idle_s}
    return contextlib.closing(ControlServer(ControlListener(address), "test", Methods(**methods), **options))


def test_a_client_that_comes_while_there_are_no_descriptors_is_served_later(address):
    with serving(address, most_clients=2) as server, address.connect(10) as client:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(client.fileno())
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            server.turn(10)
            began = time.monotonic()
            server.turn(0.05)
            assert time.monotonic() - began >= 0.04, "it waits instead of trying again and again"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        pump(server, 10, lambda: server.has_clients)
        with contextlib.closing(Channel(client)) as channel:
            assert "error" not in channel.receive_greeting("test")


def test_clients_that_are_idle_make_room(address):
    with (
        serving(address, most_clients=2, idle_s=0.5, double=lambda number: 2 * number) as server,
        address.connect(10) as idle,
        contextlib.closing(Channel(address.connect(10))) as busy,
    ):
        pump(server, 0.3)
        busy.send({"do": "double", "number": 5})
        pump(server, 0.3)
        assert idle.recv(1000)
        assert idle.recv(1000) == b"", "hung up"
        busy.receive_greeting("test")
        assert busy.receive()[0] == {"ok": 10}
        busy.send({"do": "double", "number": 6})
        pump(server, 0.1)
        assert busy.receive()[0] == {"ok": 12}


def test_a_client_that_hangs_up_while_it_waits_is_let_go_at_once(address):
    wait = serving(address, wait=lambda: Until(lambda: False, time.monotonic() + 60))
    with wait as server, contextlib.closing(Channel(address.connect(10))) as channel:
        pump(server, 0.1)
        channel.receive_greeting("test")
        channel.send({"do": "wait"})
        pump(server, 0.1)
        channel.socket.shutdown(socket.SHUT_WR)
        pump(server, 0.1)
        assert channel.socket.recv(1) == b"", "hung up"


def test_no_thread_outlives_a_server(address):
    before = threading.active_count()
    server = ControlServer(ControlListener(address), "test", Methods(), most_clients=1, busy="is busy")
    with contextlib.closing(Channel(address.connect(10))) as channel:
        server.turn(10)
        channel.receive_greeting("test")
        channel.send({"do": "nothing"})
        server.close()
        end = time.monotonic() + 10
        while threading.active_count() > before:
            time.sleep(0.01)
            assert time.monotonic() < end


def test_clients_that_always_ask_do_not_keep_a_turn_from_its_end(address):
    done = []
    work = serving(address, most_clients=4, work=lambda: done.append(time.sleep(0.01)))
    with work as server, contextlib.ExitStack() as opened:
        for _ in range(4):
            connection = opened.enter_context(address.connect(10))
            connection.sendall(100 * encode({"do": "work"}))
        pump(server, 10, lambda: len(done) > 20)
        before = len(done)
        server.turn(0.1)
        assert len(done) - before <= 4


def test_a_body_for_which_there_is_no_memory_is_refused(address, monkeypatch):
    take = serving(address, body_limit=100, take=lambda body: len(body))
    with take as server, contextlib.closing(Channel(address.connect(10))) as channel:
        with monkeypatch.context() as full:
            full.setattr(Channel, "receive_body", Mock(side_effect=MemoryError))
            channel.socket.sendall(encode({"do": "take"}, 100) + bytes(100))
            pump(server, 0.2)
        channel.socket.sendall(encode({"do": "take"}, 100) + bytes(100))
        pump(server, 0.2)
        channel.receive_greeting("test")
        assert channel.receive()[0] == {"error": "there is not enough memory"}
        assert channel.receive()[0] == {"ok": 100}


def test_nobody_else_may_connect(loop, address):
    assert address.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("replace", [os.symlink, os.link])
def test_a_file_that_the_future_owner_puts_in_the_way_is_not_given_to_him(address, tmp_path, monkeypatch, replace):
    """In a folder of his he can swap the socket for a link, at any time after it is there."""
    secret = tmp_path / "secret"
    secret.touch(0o640)
    before = secret.stat()

    class Swapped(socket.socket):
        def bind(self, where):
            super().bind(where)
            os.unlink(where)
            replace(secret, where)

    monkeypatch.setattr(listening.socket, "socket", Swapped)
    nobody = (65534, 65534) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    with pytest.raises(UserError, match="its file was replaced meanwhile: choose a folder"):
        ControlListener(address, owner=nobody)
    after = secret.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


@pytest.mark.parametrize("start", [ControlListener, check_address])
def test_two_that_start_at_once(address, monkeypatch, start):
    """The other must not take the socket for that of a killed process before it listens."""
    told, threads = [], []

    def start_another():
        with pytest.raises(UserError) as refused:
            start(address)
        told.append(str(refused.value))

    class Hesitant(socket.socket):
        def listen(self, *backlog):
            if not threads:
                threads.append(threading.Thread(target=start_another))
                threads[0].start()
                threads[0].join(0.2)
            super().listen(*backlog)

    monkeypatch.setattr(listening.socket, "socket", Hesitant)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(address.path))
    with contextlib.closing(ControlListener(address)) as listener:
        threads[0].join(10)
        assert told == [f"{address}: another program serves there: end it, or choose another address"]
        assert listener.can_be_found
        assert os.listdir(address.path.parent) == [address.path.name], "no lock is left"


@pytest.mark.parametrize("start", [ControlListener, check_address])
def test_a_socket_of_somebody_else(address, monkeypatch, start):
    def connect(address, timeout_s):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(ControlAddress, "connect", connect)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(address.path))
    with pytest.raises(UserError, match=f"^{address}: cannot listen there: Permission denied$"):
        start(address)


def test_where_it_cannot_listen(loop, address, client, tmp_path):
    (tmp_path / "file").write_text("precious")
    for path, says in (
        (address.path, "another program serves there: end it, or choose another address"),
        (tmp_path / "file", "something else is there already: choose another name"),
        (tmp_path / "missing" / "socket", f"there is no folder {tmp_path}/missing: make it first"),
    ):
        with pytest.raises(UserError, match=f"^unix:{path}: {says}"):
            Loop(ControlAddress(path=path))
    assert client.served() == {}
    assert (tmp_path / "file").read_text() == "precious"


def test_a_socket_that_nobody_serves_is_replaced_and_the_own_removed(address):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(address.path))
    loop = Loop(address)
    assert SoftwareAggregator(address).served() == {}
    loop.close()
    assert not address.path.exists()


def test_the_file_of_another_server_stays(address, tmp_path):
    loop = Loop(address)
    address.path.rename(tmp_path / "moved")
    other = Loop(address)
    loop.close()
    assert SoftwareAggregator(address).served() == {}
    other.close()


def test_a_listener_knows_whether_clients_find_it(address, tmp_path):
    with contextlib.closing(ControlListener(address)) as listener:
        assert listener.can_be_found
        address.path.rename(tmp_path / "moved")
        assert not listener.can_be_found
        with contextlib.closing(ControlListener(address)):
            assert not listener.can_be_found, "another one is there"
        (tmp_path / "moved").rename(address.path)
        assert listener.can_be_found


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:a/b:c", ControlAddress(path=Path("a/b:c"))),
        ("tcp:host:80", ControlAddress(host="host", port=80)),
        ("tcp:[::1]:80", ControlAddress(host="::1", port=80)),
        ("tcp:0.0.0.0:80", ControlAddress(host="0.0.0.0", port=80)),
        ("tcp:bücher.example:80", ControlAddress(host="bücher.example", port=80)),
    ],
)
def test_addresses(text, address):
    assert ControlAddress.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "unix:", "tcp:80", "tcp::80", "tcp:host:0", "tcp:host:65536", "tcp:host:x", "tcp:host:-1", "a", "x:y"),
        *("tcp:a..b:80", f"tcp:{'a' * 64}:80", f"tcp:{'é' * 60}:80", "tcp:a\0b:80", "tcp:\udcff:80"),
    ],
)
def test_texts_that_are_no_addresses(text):
    with pytest.raises(UserError, match="give unix:PATH or tcp:HOST:PORT"):
        ControlAddress.parse(text)
    with pytest.raises(UserError, match=r"--metrics: .* is not HOST:PORT"):
        ControlAddress.parse_tcp("a..b:80", "--metrics")


@pytest.mark.parametrize("host", ["255.255.255.255", "224.0.0.1", "240.1.2.3", "[ff02::1]"])
def test_addresses_that_no_host_can_have(host):
    says = rf"tcp:{re.escape(host)}:80: {re.escape(host.strip('[]'))} is not the address of a single host$"
    with pytest.raises(UserError, match=says):
        ControlAddress.parse(f"tcp:{host}:80")
    with pytest.raises(UserError, match=r"^--metrics: .* is not the address of a single host$"):
        ControlAddress.parse_tcp(f"{host}:80", "--metrics")


def test_paths_that_are_too_long():
    ControlAddress.parse("unix:" + "x" * 107)
    with pytest.raises(UserError, match="at most 107 bytes"):
        ControlAddress.parse("unix:" + "ä" * 54)
