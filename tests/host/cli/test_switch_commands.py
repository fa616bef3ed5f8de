"""`p4sgd switch status`, `counters` and `clear`, at an aggregator for UDP; mistakes of `serve`."""

import contextlib
import importlib
import json
import re
import time
from ipaddress import IPv4Address
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support.loopback import loopback
from support.switch import serving

from p4sgd.host.aggregators.controller import read_active_slots
from p4sgd.host.aggregators.software import SoftwareAggregator
from p4sgd.host.cli.app import main
from p4sgd.host.errors import P4sgdError
from p4sgd.host.links import open_link
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.hw.spec.udp import address_of

WORKERS = 3
GROUP = address_of(IPv4Address("239.9.9.9"))


class Lab:
    """The aggregator and its workers."""

    switch = property(lambda self: address_of(loopback(100)))
    macs = property(lambda self: [address_of(loopback(101 + shard)) for shard in range(WORKERS)])

    def __init__(self, control, links, folder):
        self.control = control
        self.file = folder / "cluster.toml"
        self._links = links
        self._frames = control.counters()["FRAMES"]
        text = f'[aggregator]\nkind = "socket"\ncontrol = "unix:{folder}/aggregator"\nudp = "{loopback(100)}"\n'
        self.file.write_text(
            text
            + "".join(
                f'[[workers]]\ncontrol = "unix:/lab/w{shard}"\nport = 0\nudp = "{loopback(101 + shard)}"\n'
                for shard in range(WORKERS)
            )
        )

    def begin(self, place=0, number=1, first_round=1):
        members = tuple(Member(mac, 0) for mac in self.macs)
        self.control.begin(place, Job(number, members, GROUP, 1), first_round)

    def send(self, kind, slot, round_, *shards, number=1):
        """A packet of each shard, which the aggregator then has."""
        for shard in shards:
            packet = Packet(
                kind, number, slot, round_, shard, WORKERS, 1 << shard, (1,) * 8, self.switch, self.macs[shard]
            )
            self._links[shard].send(packet.to_bytes())
            self._frames += 1
        end = time.monotonic() + 10
        while self.control.counters()["FRAMES"] < self._frames:
            assert time.monotonic() < end
            time.sleep(0.01)

    def run(self, *words, status=0):
        done = CliRunner().invoke(main, ["switch", *map(str, words), "--cluster", str(self.file)])
        assert done.exit_code == status, done.output
        return done


def rows(said):
    """The rows of a table."""
    return [line.split() for line in said.splitlines() if line.strip()[:1].isdigit()]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    with contextlib.ExitStack() as stack:
        _, control = stack.enter_context(
            serving(None, folder, [f"udp:{loopback(100)}"], "--slots", "16", "--jobs", "4")
        )
        links = [stack.enter_context(contextlib.closing(open_link(f"udp:{loopback(101 + n)}"))) for n in range(WORKERS)]
        yield control, links, folder


@pytest.fixture
def lab(served):
    control = served[0]
    for place in range(control.jobs):
        control.end(place)
    control.set_mac(address_of(loopback(100)))
    return Lab(*served)


@pytest.fixture
def between(monkeypatch):
    """What happens between the two looks of status."""
    found = SimpleNamespace(do=lambda: None, seconds=[])

    def sleep(seconds):
        found.seconds.append(seconds)
        found.do()

    module = importlib.import_module("p4sgd.host.cli.switch")
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    return found


def test_a_hung_job(lab, between):
    lab.begin(2, first_round=7)
    lab.send(PacketType.PARTIAL, 5, 7, 0, 2)
    said = lab.run("status", "--interval", "2.5").stdout
    assert between.seconds == [2.5]
    assert rows(said) == [["2", "1", "3", "1", "1", "0"]]
    assert re.search("^no packets of job 1 were accepted in 2.5 s: .* p4sgd switch clear --job 1 ", said, re.MULTILINE)
    assert re.search(rf"job 1, slot 5, round 7: .*partials .*shard 1 \(unix:/lab/w1, {loopback(102)}\)\n", said)
    document = json.loads(lab.run("status", "--json").stdout)
    assert (document["slots"], document["places"]) == (16, 4)
    (job,) = document["jobs"]
    assert job["stuck"] == [{"slot": 5, "round": 7, "partials_missing": [1], "acknowledgements_missing": []}]
    assert job["missing"] == [{"shard": 1, "control": "unix:/lab/w1", "address": str(loopback(102)), "port": 0}]
    assert (job["place"], job["job"], job["workers"], job["under_way"]) == (2, 1, 3, 1)


def waiting(said):
    """What the lines about slots say, without addresses."""
    lines = [line for line in said.splitlines() if line.startswith("job ")]
    return [re.sub(r" \([^)]*\)", "", line) for line in lines]


def test_what_slots_wait_for(lab, between):
    """Neighbours that wait for the same are told together; slots that are done or move are not named."""
    lab.begin()
    for slot, shards, acknowledged in ((0, (0, 1, 2), (0, 1, 2)), (3, (0, 1, 2), (1,)), (4, (0,), ()), (9, (1,), ())):
        lab.send(PacketType.PARTIAL, slot, 1, *shards)
        lab.send(PacketType.ACK, slot, 1, *acknowledged)
    for slot in range(5, 8):
        lab.send(PacketType.PARTIAL, slot, 1, 0)
    between.do = lambda: lab.send(PacketType.PARTIAL, 9, 1, 2)
    said = lab.run("status").stdout
    assert rows(said) == [["0", "1", "3", "6", "5", "1"]]
    assert "no packets" not in said
    assert waiting(said) == [
        "job 1, slot 3, round 1: the sums are not acknowledged by shard 0, shard 2",
        "job 1, slots 4 to 7, round 1: no partials have arrived from shard 1, shard 2",
    ]
    assert f"shard 0 (unix:/lab/w0, {loopback(101)}), shard 2 (unix:/lab/w2, {loopback(103)})\n" in said


