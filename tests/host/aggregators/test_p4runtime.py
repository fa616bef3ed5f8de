"""The controller of BMv2, on a P4Runtime server with the interpreted program."""

import contextlib
import random
import shutil
import subprocess

import grpc
import pytest
from support.networked_device import NetworkedDevice, client_of
from support.p4 import Program
from support.p4_switch import with_sizes
from support.p4runtime_server import P4RuntimeServer, RefusedError, p4info_of

from p4sgd.host.aggregators import tables as entries
from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster, Tls
from p4sgd.host.aggregators.controller import SlotView, open_controller
from p4sgd.host.aggregators.p4runtime import P4RuntimeController
from p4sgd.host.aggregators.tables import Program as BuiltProgram
from p4sgd.host.aggregators.tables import _newest, read_program
from p4sgd.host.devices.session import Session
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet, PacketType

CONFIG = AggregatorConfig(slots=256, jobs=2)
MAC = 0x0250_3453_47FF
GROUP_MAC = 0x0100_5034_5347
SEED = 3


def job_of(number, workers, ports=None):
    members = tuple(Member(0x0200_0000_0000 | number << 8 | shard, shard + 1) for shard in range(workers))
    return Job(number, members, GROUP_MAC, sum(1 << port for port in ports or range(1, workers + 1)))


@pytest.fixture
def program(tmp_path):
    return Program(with_sizes(tmp_path / "sources", CONFIG) / "p4sgd_v1model.p4")


@pytest.fixture
def server(program):
    running = P4RuntimeServer(program)
    yield running
    running.stop()


@pytest.fixture
def controller(server):
    with contextlib.closing(P4RuntimeController(server.address)) as opened:
        opened.set_mac(MAC)
        yield opened


def packet(kind, job, shard, round_, slot=0, value=0):
    return Packet(
        type=kind,
        job=job.number,
        slot=slot,
        round=round_,
        shard=shard,
        workers=len(job.members),
        bitmap=1 << shard,
        values=(value,) * 8,
        destination=MAC,
        source=job.members[shard].mac,
    )


def send(server, job, *args, **fields):
    sent = packet(*args[:1], job, *args[1:], **fields)
    return server.program.receive(sent.to_bytes(), job.members[sent.shard].port)


def test_sizes_are_those_of_the_program(controller):
    assert (controller.slots, controller.jobs) == (256, 2)


def test_it_keeps_programs_from_merging(controller):
    device = NetworkedDevice(WorkerConfig.tiny(), 2)
    device.aggregator = controller
    for worker in device.workers:
        worker.words[registers.MERGE_MOST.offset] = 46
    limit = Session(device).limit
    assert (limit.version, limit.why) == (1, "the aggregator speaks version 1 only, like boards and P4 switches")
    assert [client_of(worker).read_pair(registers.JOB_KEY) for worker in device.workers] == [0, 0]
    says = f"--merge 2: a packet of this job has at most 1 micro-batch, as {limit.why}; give no more, or leave"
    with pytest.raises(UserError, match=says):
        Session(device, merge=2)


def test_opening_by_a_cluster_file(server):
    cluster = Cluster(AggregatorAddress("bmv2", server.address), ())
    with contextlib.closing(open_controller(cluster)) as opened:
        assert isinstance(opened, P4RuntimeController)
        assert opened.slots == 256


def test_serving_jobs(server, controller):
    assert controller.served() == {}
    jobs = {0: job_of(7, 3), 1: job_of(8, 31, ports=(4,))}
    for place, job in jobs.items():
        controller.begin(place, job, 65535)
    assert controller.served() == jobs
    assert send(server, jobs[0], PacketType.PARTIAL, 0, 65535, value=1) is None
    assert send(server, jobs[0], PacketType.PARTIAL, 1, 65535, value=2) is None
    left, group = send(server, jobs[0], PacketType.PARTIAL, 2, 65535, value=4)
    full = Packet.from_bytes(left)
    assert (full.type, full.values, full.destination, full.source) == (PacketType.FULL, (7,) * 8, GROUP_MAC, MAC)
    assert server.groups[group] == [1, 2, 3]
    controller.end(0)
    controller.end(0)
    assert controller.served() == {1: jobs[1]}
    assert send(server, jobs[0], PacketType.PARTIAL, 0, 65535) is None


def test_the_address_stays_while_jobs_are_served(server, controller):
    """Workers of these jobs would not be heard any more."""
    controller.begin(0, job_of(1, 2), 0)
    controller.set_mac(MAC)
    with pytest.raises(P4sgdError, match=r"02:50:34:53:47:ff.*02:50:34:53:47:fe"):
        controller.set_mac(MAC - 1)
    assert send(server, job_of(1, 2), PacketType.PROBE, 0, 0)
    controller.end(0)
    controller.set_mac(MAC - 1)
    assert server.program.tables["own"].entries == {(): ("set_mac", [MAC - 1])}


