"""Who may use a control socket over TCP: those with the token. Others change nothing, whatever they send."""

import contextlib
import socket
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.loopback import loopback
from support.worker_process import serve_worker

from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.aggregators.software import SoftwareAggregator
from p4sgd.host.cli.app import main
from p4sgd.host.devices.device import client_of
from p4sgd.host.devices.remote_worker import RemoteWorker
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.rpc import server as rpc_server
from p4sgd.host.rpc.address import ControlAddress, ControlListener
from p4sgd.host.rpc.client import ControlClient, GoneError
from p4sgd.host.rpc.server import ControlServer, Methods
from p4sgd.host.rpc.token import is_proof, new_nonce, prove, read_token
from p4sgd.host.serve.aggregator import SoftwareAggregatorServer
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.sim.rpc import PREFIX, Channel, RefusedError, encode, greeting

TOKEN, OTHER = b"correct horse battery staple", b"incorrect horse battery staple"
PAIR = registers.LOCAL_MAC
BEFORE, AFTER = 0x0250_0000_0001, 0x0250_0000_0002


def free_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"tcp:127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def told():
    return []


@pytest.fixture
def address(told):
    found = free_address()
    with serve_worker(WorkerConfig.tiny(), found, token=TOKEN, told=told):
        write(found, BEFORE)
        yield found


def connect(address, token=TOKEN):
    return contextlib.closing(RemoteWorker(3, ControlAddress.parse(address), token))


def write(address, value, token=TOKEN):
    with connect(address, token) as worker:
        client_of(worker).write_pair(PAIR, value)


def read(address):
    with connect(address) as worker:
        return client_of(worker).read_pair(PAIR)


# -- the proof ---------------------------------------------------------------------------------------------------------


def test_who_has_the_token_may(address, told):
    write(address, AFTER)
    assert read(address) == AFTER
    assert told == []


@pytest.mark.parametrize(
    ("token", "says"),
    [
        (None, r"serves only those who have its token: name a copy .* in the cluster file \(token = …\)"),
        (OTHER, "has another token: give both sides the same file"),
        (TOKEN + b"!", "has another token: give both sides the same file"),
    ],
)
def test_who_has_not_may_not(address, told, token, says):
    for _ in range(10):
        with pytest.raises(UserError, match=f"^worker 3 at {address} {says}"):
            write(address, AFTER, token)
    assert read(address) == BEFORE
    refused = "a client was refused: this worker has another token: give both sides the same file"
    assert told == ([] if token is None else [refused]), "one remark in a while"


WRITE = {"do": "write_registers", "words": [[PAIR[0].offset, 7]]}