def test_a_job_of_another_cluster_file_whose_packets_are_not_counted(lab, between, monkeypatch):
    """Which workers those are is not known then, but where they are; those of other files may be as many."""
    members = tuple(Member(mac ^ (shard % 2) << 7, 0) for shard, mac in enumerate(lab.macs))
    lab.control.begin(0, Job(9, members, GROUP, 1), 1)
    packet = Packet(PacketType.PARTIAL, 9, 0, 1, 0, WORKERS, 1, (1,) * 8, lab.switch, lab.macs[0])
    lab._links[0].send(packet.to_bytes())
    lab.send(PacketType.PARTIAL, 0, 1, 0, number=8)  # of no job: only to wait for the other
    monkeypatch.setattr(SoftwareAggregator, "counters", lambda controller: {"FRAMES": 7})
    said = lab.run("status").stdout
    assert rows(said) == [["0", "9", "3", "1", "1"]]
    assert "no packets" not in said
    assert re.search(r"job 9, slot 0, round 1: .*partials .* shard 1 \(127[.\d]+\), shard 2 \(unix:/lab/w2, ", said)


def test_a_job_that_follows_another_in_its_place(lab, between):
    """The same slots of it are under way, but have not been for long."""

    def begin(number):
        lab.control.end(0)
        lab.begin(number=number)
        lab.send(PacketType.PARTIAL, 5, 1, 0, number=number)

    begin(1)
    between.do = lambda: begin(2)
    (job,) = json.loads(lab.run("status", "--json").stdout)["jobs"]
    assert (job["job"], job["under_way"], job["stuck"]) == (2, 1, [])


@pytest.mark.parametrize("is_refused", [False, True], ids=["another follows", "none follows"])
def test_a_job_that_ends_while_it_is_looked_at(lab, between, monkeypatch, is_refused):
    """As a switch that is probed refuses to show slots of no job."""
    read_slots = SoftwareAggregator.read_slots

    def looking(controller, place, slots):
        if place == 0:
            lab.control.end(0)
            if is_refused:
                raise P4sgdError("no job is served in place 0")
            lab.begin(0, number=3)
            lab.send(PacketType.PARTIAL, 7, 1, 0, number=3)
        return read_slots(controller, place, slots)

    monkeypatch.setattr(SoftwareAggregator, "read_slots", looking)
    lab.begin(0, number=1)
    lab.begin(1, number=2)
    lab.send(PacketType.PARTIAL, 5, 1, 0, number=2)
    assert [job.number for _, job in read_active_slots(lab.control)] == [2]


def test_no_job_and_an_aggregator_whose_slots_cannot_be_read(lab, between, monkeypatch):
    assert lab.run("status").stdout == "no job is served\n"
    assert json.loads(lab.run("status", "--json").stdout)["jobs"] == []

    def refuse(controller, place, slots):
        raise P4sgdError("start it with --cpu-port")

    lab.begin()
    monkeypatch.setattr(SoftwareAggregator, "read_slots", refuse)
    assert "start it with --cpu-port" in lab.run("status", status=1).stderr


def test_counters(lab):
    lab.begin()
    before = json.loads(lab.run("counters", "--json").stdout)["counters"]
    lab.send(PacketType.PARTIAL, 2, 1, 0, 1)
    after = json.loads(lab.run("counters", "--json").stdout)["counters"]
    changed = {name: count - before[name] for name, count in after.items() if count != before[name]}
    assert changed == {"FRAMES": 2, "PARTIALS": 2, "JOB0_ACCEPTED": 2}
    assert after["DROPPED_LONG"] == 0
    said = lab.run("counters").stdout
    assert "PARTIAL that were added" in said
    assert "DROPPED_LONG" not in said


def test_clear_ends_a_job(lab):
    """What its workers send again is dropped: of a job that hangs in its first round too."""
    lab.begin(3, number=12, first_round=5)
    lab.send(PacketType.PARTIAL, 2, 5, 0, 1, number=12)
    assert re.match("job 12 in place 3 has ended; .*run .*lost$", lab.run("clear").stdout)
    dropped = lab.control.counters()["DROPPED_JOB"]
    lab.send(PacketType.PARTIAL, 2, 5, 0, 1, number=12)
    assert lab.control.counters()["DROPPED_JOB"] == dropped + 2
    assert lab.control.served() == {}
    for number in (1, 2):
        lab.begin(number - 1, number=number)
    assert re.search("choose .* --job; .*served: 1, 2$", lab.run("clear", status=2).stderr.strip())
    assert re.search("--job 3: .*not served; .*: 1, 2$", lab.run("clear", "--job", "3", status=2).stderr.strip())
    assert json.loads(lab.run("clear", "--job", "2", "--json").stdout) == {"place": 1, "job": 2}
    assert list(lab.control.served()) == [0]
