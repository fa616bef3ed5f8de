"""Who may use a control socket over TCP: those with the token. Others change nothing, whatever they send."""

import contextlib
import socket
import ssl
from pathlib import Path

import pytest
from support.command_line import run
from support.control import HELLO, Served, connect, message
from support.loopback import loopback
from support.switch import running
from support.worker_process import serve_worker

from p4sgd.host.aggregators.cluster_file import read_cluster
from p4sgd.host.aggregators.software import SoftwareAggregator
from p4sgd.host.devices.remote_worker import RemoteWorker
from p4sgd.host.errors import UserError
from p4sgd.host.rpc.address import ControlAddress, ControlListener
from p4sgd.host.rpc.token import read_token, tls_context
from p4sgd.host.serve.aggregator import SoftwareAggregatorServer
from p4sgd.hw.spec.config import WorkerConfig

TOKEN, OTHER = b"correct horse battery staple", b"incorrect horse battery staple"
REQUESTS = message(HELLO) + message(b'{"do":"add","number":7}')


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def address():
    return ControlAddress(host="127.0.0.1", port=free_port())


@pytest.fixture
def remarks():
    return []


@pytest.fixture
def served(address, remarks):
    with contextlib.closing(Served(address, token=TOKEN, tell=remarks.append)) as found:
        yield found


@pytest.mark.parametrize(
    ("token", "says"),
    [
        (None, r"serves only those who have its token: name a copy .* in the cluster file \(token = …\)"),
        (OTHER, "has another token: give both sides the same file"),
        (TOKEN + b"!", "has another token: give both sides the same file"),
    ],
)
def test_who_has_the_token_may_and_others_may_not(served, address, remarks, token, says):
    with connect(address, token=TOKEN) as client:
        client.call("add", number=5)
    assert remarks == []
    for _ in range(3):
        with pytest.raises(UserError, match=f"^the server {says}"):
            connect(address, token=token)
    assert served.total == 5
    assert remarks == ["a client was refused for want of this test's token, the last from 127.0.0.1"], "one in 10 s"


def unverified():
    """Of a stranger who accepts any server, and has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def forged():
    """Of a stranger who accepts any server, with a certificate of another token."""
    context = tls_context.__wrapped__(OTHER, ssl.Purpose.SERVER_AUTH)
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("make_context", [lambda: None, unverified, forged], ids=["plain", "no certificate", "forged"])
def test_requests_without_the_token_are_not_carried_out(served, address, remarks, make_context):
    context = make_context()
    with contextlib.suppress(OSError), address.connect(10) as connection:
        encrypted = connection if context is None else context.wrap_socket(connection)
        with encrypted:
            encrypted.sendall(REQUESTS)
            while got := encrypted.recv(1000):
                assert b'"ok"' not in got
    with connect(address, token=TOKEN) as client:
        assert client.call("total")[0] == 0
    assert len(remarks) == 1


def test_a_server_without_the_token_learns_nothing(address):
    with contextlib.closing(Served(address)):
        with pytest.raises(UserError, match="asks for no token, and the cluster file has one: give it --token"):
            connect(address, token=TOKEN)
        with connect(address) as client:
            assert client.call("total")[0] == 0


def test_workers_and_aggregators_demand_it(address):
    def connect_worker(token):
        return RemoteWorker(3, address, token)

    with serve_worker(WorkerConfig.tiny(), str(address), token=TOKEN):
        connect_worker(TOKEN).close()
        for token in (None, OTHER):
            with pytest.raises(UserError, match=rf"^worker 3 at {address} .*token"):
                connect_worker(token)
    for token, says in ((TOKEN, " --config NAME --token FILE$"), (None, " --config NAME$")):  # it is started with it
        with pytest.raises(UserError, match=rf"start it: p4sgd worker .* --control {address}{says}"):
            connect_worker(token)
    with running(SoftwareAggregatorServer({}, address, slots=4, jobs=2, token=TOKEN)):
        SoftwareAggregator(address, TOKEN).close()
        for token in (None, OTHER):
            with pytest.raises(UserError, match="token"):
                SoftwareAggregator(address, token)


# -- where it is needed, and its file --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_other_machines_may_not_connect_without_one(host):
    port = free_port()
    address = ControlAddress.parse(f"tcp:{host}:{port}")
    with pytest.raises(UserError, match=r"anybody who reaches this address could control .* give --token FILE"):
        ControlListener(address)
    with pytest.raises(OSError, match="refused"):
        ControlAddress.parse(f"tcp:127.0.0.1:{port}").connect(1)
    ControlListener(address, token=TOKEN).close()


def test_where_it_is_not_needed(tmp_path):
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "[::1]"):
        port = free_port()
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
    with pytest.raises(UserError, match=r"^/dev/null: cannot read the token: it is not an ordinary file$"):
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
    others, port = tmp_path / "others", free_port()
    others.touch(0o640)
    for control, token, says in (
        ("tcp:127.0.0.1:9", others, f"chmod 600 {others}"),
        ("tcp:127.0.0.1:9", tmp_path / "none", "no such file with a token"),
        (f"unix:{tmp_path}/control", file, "is its owner's anyway: leave it out"),
        (f"tcp:0.0.0.0:{port}", None, "anybody who reaches this address could control the program: give --token FILE"),
    ):
        link = "lo" if token else f"udp:{loopback(1)}"
        more = ["--token", token] if token else []
        assert says in run(*words, "--interface", link, "--control", control, *more, status=2).stderr