@pytest.mark.parametrize(
    "first",
    [
        encode(WRITE),
        encode({"do": "prove", "nonce": "0" * 64, "proof": "0" * 64}) + encode(WRITE),
        encode({"do": "prove", "nonce": "0" * 64, "proof": None}) + encode(WRITE),
        encode({"do": "prove", "nonce": "é", "proof": "é" * 64}) + encode(WRITE),
        encode({"do": "prove"}) + encode(WRITE),
        encode({"do": "prove", "nonce": "0" * 64, "proof": "0" * 64}, 1 << 40) + encode(WRITE),
        PREFIX.pack(5, 0) + b"hello" + encode(WRITE),
        PREFIX.pack(8000, 0) + bytes(8000) + encode(WRITE),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_requests_before_a_proof_are_not_carried_out(address, first):
    with contextlib.closing(Channel(ControlAddress.parse(address).connect(10))) as channel:
        assert len(channel.receive_greeting("worker")["nonce"]) == 64
        channel.socket.sendall(first)
        with contextlib.suppress(ConnectionError):
            answer, _ = channel.receive()
            assert "error" in answer
            channel.receive()
            pytest.fail("goes on")
    assert read(address) == BEFORE


class Recorder:
    """Passes one connection on to an address, keeps what client and server say, and may ``change`` the former."""

    def __init__(self, address, change=lambda data: data):
        self.said = [b"", b""]
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        self._there = ControlAddress.parse(address)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        with self._listener, self._listener.accept()[0] as client, self._there.connect(10) as server:
            back = threading.Thread(target=self._pass, args=(1, server, client, lambda data: data))
            back.start()
            self._pass(0, client, server, self._change)
            back.join()

    def _pass(self, index, source, target, change):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.said[index] += data
                target.sendall(change(data))
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def join(self):
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_what_was_recorded_changes_nothing_when_it_is_sent_again(address):
    recorder = Recorder(address)
    write(recorder.address, AFTER)
    recorder.join()
    from_client, from_server = recorder.said
    assert read(address) == AFTER
    assert TOKEN not in from_client + from_server
    assert b"prove" in from_client
    assert b"write_register" in from_client
    assert read(address) == AFTER
    write(address, BEFORE)
    for _ in range(3):
        with ControlAddress.parse(address).connect(10) as again:
            again.sendall(from_client)
            answers = b""
            with contextlib.suppress(ConnectionError):
                while data := again.recv(65536):
                    answers += data
        assert b'"ok"' not in answers
    assert read(address) == BEFORE


def test_a_proof_is_for_one_side_one_kind_of_server_and_two_nonces():
    nonces = new_nonce(), new_nonce()
    proof = prove(TOKEN, "client", "worker", nonces)
    assert is_proof(proof.hex(), proof)
    for other in (
        prove(OTHER, "client", "worker", nonces),
        prove(TOKEN, "server", "worker", nonces),
        prove(TOKEN, "key", "worker", nonces),
        prove(TOKEN, "client", "aggregator", nonces),
        prove(TOKEN, "client", "worker", (nonces[0], new_nonce())),
        prove(TOKEN, "client", "worker", (new_nonce(), nonces[1])),
        prove(TOKEN, "client", "worker", nonces[::-1]),
    ):
        assert not is_proof(other.hex(), proof)
    assert not is_proof(None, proof)


@pytest.mark.parametrize(
    ("greeted", "answer", "says"),
    [
        ({}, None, "asks for no token, and the cluster file has one: give it --token"),
        ({"nonce": "x"}, None, "it sends something else than a nonce"),
        ({"nonce": "0" * 64}, {"ok": "0" * 64}, "it does not have the token that it asks for"),
        ({"nonce": "0" * 64}, {"ok": None}, "it does not have the token that it asks for"),
    ],
)
def test_a_server_without_the_token_learns_nothing(greeted, answer, says):
    """It gets a proof that is good for its own nonce only, and no request."""
    got = []

    def serve(listener):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(greeting(server="worker", process=1, **greeted))
            if answer is not None:
                with contextlib.closing(Channel(connection)) as channel:
                    got.append(channel.receive()[0]["do"])
                    channel.send(answer)
                    with contextlib.suppress(ConnectionError):
                        got.append(channel.receive()[0]["do"])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with pytest.raises((UserError, P4sgdError), match=says):
            write(f"tcp:127.0.0.1:{listener.getsockname()[1]}", AFTER)
        thread.join()
    assert got == ([] if answer is None else ["prove"])


# -- strangers and clients -------------------------------------------------------------------------------------------


def test_strangers_keep_nobody_out(address):
    with contextlib.ExitStack() as opened:
        strangers = [opened.enter_context(ControlAddress.parse(address).connect(10)) for _ in range(40)]
        write(address, AFTER)
        with connect(address) as first:
            with pytest.raises(UserError, match="is in use by another program: wait until that has ended"):
                write(address, BEFORE)
            assert client_of(first).read_pair(PAIR) == AFTER
        gone = 0
        for stranger in strangers:
            stranger.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                while stranger.recv(1000):
                    pass
                gone += 1
        assert 40 - 16 <= gone < 40, "the newest of them are still there"


@contextlib.contextmanager
def turning(**options):
    address, over = ControlAddress.parse(free_address()), threading.Event()
    server = ControlServer(
        ControlListener(address, token=TOKEN), "test", Methods(), most_clients=1, busy="is busy", **options
    )

    def turn():
        while not over.is_set():
            server.turn(0.01)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield server, address
    finally:
        over.set()
        thread.join()
        server.close()


def test_strangers_of_another_host_keep_nobody_out_whose_proof_is_on_its_way():
    with turning() as (server, address), contextlib.ExitStack() as opened:

        def connect_strangers(count):
            for _ in range(count):
                stranger = socket.create_connection((address.host, address.port), 10, (str(loopback(9)), 0))
                assert opened.enter_context(stranger).recv(1000), "it is greeted"

        connect_strangers(10)
        honest = opened.enter_context(contextlib.closing(Channel(address.connect(10))))
        nonces = honest.receive_greeting("test")["nonce"], new_nonce()
        connect_strangers(40)
        proof = prove(TOKEN, "client", "test", nonces).hex()
        answer, _ = honest.call("prove", nonce=nonces[1], proof=proof)
        assert is_proof(answer, prove(TOKEN, "server", "test", nonces))
        assert server.has_clients


def test_a_server_that_hangs_up_before_it_has_answered_is_asked_again():
    """One with many strangers does so: it is not gone, and a client that it has served before has lost nothing."""

    def serve(listener, hang_ups):
        for hangs_up in hang_ups:
            with listener.accept()[0] as connection:
                if hangs_up:
                    continue
                connection.sendall(greeting(server="test", process=1))
                with contextlib.closing(Channel(connection)) as channel:
                    channel.receive()
                    channel.send({"ok": 5})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        hang_ups = [True] * 4 + [False] + [True] * 5 + [False]
        thread = threading.Thread(target=serve, args=(listener, hang_ups), daemon=True)
        thread.start()
        address = ControlAddress(host="127.0.0.1", port=listener.getsockname()[1])
        with contextlib.closing(ControlClient(address, "test", "the test", "test", timeout_s=10)) as client:
            assert client.call("five")[0] == 5
            client.close()
            with pytest.raises(GoneError, match=r"^the test hangs up before it has answered, .*: try again in a"):
                client.call("five")
            assert client.call("five")[0] == 5
        thread.join(10)


@pytest.mark.parametrize("first", [b"", PREFIX.pack(100, 0)])
def test_strangers_are_no_clients_and_do_not_stay(monkeypatch, first):
    """A run of a worker goes on while it has clients: strangers must not keep it alive, however they send a proof."""
    monkeypatch.setattr(rpc_server, "_PROOF_S", 1.0)
    with turning() as (server, address), address.connect(10) as stranger:
        assert stranger.recv(1000)
        assert not server.has_clients
        with contextlib.suppress(ConnectionError):
            for byte in first:
                stranger.sendall(bytes([byte]))
                time.sleep(0.12)
            assert stranger.recv(1000) == b"", "hung up"


def test_what_is_changed_on_its_way_changes_nothing(address):
    meddler = Recorder(address, lambda data: data.replace(b"119]", b"118]"))
    with connect(meddler.address) as worker:
        client_of(worker).write_pair(PAIR, 119)
        with pytest.raises(P4sgdError, match="refuses: a message was changed on its way"):
            worker.read_register(PAIR[0].offset)
    meddler.join()
    assert b"119]" in meddler.said[0]
    assert read(address) == BEFORE


def test_one_that_is_not_there_is_started_with_it():
    with pytest.raises(UserError, match=r"start it: p4sgd worker .* --control tcp:127\.0\.0\.1:\d+ --config CONFIG"):
        write(free_address(), AFTER)
    with pytest.raises(UserError, match=r"start it: p4sgd worker .* --control tcp:127\.0\.0\.1:\d+ --config CONFIG$"):
        write(free_address(), AFTER, None)


def test_an_aggregator_demands_it_too():
    address = ControlAddress.parse(free_address())
    server = SoftwareAggregatorServer({}, address, slots=4, jobs=2, token=TOKEN)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        control = SoftwareAggregator(address, TOKEN)
        control.set_mac(BEFORE)
        for token in (None, OTHER):
            with pytest.raises(UserError, match="token"):
                SoftwareAggregator(address, token)
        with contextlib.closing(Channel(address.connect(10))) as channel:
            channel.receive_greeting("aggregator")
            with pytest.raises(RefusedError, match="prove first that they have its token"):
                channel.call("set_mac", mac=AFTER)
        assert server.aggregator.mac == BEFORE
        assert control.served() == {}
    finally:
        server.stop()
        thread.join()
        server.close()


# -- where it is needed, and its file --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_other_machines_may_not_connect_without_one(host):
    port = free_address().rpartition(":")[2]
    address = ControlAddress.parse(f"tcp:{host}:{port}")
    with pytest.raises(UserError, match=r"anybody who reaches this address could control .* give --token FILE"):
        ControlListener(address)
    with pytest.raises(OSError, match="refused"):
        ControlAddress.parse(f"tcp:127.0.0.1:{port}").connect(1)
    ControlListener(address, token=TOKEN).close()


def test_where_it_is_not_needed(tmp_path):
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "[::1]"):
        port = free_address().rpartition(":")[2]
        ControlListener(ControlAddress.parse(f"tcp:{host}:{port}")).close()
    with contextlib.closing(ControlListener(ControlAddress(path=tmp_path / "control"), token=TOKEN)) as listener:
        assert listener.token is None


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o600)
    return path


