"""The controller of BMv2, on a P4Runtime server with the interpreted program."""

import contextlib
import shutil
import subprocess

import grpc
import pytest
from support.p4runtime_server import P4RuntimeServer, p4info_of
from support.table_switches import MAC, Bmv2, job_of, made, send

from p4sgd.host.aggregators.cluster_file import Tls
from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.aggregators.p4runtime import P4RuntimeController
from p4sgd.host.aggregators.tables import Program as BuiltProgram
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.packet import PacketType


@pytest.fixture
def switch(tmp_path):
    with made(Bmv2, tmp_path) as found:
        yield found


@pytest.fixture
def server(switch):
    return switch.server


@pytest.fixture
def controller(server):
    with contextlib.closing(P4RuntimeController(server.address)) as opened:
        opened.set_mac(MAC)
        yield opened


def test_echoes_of_an_earlier_reading_are_ignored(switch, server, controller):
    job = job_of(1, 2)
    controller.begin(0, job, 5)
    assert controller.read_slots(0, range(2)) == [SlotView(4, 0, 0)] * 2
    server.late = server.left[:]
    send(switch, job, PacketType.PARTIAL, 1, 5)
    assert controller.read_slots(0, range(2)) == [SlotView(5, 0b10, 0), SlotView(4, 0, 0)]
    assert not server.late


def test_all_slots_are_read_despite_lost_probes(switch, server, controller, monkeypatch):
    monkeypatch.setattr("p4sgd.host.aggregators.p4runtime._PROBE_S", 0.2)
    job = job_of(1, 2)
    controller.begin(1, job, 0)
    for slot in (0, 100, 255):
        send(switch, job, PacketType.PARTIAL, 1, 0, slot=slot)
    server.lose = 70
    expected = {slot: SlotView(0, 0b10, 0) for slot in (0, 100, 255)}
    assert controller.read_slots(1, range(256)) == [expected.get(slot, SlotView(65535, 0, 0)) for slot in range(256)]


@pytest.fixture
def other(server, monkeypatch):
    """Another client. Competitions for the right to write are short."""
    monkeypatch.setattr("p4sgd.host.aggregators.p4runtime._LONGEST_PAUSE_S", 0.01)
    with contextlib.closing(P4RuntimeController(server.address)) as opened:
        yield opened


def test_a_job_begins_though_another_program_takes_the_right_to_write(server, controller, other):
    """After any number of updates, which are then repaired."""
    controller.set_mac(MAC)
    for at in range(1, 20):
        updates = []

        def take(updates=updates, at=at):
            updates.append(None)
            if len(updates) == at:
                other.change(lambda: None)

        controller.end(0)
        server.on_write = take
        controller.begin(0, job_of(at, 3), 0)
        server.on_write = lambda: None
        assert controller.served() == {0: job_of(at, 3)}
        assert len(server.program.tables["members"].entries) == 3
        if len(updates) < at:
            break
    assert at > 5


def test_slots_are_seen_though_another_program_takes_the_right_to_write(server, controller, other):
    packets = []

    def take():
        packets.append(None)
        if len(packets) in (1, 70):
            other.change(lambda: None)

    controller.begin(0, job_of(1, 2), 0)
    server.on_packet = take
    assert controller.read_slots(0, range(256)) == [SlotView(65535, 0, 0)] * 256
    assert len(packets) > 256


def test_a_client_that_never_becomes_primary(controller, other, monkeypatch):
    monkeypatch.setattr("p4sgd.host.aggregators.p4runtime._CONTEST_S", 0.1)
    become_primary = controller._become_primary

    def become_second(stream):
        become_primary(stream)
        other.change(lambda: None)

    monkeypatch.setattr(controller, "_become_primary", become_second)
    with pytest.raises(P4sgdError, match="another program"):
        controller.begin(0, job_of(1, 2), 0)


@contextlib.contextmanager
def serving(switch, *, tls=None, **options):
    """Another server of the program, and its controller."""
    server = P4RuntimeServer(switch.program, **options)
    with contextlib.closing(P4RuntimeController(server.address, tls=tls)) as controller:
        yield server, controller
    server.stop()


def p4info_file(folder, server):
    path = folder / "p4sgd.p4info.txtpb"
    path.write_text(str(server.info))
    return path


def test_switches_without_the_program(switch, server, tmp_path, monkeypatch):
    monkeypatch.setattr("p4sgd.host.aggregators.p4runtime._PROBE_S", 0.02)
    for has_pipeline, message in ((True, "another program"), (False, "no program")):
        with serving(switch, has_pipeline=has_pipeline) as (other, controller):
            if has_pipeline:
                del other.config.p4info.tables[:]
                other.config.p4info.tables.add().preamble.alias = "ipv4_lpm"
            with pytest.raises(P4sgdError, match=f"{other.address} runs {message}.*switch deploy"):
                controller.served()
    with serving(switch, has_cpu_port=False) as (_, controller):
        controller.begin(0, job_of(1, 2), 0)
        with pytest.raises(P4sgdError, match="--cpu-port"):
            controller.read_slots(0, range(2))
    server.stop()
    with contextlib.closing(P4RuntimeController(server.address)) as controller:
        deploy = BuiltProgram(b"", p4info_file(tmp_path, server))
        for ask in (controller.served, lambda: controller.deploy(deploy)):
            with pytest.raises(P4sgdError, match=f"{server.address} cannot be reached"):
                ask()


def test_deploying(switch, tmp_path):
    with serving(switch, has_pipeline=False) as (server, controller):
        controller.deploy(BuiltProgram(b'{"program": 1}', p4info_file(tmp_path, server)))
        assert server.config.p4_device_config == b'{"program": 1}'
        assert server.config.p4info == p4info_of(switch.program)
        assert controller.slots == 256


def test_tls(switch, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout key.pem -out cert.pem"
    command += " -addext subjectAltName=DNS:localhost"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    pair = key.read_bytes(), certificate.read_bytes()
    credentials = grpc.ssl_server_credentials([pair], certificate.read_bytes(), require_client_auth=True)
    with serving(switch, tls=Tls(certificate, certificate, key), credentials=credentials) as (server, controller):
        controller.begin(0, job_of(1, 2), 0)
        assert controller.served() == {0: job_of(1, 2)}
        for tls in (None, Tls(certificate)):
            with contextlib.closing(P4RuntimeController(server.address, tls=tls)) as other:
                with pytest.raises(P4sgdError, match="cannot be reached"):
                    other.served()
        with pytest.raises(UserError, match=r"none\.pem"):
            P4RuntimeController(server.address, tls=Tls(tmp_path / "none.pem"))
