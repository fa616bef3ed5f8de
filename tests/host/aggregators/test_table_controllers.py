"""The controllers of P4 switches: BMv2 on a P4Runtime server, Tofino on a stand-in for the SDE's client.

Both have the interpreted program behind them.
"""

import contextlib
import random
from dataclasses import replace

import pytest
from support.table_switches import GROUP_MAC, MAC, SLOTS, Bmv2, Tofino, job_of, made, packet, send

from p4sgd.host.aggregators import tables
from p4sgd.host.aggregators.bfruntime import BfRuntimeController
from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster
from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.aggregators.opening import open_controller
from p4sgd.host.aggregators.tables import _newest, read_program
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.aggregator import group_of
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import Packet, PacketType

SEED = 3


@pytest.fixture(params=[Bmv2, Tofino])
def switch(request, tmp_path):
    with made(request.param, tmp_path) as found:
        yield found


def opened(switch):
    return contextlib.closing(open_controller(Cluster(AggregatorAddress(switch.kind, switch.address), ())))


@pytest.fixture
def controller(switch):
    with opened(switch) as found:
        found.set_mac(MAC)
        yield found


def test_serving_jobs(switch, controller):
    assert (controller.slots, controller.jobs, controller.most, controller.served()) == (SLOTS, 2, 0, {})
    jobs = {0: job_of(7, 3), 1: job_of(8, 31, ports=(4,))}
    for place, job in jobs.items():
        controller.begin(place, job, 65535)
    assert controller.served() == jobs
    assert [send(switch, jobs[0], PacketType.PARTIAL, shard, 65535, value=shard + 1) for shard in (0, 1)] == [None] * 2
    left, group = send(switch, jobs[0], PacketType.PARTIAL, 2, 65535, value=4)
    full = Packet.from_bytes(left)
    assert (full.type, full.values, full.destination, full.source) == (PacketType.FULL, (7,) * 8, GROUP_MAC, MAC)
    assert switch.ports_of(group) == [1, 2, 3]
    controller.end(0)
    controller.end(0)
    assert controller.served() == {1: jobs[1]}
    assert send(switch, jobs[0], PacketType.PARTIAL, 0, 65535) is None
    with opened(switch) as other:
        other.begin(0, job_of(1, 2), 0)
        assert other.served() == controller.served() == {0: job_of(1, 2), 1: jobs[1]}
        with pytest.raises(P4sgdError, match="place 0 serves job 1: end that"):
            controller.begin(0, job_of(2, 2), 0)


def test_a_job_with_a_parent(switch, controller):
    """On BMv2: the sums go up as those of a worker, and what comes back goes to all below."""
    job = replace(job_of(7, 2), parent=Parent(MAC + 1, 9, 1, 3))
    if not controller.parents:
        with pytest.raises(P4sgdError, match="job 7 cannot begin: it has a parent, which no Tofino can have"):
            controller.begin(0, job, 1)
        return
    controller.begin(0, job, 1)
    assert controller.served() == {0: job}
    assert send(switch, job, PacketType.PARTIAL, 0, 1, value=3) is None
    left, port = send(switch, job, PacketType.PARTIAL, 1, 1, value=4)
    asked = Packet.from_bytes(left)
    assert (asked.type, asked.values, asked.shard, asked.workers, asked.bitmap) == (
        PacketType.PARTIAL,
        (7,) * 8,
        1,
        3,
        2,
    )
    assert (asked.destination, asked.source, port) == (MAC + 1, MAC, 9)
    answer = replace(asked, type=PacketType.FULL, values=(99,) * 8, bitmap=0b111, destination=MAC, source=MAC + 1)
    left, group = switch.program.receive(answer.to_bytes(), 9)
    full = Packet.from_bytes(left)
    assert (full.type, full.values, full.shard, full.workers, full.bitmap) == (PacketType.FULL, (99,) * 8, 0, 2, 0b11)
    assert (full.destination, switch.ports_of(group)) == (GROUP_MAC, [1, 2])
    assert controller.counters()["PARTIALS_TO_PARENT"] == 1
    controller.end(0)
    assert switch.program.tables["parents"].entries == {}


def test_a_number_is_served_once(controller):
    controller.begin(0, job_of(1, 2), 0)
    for place, number, says in ((1, 1, "job 1 is being served"), (0, 1, "job 1 is being"), (2, 2, "no place 2")):
        with pytest.raises(P4sgdError, match=says):
            controller.begin(place, job_of(number, 3), 0)
    assert controller.served() == {0: job_of(1, 2)}