def test_slots_are_fresh_in_every_job(server, controller):
    job = job_of(1, 2)
    for _ in range(3):
        controller.end(0)
        controller.begin(0, job, 5)
        assert controller.read_slots(0, range(3)) == [SlotView(4, 0, 0)] * 3
        for shard in (0, 1):
            send(server, job, PacketType.PARTIAL, shard, 5, slot=1)
        send(server, job, PacketType.ACK, 1, 5, slot=1)
        assert controller.read_slots(0, range(1, 3)) == [SlotView(5, 0b11, 0b10), SlotView(4, 0, 0)]


def test_generations_are_new_in_any_order_of_jobs(server, controller):
    """For all places and numbers, and past the largest generation."""
    rng = random.Random(SEED)
    server.program.tables["jobs"].entries[(200,)] = ("retire", [65530])
    given = [65530]
    for _ in range(40):
        place, number = rng.randrange(2), rng.randrange(4)
        if rng.random() < 0.3:
            controller.end(place)
        elif number not in {job.number for other, job in controller.served().items() if other != place}:
            controller.end(place)
            controller.begin(place, job_of(number, 1), 0)
            (noted,) = (entry for entry in controller.read_entries("jobs") if entry.key["job"] == number)
            given.append(noted.data["generation"])
        assert len(server.program.tables["jobs"].entries) <= 4
    assert 0 not in given
    assert len(set(given)) == len(given) > 12, f"seed {SEED}"


@pytest.mark.parametrize("first", [1, 20_000, 40_000, 65_535])
def test_the_last_generation_is_known_while_a_job_lasts(first):
    """For 32,767 jobs, as hw/switch/README.md says."""
    lasts = entries.serve_entry(0, job_of(1, 1), 0, first)
    generation = first
    for _ in range(32_767):
        generation = entries.generation_after(generation)
        last = entries.retire_entry(2, generation)
        assert _newest([lasts, last]) == _newest([last, lasts]) == generation


def test_jobs_are_served_completely_or_not_at_all(server, controller):
    """Whichever update a call is interrupted after; the next call repairs the tables."""
    old, new = job_of(1, 2, ports=(9,)), job_of(2, 3)
    tables = server.program.tables

    def served_whole():
        """Numbers of the served jobs, which must be complete."""
        found = {key[0]: values for key, (name, values) in tables["jobs"].entries.items() if name == "serve"}
        for number, (place, *_) in found.items():
            job = {1: old, 2: new}[number]
            members = {key[1]: tuple(v[1:]) for key, (_, v) in tables["members"].entries.items() if key[0] == number}
            assert members == {shard: (member.mac, member.port) for shard, member in enumerate(job.members)}
            assert sum(1 << port for port in server.groups[8 + place]) == job.ports
        return sorted(found)

    for most in range(1, 20):
        seen = []

        def cut(seen=seen, most=most):
            seen.append(served_whole())
            if len(seen) == most:
                raise RefusedError(13, "the connection is cut")

        def replace():
            controller.end(0)
            controller.begin(0, new, 0)

        server.on_write = lambda: None
        controller.end(0)
        controller.begin(0, old, 0)
        server.on_write = cut
        try:
            replace()
        except P4sgdError:
            server.on_write = lambda: None
            replace()
            assert controller.served() == {0: new}
            controller.end(0)
            assert controller.served() == {}
        else:
            break
    assert 5 < len(seen) < most
    assert seen[0] == [], "the old job ends first"
    assert seen[-1] == [2]
    assert controller.served() == {0: new}


def test_a_number_is_served_once(controller):
    controller.begin(0, job_of(1, 2), 0)
    with pytest.raises(P4sgdError, match="job 1 is being served"):
        controller.begin(1, job_of(1, 3), 0)
    with pytest.raises(P4sgdError, match="job 1 is being served"):
        controller.begin(0, job_of(1, 3), 0)
    with pytest.raises(P4sgdError, match="no place 2"):
        controller.begin(2, job_of(2, 3), 0)
    assert controller.served() == {0: job_of(1, 2)}


def test_a_place_that_two_programs_found_free_is_given_to_one(server, controller):
    with contextlib.closing(P4RuntimeController(server.address)) as other:
        assert controller.served() == other.served() == {}
        controller.begin(0, job_of(1, 2), 0)
        with pytest.raises(P4sgdError, match="place 0 serves job 1: end that"):
            other.begin(0, job_of(2, 2), 0)
        assert other.served() == {0: job_of(1, 2)}