def test_the_file_of_a_token(file):
    assert read_token(file) == TOKEN
    for mode in (0o640, 0o604, 0o660, 0o601):
        file.chmod(mode)
        with pytest.raises(UserError, match=f"{file}: others than its owner may read this token: chmod 600 {file}"):
            read_token(file)
    file.chmod(0o600)
    file.write_bytes(b"  short\n")
    with pytest.raises(UserError, match=r"a token has 16 to 4096 bytes, not 5: make one: .umask 077; head"):
        read_token(file)
    file.unlink()
    with pytest.raises(UserError, match=f"{file}: there is no such file with a token: .* base64 > {file}"):
        read_token(file)
    with pytest.raises(UserError, match=f"{file.parent}: cannot read the token: Is a directory"):
        read_token(file.parent)
    with pytest.raises(UserError, match=r"^/dev/null: is a device: a token is in a file"):
        read_token(Path("/dev/null"))  # chmod 600 would be bad advice


def test_the_cluster_file_names_it(file, tmp_path):
    text = '[aggregator]\nkind = "socket"\ncontrol = "unix:a"\n[[workers]]\ncontrol = "unix:w"\nport = 0\n'
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(f'token = "token"\n{text}')
    assert read_cluster(cluster).token == TOKEN
    assert TOKEN.decode() not in repr(read_cluster(cluster))
    file.chmod(0o644)
    with pytest.raises(UserError, match=f"^{cluster}: token: {file}: .*: chmod 600 {file}"):
        read_cluster(cluster)


@pytest.mark.parametrize("words", [["worker"], ["switch", "serve"]])
def test_programs_that_serve_say_what_is_wrong(words, file, tmp_path):
    others, port = tmp_path / "others", free_address().rpartition(":")[2]
    others.touch(0o640)
    for control, token, says in (
        ("tcp:127.0.0.1:9", others, f"chmod 600 {others}"),
        ("tcp:127.0.0.1:9", tmp_path / "none", "no such file with a token"),
        (f"unix:{tmp_path}/control", file, "is its owner's anyway: leave it out"),
        (f"tcp:0.0.0.0:{port}", None, "anybody who reaches this address could control the program: give --token FILE"),
    ):
        link = "lo" if token else f"udp:{loopback(1)}"
        more = ["--token", str(token)] if token else []
        done = CliRunner().invoke(main, [*words, "--interface", link, "--control", control, *more])
        assert done.exit_code == 2
        assert says in done.stderr