def test_the_address_stays_while_jobs_are_served(switch, controller):
    """Workers of these jobs would not be heard any more."""
    controller.begin(0, job_of(1, 2), 0)
    controller.set_mac(MAC)
    with pytest.raises(P4sgdError, match=r"02:50:34:53:47:ff.*02:50:34:53:47:fe"):
        controller.set_mac(MAC - 1)
    assert send(switch, job_of(1, 2), PacketType.PROBE, 0, 0)
    controller.end(0)
    controller.set_mac(MAC - 1)
    assert switch.program.tables["own"].entries == {(): ("set_mac", [MAC - 1])}


def test_slots_are_fresh_in_every_job(switch, controller):
    job = job_of(1, 2)
    for _ in range(3):
        controller.end(1)
        controller.begin(1, job, 5)
        assert controller.read_slots(1, range(3)) == [SlotView(4, 0, 0)] * 3
        for shard in (0, 1):
            send(switch, job, PacketType.PARTIAL, shard, 5, slot=200)
        send(switch, job, PacketType.ACK, 1, 5, slot=200)
        views = controller.read_slots(1, range(SLOTS))
        assert views.pop(200) == SlotView(5, 0b11, 0b10)
        assert views == [SlotView(4, 0, 0)] * (SLOTS - 1)
    with pytest.raises(P4sgdError, match="no job"):
        controller.read_slots(0, range(1))


def test_generations_are_new_in_any_order_of_jobs(switch, controller):
    """For all places and numbers, and past the largest generation."""
    rng, noted = random.Random(SEED), switch.program.tables["jobs"].entries
    noted[(200,)] = ("retire", [65530])
    given = [65530]
    for _ in range(40):
        place, number = rng.randrange(2), rng.randrange(4)
        if rng.random() < 0.3:
            controller.end(place)
        elif number not in {job.number for other, job in controller.served().items() if other != place}:
            controller.end(place)
            controller.begin(place, job_of(number, 1), 0)
            (entry,) = (entry for entry in controller.read_entries("jobs") if entry.key["job"] == number)
            given.append(entry.data["generation"])
        assert len(noted) <= 4
    assert 0 not in given
    assert len(set(given)) == len(given) > 12, f"seed {SEED}"


@pytest.mark.parametrize("first", [1, 20_000, 40_000, 65_535])
def test_the_last_generation_is_known_while_a_job_lasts(first):
    """For 32,767 jobs, as hw/switch/README.md says."""
    lasts = tables.serve_entry(0, job_of(1, 1), 0, first)
    generation = first
    for _ in range(32_767):
        generation = tables.generation_after(generation)
        last = tables.retire_entry(2, generation)
        assert _newest([lasts, last]) == _newest([last, lasts]) == generation


def test_jobs_are_served_completely_or_not_at_all(switch, controller):
    """Whichever update a call is interrupted after; the next call repairs the tables."""
    old, new = job_of(1, 2, ports=(9,)), job_of(2, 3)
    if controller.parents:
        new = replace(new, parent=Parent(MAC + 1, 7, 1, 2))
    known = switch.program.tables

    def served_whole():
        """Numbers of the served jobs, which must be complete."""
        found = {key[0]: values for key, (name, values) in known["jobs"].entries.items() if name == "serve"}
        for number, (place, *_) in found.items():
            job = {1: old, 2: new}[number]
            members = {key[1]: tuple(v[1:]) for key, (_, v) in known["members"].entries.items() if key[0] == number}
            assert members == {shard: (member.mac, member.port) for shard, member in enumerate(job.members)}
            assert sum(1 << port for port in switch.ports_of(group_of(place))) == job.ports
            assert ((number,) in known["parents"].entries if controller.parents else False) == bool(job.parent)
        return sorted(found)

    for most in range(1, 30):
        seen = []

        def cut(seen=seen, most=most):
            seen.append(served_whole())
            if len(seen) == most:
                switch.cut()

        def begin_the_other():
            controller.end(0)
            controller.begin(0, new, 0)

        switch.on_write(lambda: None)
        controller.end(0)
        controller.begin(0, old, 0)
        switch.on_write(cut)
        try:
            begin_the_other()
        except P4sgdError:
            switch.on_write(lambda: None)
            begin_the_other()
            assert controller.served() == {0: new}
            controller.end(0)
            assert controller.served() == {}
        else:
            break
    assert 5 < len(seen) < most
    assert [] in seen[:2], "the old job ends first"
    assert controller.served() == {0: new}


def test_entries_of_jobs_that_never_began_are_removed(switch, controller):
    members = switch.program.tables["members"].entries
    controller.begin(1, job_of(2, 3), 0)
    switch.on_write(lambda: switch.cut() if any(key[0] == 5 for key in members) else None)
    with pytest.raises(P4sgdError, match="the connection is cut"):
        controller.begin(0, job_of(5, 4), 0)
    switch.on_write(lambda: None)
    controller.begin(0, job_of(6, 2), 0)
    assert sorted(members) == [(2, 0), (2, 1), (2, 2), (6, 0), (6, 1)]