def test_entries_of_jobs_that_never_began_are_removed(server, controller):
    def cut():
        if any(key[0] == 5 for key in server.program.tables["members"].entries):
            raise RefusedError(13, "the connection is cut")

    controller.begin(1, job_of(2, 3), 0)
    server.on_write = cut
    with pytest.raises(P4sgdError, match="the connection is cut"):
        controller.begin(0, job_of(5, 4), 0)
    server.on_write = lambda: None
    controller.begin(0, job_of(6, 2), 0)
    assert sorted(server.program.tables["members"].entries) == [(2, 0), (2, 1), (2, 2), (6, 0), (6, 1)]


@pytest.fixture
def while_read(monkeypatch, controller):
    """Jobs begin and end while they are read."""
    happens, read = [], controller.read_entries

    def reading(table):
        found = read(table)
        if table == "members" and happens:
            happens.pop(0)()
        return found

    monkeypatch.setattr(controller, "read_entries", reading)
    return happens


def test_jobs_are_read_consistently(server, controller, while_read):
    with contextlib.closing(P4RuntimeController(server.address)) as other:
        other.begin(0, job_of(1, 3), 0)
        while_read += [lambda: other.begin(1, job_of(2, 2), 0), lambda: other.end(0)]
        assert controller.served() == {1: job_of(2, 2)}
        assert not while_read
        while_read += [lambda: other.end(1), lambda: other.begin(1, job_of(2, 2), 0)] * 10
        with pytest.raises(P4sgdError, match="jobs begin and end so often that"):
            controller.served()


def test_a_job_that_lacks_workers(server, controller):
    controller.begin(0, job_of(1, 3), 0)
    del server.program.tables["members"].entries[1, 2]
    with pytest.raises(
        P4sgdError, match=r"serves job 1 without all of its workers .*: load the program .*p4sgd switch deploy"
    ):
        controller.served()


def test_echoes_of_an_earlier_reading_are_ignored(server, controller):
    job = job_of(1, 2)
    controller.begin(0, job, 5)
    assert controller.read_slots(0, range(2)) == [SlotView(4, 0, 0)] * 2
    server.late = server.left[:]
    send(server, job, PacketType.PARTIAL, 1, 5)
    assert controller.read_slots(0, range(2)) == [SlotView(5, 0b10, 0), SlotView(4, 0, 0)]
    assert not server.late


def test_all_slots_are_read_despite_lost_probes(server, controller, monkeypatch):
    monkeypatch.setattr("p4sgd.host.aggregators.p4runtime._PROBE_S", 0.2)
    job = job_of(1, 2)
    controller.begin(1, job, 0)
    for slot in (0, 100, 255):
        send(server, job, PacketType.PARTIAL, 1, 0, slot=slot)
    server.lose = 70
    expected = {slot: SlotView(0, 0b10, 0) for slot in (0, 100, 255)}
    assert controller.read_slots(1, range(256)) == [expected.get(slot, SlotView(65535, 0, 0)) for slot in range(256)]


def test_a_place_without_a_job_has_no_slots(controller):
    with pytest.raises(P4sgdError, match="no job"):
        controller.read_slots(0, range(1))


def test_counters(server, controller):
    job = job_of(3, 2)
    controller.begin(1, job, 1)
    for shard in (0, 0, 1, 1):
        send(server, job, PacketType.PARTIAL, shard, 1)
    for shard in (0, 0, 1, 1):
        send(server, job, PacketType.ACK, shard, 1)
    server.program.receive(packet(PacketType.PARTIAL, job_of(4, 2), 0, 1).to_bytes(), 1)
    server.program.receive(packet(PacketType.PARTIAL, job, 0, 1).to_bytes()[:60], 1)
    expected = {
        "FRAMES": 10,
        "PARTIALS": 2,
        "ACKS": 2,
        "FULLS_TO_ALL": 1,
        "FULLS_TO_ONE": 1,
        "CLEARS_TO_ALL": 1,
        "CLEARS_TO_ONE": 1,
        "DROPPED_DUPLICATE": 2,
        "DROPPED_JOB": 1,
        "DROPPED_RUNT": 1,
        "JOB1_ACCEPTED": 6,
        "JOB1_DROPPED": 2,
    }
    counted = controller.counters()
    assert {name: count for name, count in counted.items() if count} == expected
    assert "DROPPED_ETHERTYPE" not in counted


def test_several_clients_use_a_switch_in_turn(server, controller):
    with contextlib.closing(P4RuntimeController(server.address)) as other:
        controller.begin(0, job_of(1, 2), 0)
        other.begin(1, job_of(2, 2), 0)
        controller.end(0)
        assert other.served() == controller.served() == {1: job_of(2, 2)}


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


