"""Control sockets: requests and answers, clients that stall or vanish, strangers, and the socket's file."""

import contextlib
import errno
import gc
import inspect
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.bench import default_seed
from support.control import BODY_LIMIT, HELLO, Served, await_end, connect, message, raw
from support.corruption import CorruptingCable
from support.namespace import Namespace

from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc import address as listening
from p4sgd.host.rpc import server as serving_clients
from p4sgd.host.rpc.address import ControlAddress, ControlListener, check_address
from p4sgd.host.rpc.client import ControlClient, GoneError, RefusalError
from p4sgd.host.rpc.message import _read
from p4sgd.host.rpc.server import ControlServer, Methods


@pytest.fixture
def address(tmp_path):
    return ControlAddress(path=tmp_path / "control")


@pytest.fixture
def served(address):
    with contextlib.closing(Served(address)) as found:
        yield found


# -- requests ----------------------------------------------------------------------------------------------------------


def test_requests_bodies_and_waits(served, address):
    with connect(address) as client:
        assert not client.call("wait", seconds=0.05)[0]
        client.call("add", number=5)
        assert client.call("wait", seconds=60)[0]
        for size in (0, 1, BODY_LIMIT):
            body = random.Random(size).randbytes(size)
            assert client.call("echo", body, most=size)[1].tobytes() == body
        with pytest.raises(RefusalError, match=r"^the server refuses: there is no method 'subtract'; there are add"):
            client.call("subtract")
        assert client.call("total")[0] == 5


def test_many_requests_at_once_are_answered_in_order(served, address):
    asked = [b'{"do":"add","number":%d}' % number for number in range(100)] + [b'{"do":"total"}']
    with raw(address, b"".join(map(message, [HELLO, *asked]))) as connection:
        wanted = message(b'{"ok":null}') * 100 + message(b'{"ok":4950}')
        got = b""
        while not got.endswith(wanted):
            got += connection.recv(1 << 16)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not answer as it should: a message of 1,213,486,160 .* is too long"),
        (message(b"hello"), "does not answer as it should: this is no JSON object"),
        (message(b'{"ok":1}', body_bytes=1 << 63), "does not answer as it should: a message .* is too long"),
        (b"", "hangs up before it has answered"),
        (message(b'{"ok":1}'), r"is gone \(.*\): see why it ended and start it again: p4sgd test$"),
        (message(b'{"ok":1}') + message(b"{}"), "does not answer as it should"),
    ],
    ids=["http", "text", "length", "nothing", "end", "empty"],
)
def test_something_else_is_there(address, answer, says):
    def talk(other):
        with contextlib.suppress(OSError):  # until it is closed
            while True:
                with other.accept()[0] as connection, contextlib.suppress(OSError):
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    await_end(connection)

    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(address.path))
        other.listen()
        threading.Thread(target=talk, args=(other,), daemon=True).start()
        with pytest.raises(P4sgdError, match=f"^the server {says}"), connect(address) as client:
            client.call("total")


def test_another_kind_of_server_is_not_taken_for_the_right_one(served, address):
    with pytest.raises(UserError, match="is a P4SGD test with version"):
        ControlClient(address, "worker", "worker 0", "p4sgd worker", timeout_s=10)


def test_a_server_with_a_full_queue_is_waited_for(address):
    """Of a Unix socket the queue is full at once, without a wait."""
    listener = socket.socket(socket.AF_UNIX)
    with listener, contextlib.ExitStack() as opened:
        listener.bind(str(address.path))
        listener.listen(0)
        opened.enter_context(address.connect(10))
        with pytest.raises(TimeoutError):
            address.connect(0.1)
        timer = threading.Timer(0.1, lambda: opened.enter_context(listener.accept()[0]))
        timer.start()
        opened.enter_context(address.connect(10))
        timer.join()


def test_a_server_that_hangs_is_not_waited_for_again(address, monkeypatch):
    with contextlib.closing(ControlListener(address)):
        with pytest.raises(GoneError, match=r"^the server has not answered for 0\.2 s$"):
            connect(address, 0.2)
        server = Served(ControlAddress(path=address.path.with_name("other")))
        with contextlib.closing(server), connect(ControlAddress(path=address.path.with_name("other")), 0.2) as client:
            for _ in range(3):
                with pytest.raises(GoneError, match=r"^the server has not answered for 0\.2 s$"):
                    client.call("wait", seconds=60)
                monkeypatch.setattr(ControlAddress, "connect", lambda *_: pytest.fail("it is connected to again"))