def test_jobs_are_read_consistently(switch, controller, monkeypatch):
    """Though they begin and end while they are read."""
    happens, read = [], controller.read_entries

    def reading(table):
        found = read(table)
        if table == "members" and happens:
            happens.pop(0)()
        return found

    monkeypatch.setattr(controller, "read_entries", reading)
    with opened(switch) as other:
        other.begin(0, job_of(1, 3), 0)
        happens += [lambda: other.begin(1, job_of(2, 2), 0), lambda: other.end(0)]
        assert controller.served() == {1: job_of(2, 2)}
        assert not happens
        happens += [lambda: other.end(1), lambda: other.begin(1, job_of(2, 2), 0)] * 10
        with pytest.raises(P4sgdError, match="jobs begin and end so often that"):
            controller.served()


def test_a_job_that_lacks_workers(switch, controller):
    controller.begin(0, job_of(1, 3), 0)
    del switch.program.tables["members"].entries[1, 2]
    with pytest.raises(P4sgdError, match=r"job 1 without all of its workers .*: load the program .*p4sgd switch dep"):
        controller.served()


def test_counters(switch, controller):
    job = job_of(3, 2)
    controller.begin(1, job, 1)
    for kind in (PacketType.PARTIAL, PacketType.ACK):
        for shard in (0, 0, 1, 1):
            send(switch, job, kind, shard, 1)
    send(switch, job_of(4, 2), PacketType.PARTIAL, 0, 1)
    expected = {"FRAMES": 9, "PARTIALS": 2, "ACKS": 2, "FULLS_TO_ALL": 1, "FULLS_TO_ONE": 1}
    expected |= {"CLEARS_TO_ALL": 1, "CLEARS_TO_ONE": 1, "DROPPED_DUPLICATE": 2, "DROPPED_JOB": 1}
    if switch.kind == "bmv2":
        switch.program.receive(packet(job, PacketType.PARTIAL, 0, 1).to_bytes()[:60], 1)
        expected |= {"FRAMES": 10, "DROPPED_RUNT": 1, "JOB1_ACCEPTED": 6, "JOB1_DROPPED": 2}
    counted = controller.counters()
    assert {name: count for name, count in counted.items() if count} == expected
    assert not switch.lacking & counted.keys()


def test_forwarding_other_traffic(switch, controller):
    """To a station by its port, else to all ports but their own; the last setting is in force."""

    def ports_of(destination, port):
        frame = destination.to_bytes(6, "big") + MAC.to_bytes(6, "big") + b"\x08\x00" + bytes(46)
        left = switch.forward(frame, port)
        assert {sent for _, sent in left} <= {frame}
        return [out for out, _ in left]

    for _ in range(2):
        controller.set_forwarding([0, 2, 40], {1: 40, 2: 2, 3: 2})
        assert [ports_of(1, 0), ports_of(3, 0), ports_of(4, 0), ports_of(4, 40)] == [[40], [2], [2, 40], [0, 2]]
    if switch.kind == "bmv2":
        assert switch.server.writes[-1] == "MODIFY group", "known stations are not written again"
    controller.set_forwarding([0, 4], {2: 0, 3: 2})
    assert [ports_of(1, 0), ports_of(2, 1), ports_of(3, 0), ports_of(4, 4)] == [[4], [0], [2], [0]]
    assert len(switch.program.tables["forwarding"].entries) == 2


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


def test_tofino_alone(tmp_path, monkeypatch):
    """Answers to all reach every port, also that of the last packet, and wherever other frames are flooded."""
    with pytest.raises(UserError, match=r"bfrt_grpc.*SDE"):
        BfRuntimeController("localhost:50052")
    with made(Tofino, tmp_path) as switch, opened(switch) as controller:
        controller.set_mac(MAC)
        controller.set_forwarding(range(4), {})
        job = Job(1, (Member(1, 3), Member(2, 0)), GROUP_MAC, 0b1001)
        controller.begin(0, job, 0)
        assert send(switch, job, PacketType.PARTIAL, 0, 0) is None
        last = packet(job, PacketType.PARTIAL, 1, 0)
        assert [port for port, _ in switch.forward(last.to_bytes(), 0)] == [0, 3]
        with pytest.raises(P4sgdError, match="localhost:50052 refuses: Object not found"):
            controller.delete_group(99)
        monkeypatch.setattr("p4sgd.host.aggregators.bfruntime.P4_NAME", "ipv4")
        with pytest.raises(P4sgdError, match="does not run ipv4"):
            BfRuntimeController("localhost:50052")