def test_other_programs_and_none(program):
    for pipeline, message in ((True, "another program"), (False, "no program")):
        server = P4RuntimeServer(program, has_pipeline=pipeline)
        if pipeline:
            del server.config.p4info.tables[:]
            server.config.p4info.tables.add().preamble.alias = "ipv4_lpm"
        with contextlib.closing(P4RuntimeController(server.address)) as controller:
            with pytest.raises(P4sgdError, match=f"{server.address} runs {message}.*switch deploy"):
                controller.served()
        server.stop()


def test_no_server(server, tmp_path):
    server.stop()
    with contextlib.closing(P4RuntimeController(server.address)) as controller:
        with pytest.raises(P4sgdError, match=f"{server.address} cannot be reached"):
            controller.served()
        with pytest.raises(P4sgdError, match=f"{server.address} cannot be reached"):
            controller.deploy(BuiltProgram(b"", p4info_file(tmp_path, server)))


def test_without_a_cpu_port(program, monkeypatch):
    monkeypatch.setattr("p4sgd.host.aggregators.p4runtime._PROBE_S", 0.02)
    server = P4RuntimeServer(program, has_cpu_port=False)
    with contextlib.closing(P4RuntimeController(server.address)) as controller:
        controller.begin(0, job_of(1, 2), 0)
        with pytest.raises(P4sgdError, match="--cpu-port"):
            controller.read_slots(0, range(2))
    server.stop()


def p4info_file(folder, server):
    path = folder / "p4sgd.p4info.txtpb"
    path.write_text(str(server.info))
    return path


def test_deploying(program, tmp_path):
    server = P4RuntimeServer(program, has_pipeline=False)
    with contextlib.closing(P4RuntimeController(server.address)) as controller:
        controller.deploy(BuiltProgram(b'{"program": 1}', p4info_file(tmp_path, server)))
        assert server.config.p4_device_config == b'{"program": 1}'
        assert server.config.p4info == p4info_of(program)
        assert controller.slots == 256
    server.stop()


def other_frame(destination):
    return destination.to_bytes(6, "big") + MAC.to_bytes(6, "big") + b"\x08\x00" + bytes(46)


def test_forwarding_other_traffic(server, controller):
    """The last setting is in force. Known stations are not written again."""

    def ports_of(destination, port):
        left = server.forward(other_frame(destination), port)
        assert {frame for _, frame in left} <= {other_frame(destination)}
        return [out for out, _ in left]

    assert ports_of(1, 0) == []
    for _ in range(2):
        controller.set_forwarding([0, 2, 40], {1: 40, 2: 2, 3: 2})
        assert [ports_of(1, 0), ports_of(3, 0), ports_of(4, 0), ports_of(4, 40)] == [[40], [2], [2, 40], [0, 2]]
    assert server.writes[-1] == "MODIFY group"
    controller.set_forwarding([0, 2], {2: 0, 3: 2})
    assert [ports_of(1, 0), ports_of(2, 1), ports_of(3, 0), ports_of(4, 0)] == [[2], [0], [2], [2]]
    assert len(server.program.tables["forwarding"].entries) == 2
    assert server.groups == {16: [0, 2]}


@pytest.mark.parametrize("wrong", ["no folder", "manifest", "target", "compiled"])
def test_folders_that_are_no_program(tmp_path, wrong):
    (tmp_path / "p4sgd.json").write_text("{}")
    if wrong != "compiled":
        (tmp_path / "p4sgd.p4info.txtpb").write_text("")
    if wrong != "no folder":
        manifest = {"manifest": "[", "target": '{"target": "tofino"}', "compiled": '{"target": "bmv2"}'}
        (tmp_path / "manifest.json").write_text(manifest[wrong])
    with pytest.raises(UserError, match=str(tmp_path)):
        read_program(tmp_path, "bmv2")


def test_tls(program, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(
        [*command.split(), "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True
    )
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())], certificate.read_bytes(), require_client_auth=True
    )
    server = P4RuntimeServer(program, credentials=credentials)
    with contextlib.closing(P4RuntimeController(server.address, tls=Tls(certificate, certificate, key))) as controller:
        controller.begin(0, job_of(1, 2), 0)
        assert controller.served() == {0: job_of(1, 2)}
    for tls in (None, Tls(certificate)):
        with contextlib.closing(P4RuntimeController(server.address, tls=tls)) as controller:
            with pytest.raises(P4sgdError, match="cannot be reached"):
                controller.served()
    with pytest.raises(UserError, match=r"none\.pem"):
        P4RuntimeController(server.address, tls=Tls(tmp_path / "none.pem"))
    server.stop()