def test_an_interrupted_request_is_forgotten(served, address):
    def press(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    try:
        with connect(address) as client:
            for _ in range(5):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(KeyboardInterrupt):
                    client.call("wait", seconds=60)
                assert client.call("total")[0] == 0
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_process_that_has_ended_is_noticed_and_not_one_that_pauses(address):
    first = Served(address)
    with connect(address) as client, connect(address) as other:
        client.check_process()
        first.close()
        with pytest.raises(GoneError, match=r"is gone \(No such file or directory\): see why .* again: p4sgd test"):
            client.check_process()
        with contextlib.closing(Served(address)):
            for ask in (other.check_process, lambda: other.call("total")):
                with pytest.raises(P4sgdError, match=r"^the server was started again in the meantime"):
                    ask()
            with pytest.raises(GoneError, match="is gone"):
                client.call("total")
    paused = Served(address)
    with contextlib.closing(paused), connect(address) as client:
        paused.server.watch(run := socket.socketpair()[0], lambda: time.sleep(0.5))
        run.shutdown(socket.SHUT_RDWR)
        client.check_process()


# -- clients and strangers ---------------------------------------------------------------------------------------------


def test_clients_that_are_too_many_and_those_that_hang_up(served, address):
    with connect(address), connect(address) as second:
        with pytest.raises(UserError, match=r"^the server is busy$"):
            connect(address)
        second.close()
        with connect(address), pytest.raises(P4sgdError, match=r"^the server is busy$"):
            second.call("total")
    end = time.monotonic() + 10
    while served.server.clients:
        assert time.monotonic() < end


def test_a_client_that_is_killed_in_the_middle_of_a_request_makes_room(served, address):
    program = "import socket, sys, time; c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1])\n"
    program += "c.sendall(bytes.fromhex(sys.argv[2])); print('there', flush=True); time.sleep(60)"
    for unfinished in (message(b'{"do":"total"}')[:5], message(b'{"do":"wait","seconds":60}')):
        text = message(HELLO) + message(b'{"do":"total"}') * 20 + unfinished
        for _ in range(2):
            command = [sys.executable, "-c", program, str(address.path), text.hex()]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout.readline() == b"there\n"
                process.kill()
        with connect(address) as client:
            assert client.call("total")[0] == 0


def test_garbage_stops_nothing(served, address):
    """Neither from strangers nor from clients, whether they hang up or not."""
    pick = random.Random(default_seed())
    names, values = ["add", "total", "echo", "wait", "no", 7], [0, 1 << 63, 1 << 70, -1, 1e300, True, None, "0", [], {}]
    for _ in range(200):
        kind = pick.random()
        if kind < 0.3:
            text = pick.randbytes(pick.randrange(200))
        elif kind < 0.5:
            text = struct.pack("!IQ", pick.choice([0, 5, 1 << 18, 1 << 31]), pick.randrange(1 << 64)) + bytes(100)
        elif kind < 0.6:
            heads = b"[" * 60000, b'{"do":' + b"[" * 60000, b'{"do":' + b"9" * 5000 + b"}", b"\xff\xfe", b"NaN"
            text = message(pick.choice(heads))
        else:
            head = repr({"do": pick.choice(names), pick.choice(["number", "seconds"]): pick.choice(values)}).encode()
            text = message(head.replace(b"'", b'"'), pick.randbytes(pick.randrange(50)))
        with raw(address, message(HELLO) if pick.random() < 0.7 else b"") as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(text)
            if pick.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
    with connect(address) as client:
        client.call("total")


def test_the_body_of_who_is_cut_off_is_not_kept(served, address, monkeypatch):
    monkeypatch.setattr(serving_clients, "_STALL_S", 0.2)
    read = _read.__code__
    gc.disable()
    try:
        with raw(address, message(HELLO) + message(b'{"do":"echo"}', bytes(BODY_LIMIT))[:-1]) as connection:
            await_end(connection)
        assert not any(inspect.isgenerator(each) and each.gi_code is read for each in gc.get_objects())
    finally:
        gc.enable()


def test_who_takes_no_answers_is_cut_off(served, address, monkeypatch):
    monkeypatch.setattr(serving_clients, "_STALL_S", 0.2)
    asked = message(b'{"do":"echo"}', bytes(BODY_LIMIT))
    with raw(address) as connection:
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
            for _ in range(20):
                connection.sendall(asked)
        hung_up = select.poll()
        hung_up.register(connection, select.POLLRDHUP)
        assert hung_up.poll(10_000)


def test_a_slow_sender_is_no_staller(served, address, monkeypatch):
    monkeypatch.setattr(serving_clients, "_STALL_S", 0.5)
    with raw(address) as connection:
        assert connection.recv(100)
        for byte in message(b'{"do":"total"}'):
            connection.sendall(bytes([byte]))
            time.sleep(0.05)
        assert connection.recv(100) == message(b'{"ok":0}')


@pytest.mark.parametrize(
    "first",
    [b"", message(HELLO)[:8], message(HELLO, body_bytes=1 << 40), bytes(5000)]
    + [message(HELLO) + message(b'{"do":"echo"}', bytes(10))[:begin] for begin in (5, 15, -1)],
    ids=range(7),
)
def test_who_stops_in_the_middle_is_cut_off(served, address, monkeypatch, first):
    """And is no client before its hello is whole."""
    monkeypatch.setattr(serving_clients, "_STRANGER_S", 0.3)
    monkeypatch.setattr(serving_clients, "_STALL_S", 0.3)
    with raw(address, first) as connection:
        if not first.startswith(message(HELLO)):
            assert not served.server.clients
        await_end(connection)


def test_who_comes_while_the_owner_is_busy_is_no_staller(served, address, monkeypatch):
    """As with loops that are compiled, or long mini-batches: what has come meanwhile is read before time is up."""
    monkeypatch.setattr(serving_clients, "_STRANGER_S", 0.2)
    monkeypatch.setattr(serving_clients, "_STALL_S", 0.2)
    served.server.watch(work := socket.socketpair()[0], lambda: time.sleep(0.5))
    work.shutdown(socket.SHUT_RDWR)
    with connect(address) as client:
        assert client.call("echo", bytes(BODY_LIMIT), most=BODY_LIMIT)[1].size == BODY_LIMIT


def test_strangers_keep_nobody_out(served, address):
    with contextlib.ExitStack() as opened:
        strangers = [opened.enter_context(raw(address, b"")) for _ in range(60)]
        with connect(address) as client:
            assert client.call("total")[0] == 0
        for each in strangers[: 60 - 16]:
            assert each.recv(1) == b"", "it has made room"


def test_a_client_that_comes_while_there_are_no_descriptors_is_served_later(address):
    server = ControlServer(ControlListener(address), "test", Methods(), most_clients=1, busy="is busy")
    with contextlib.closing(server), raw(address) as client:
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
        end = time.monotonic() + 10
        while not server.clients:
            server.turn(0.1)
            assert time.monotonic() < end
        assert b"ok" in client.recv(100)


def test_strangers_of_one_host_keep_nobody_out_of_another():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ControlAddress(host="127.0.0.1", port=taken.getsockname()[1])
    with contextlib.closing(Served(address)), contextlib.ExitStack() as opened:
        for count in (10, 40):
            if count == 40:
                honest = opened.enter_context(raw(address, b""))
            for _ in range(count):
                stranger = socket.create_connection((address.host, address.port), 10, ("127.9.9.9", 0))
                opened.enter_context(stranger)
        honest.sendall(message(HELLO))
        assert b"ok" in honest.recv(100)


@pytest.mark.slow
def test_a_client_whose_machine_vanishes_makes_room():
    """While an answer to it is under way: after 26 s here, and after 941 s if only keepalive asks."""
    token = b"correct horse battery staple"
    with contextlib.ExitStack() as stack:
        here, there = (stack.enter_context(contextlib.closing(Namespace())) for _ in range(2))
        cable = CorruptingCable([here, there], 0.0, 0)
        address = ControlAddress(host="10.0.0.1", port=7000)
        listener = here.call(ControlListener, address, token=token)
        server = ControlServer(listener, "test", Methods(vanish=cable.close), most_clients=1, busy="is busy")
        stack.enter_context(contextlib.closing(server))

        def vanish():
            client = there.call(ControlClient, address, "test", "the test", "test", timeout_s=1.0, token=token)
            with pytest.raises(P4sgdError, match="has not answered for 1 s"):
                client.call("vanish")

        thread = threading.Thread(target=vanish, daemon=True)
        thread.start()
        for has_clients, seconds in ((True, 10), (False, 90)):
            end = time.monotonic() + seconds
            while bool(server.clients) != has_clients:
                server.turn(0.1)
                assert time.monotonic() < end
        thread.join()


# -- where it listens --------------------------------------------------------------------------------------------------


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
        assert os.listdir(address.path.parent) == [address.path.name]


def test_one_that_ends_meanwhile_is_not_in_the_way(address, monkeypatch):
    served, connect = ControlListener(address), ControlAddress.connect

    def end_first(there, timeout_s):
        served.close()
        return connect(there, timeout_s)

    monkeypatch.setattr(ControlAddress, "connect", end_first)
    with contextlib.closing(ControlListener(address)) as listener:
        assert listener.can_be_found


def test_a_check_leaves_nothing_that_seems_to_be_a_server(address, monkeypatch):
    monkeypatch.setattr(listening.socket, "socket", lambda *_: pytest.fail("it is there for a moment"))
    check_address(address)


def test_where_it_cannot_listen(served, address, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("precious")
    for path, says in (
        (address.path, "another program serves there: end it, or choose another address"),
        (tmp_path / "file", "something else is there already: choose another name"),
        (tmp_path / "missing" / "socket", f"there is no folder {tmp_path}/missing: make it first"),
    ):
        with pytest.raises(UserError, match=f"^unix:{path}: {says}"):
            ControlListener(ControlAddress(path=path))
    assert (tmp_path / "file").read_text() == "precious"
    assert address.path.stat().st_mode & 0o777 == 0o600
    with connect(address) as client:
        assert client.call("total")[0] == 0

    def refuse(address, timeout_s):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(ControlAddress, "connect", refuse)
    with pytest.raises(UserError, match=f"^{address}: cannot listen there: Permission denied$"):
        check_address(address)


def test_the_socket_of_a_killed_process_is_replaced_and_only_the_own_is_removed(address, tmp_path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(address.path))
    with contextlib.closing(ControlListener(address)) as listener:
        assert listener.can_be_found
        address.path.rename(tmp_path / "moved")
        assert not listener.can_be_found
        other = ControlListener(address)
        assert not listener.can_be_found, "another one is there"
    assert other.can_be_found
    other.close()
    assert not address.path.exists()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:a/b:c", ControlAddress(path=Path("a/b:c"))),
        ("unix:" + "x" * 107, ControlAddress(path=Path("x" * 107))),
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
    ("texts", "says"),
    [
        ("unix:,tcp:80,tcp::80,tcp:host:0,tcp:host:65536,tcp:host:x,a,x:y,tcp:a..b:80", "give unix:PATH or tcp:HOST"),
        (f",tcp:{'a' * 64}:80,tcp:{'é' * 60}:80,tcp:a\0b:80,tcp:\udcff:80", "give unix:PATH or tcp:HOST:PORT"),
        ("unix:" + "ä" * 54, "at most 107 bytes"),
        ("tcp:255.255.255.255:80,tcp:224.0.0.1:80,tcp:[ff02::1]:80", "is not the address of a single host$"),
    ],
    ids=["kinds", "hosts", "path", "groups"],
)
def test_texts_that_are_no_addresses(texts, says):
    for text in texts.split(","):
        with pytest.raises(UserError, match=says):
            ControlAddress.parse(text)
    with pytest.raises(UserError, match=re.escape("the switch: 'a..b:80' is not HOST:PORT")):
        ControlAddress.parse_tcp("a..b:80", "the switch")
