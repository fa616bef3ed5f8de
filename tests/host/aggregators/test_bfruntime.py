"""The controller of a Tofino, on a stand-in for the SDE's client with the interpreted program."""

import contextlib
import sys
import types
from pathlib import Path

import pytest
from support.bfrt import BfruntimeRpcException, Switch
from support.p4 import Program
from support.p4_switch import with_sizes

from p4sgd.host.aggregators.bfruntime import BfRuntimeController, open_bfruntime
from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster, Tls
from p4sgd.host.aggregators.controller import SlotView, open_controller
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import Packet, PacketType

CONFIG = AggregatorConfig(slots=512, jobs=2)
MAC = 0x0250_3453_47FF


def job_of(number, workers):
    members = tuple(Member(0x0200_0000_0000 | number << 8 | shard, shard + 1) for shard in range(workers))
    return Job(number, members, 0x0100_5034_5347, (1 << workers + 1) - 2)


@pytest.fixture
def switch(tmp_path, monkeypatch):
    made = Switch(Program(with_sizes(tmp_path / "sources", CONFIG) / "p4sgd_tna.p4"))
    monkeypatch.setitem(sys.modules, "bfrt_grpc", types.ModuleType("bfrt_grpc"))
    monkeypatch.setitem(sys.modules, "bfrt_grpc.client", made.module())
    return made


@pytest.fixture
def controller(switch):
    with contextlib.closing(BfRuntimeController("localhost:50052")) as opened:
        opened.set_mac(MAC)
        yield opened


def packet_of(job, kind, shard, round_, slot=0):
    return Packet(
        type=kind,
        job=job.number,
        slot=slot,
        round=round_,
        shard=shard,
        workers=len(job.members),
        bitmap=1 << shard,
        values=(shard + 1,) * 8,
        destination=MAC,
        source=job.members[shard].mac,
    )


def send(switch, job, kind, shard, round_, slot=0):
    packet = packet_of(job, kind, shard, round_, slot)
    return switch.program.receive(packet.to_bytes(), job.members[shard].port)


def test_opening_by_a_cluster_file(switch):
    cluster = Cluster(AggregatorAddress("tofino", "localhost:50052"), ())
    with contextlib.closing(open_controller(cluster)) as opened:
        assert isinstance(opened, BfRuntimeController)
        assert opened.slots == 512


def test_serving_jobs(switch, controller):
    assert controller.served() == {}
    assert (controller.slots, controller.jobs) == (512, 2)
    jobs = {0: job_of(7, 3), 1: job_of(8, 31)}
    for place, job in jobs.items():
        controller.begin(place, job, 65535)
    assert controller.served() == jobs
    assert [send(switch, jobs[0], PacketType.PARTIAL, shard, 65535) for shard in (0, 1)] == [None, None]
    left, group = send(switch, jobs[0], PacketType.PARTIAL, 2, 65535)
    assert Packet.from_bytes(left).values == (6,) * 8
    assert switch.ports_of(group) == [1, 2, 3]
    controller.end(0)
    controller.end(0)
    assert controller.served() == {1: jobs[1]}
    assert {*switch.nodes.known} == {*switch.groups.known} == {(9,)}


def test_the_address_stays_while_jobs_are_served(switch, controller):
    """Workers of these jobs would not be heard any more."""
    controller.begin(0, job_of(1, 2), 0)
    controller.set_mac(MAC)
    with pytest.raises(P4sgdError, match=r"02:50:34:53:47:ff.*02:50:34:53:47:fe"):
        controller.set_mac(MAC - 1)
    controller.end(0)
    controller.set_mac(MAC - 1)
    assert switch.program.tables["own"].entries == {(): ("set_mac", [MAC - 1])}


def test_slots_are_read_from_registers(switch, controller):
    job = job_of(1, 2)
    for _ in range(3):
        controller.end(1)
        controller.begin(1, job, 5)
        assert controller.read_slots(1, range(3)) == [SlotView(4, 0, 0)] * 3
        for shard in (0, 1):
            send(switch, job, PacketType.PARTIAL, shard, 5, slot=300)
        send(switch, job, PacketType.ACK, 1, 5, slot=300)
        views = controller.read_slots(1, range(512))
        assert views[300] == SlotView(5, 0b11, 0b10)
        assert views[:300] + views[301:] == [SlotView(4, 0, 0)] * 511
    with pytest.raises(P4sgdError, match="no job"):
        controller.read_slots(0, range(1))


def test_counters(switch, controller):
    job = job_of(3, 2)
    controller.begin(0, job, 1)
    for shard in (0, 0, 1, 1):
        send(switch, job, PacketType.PARTIAL, shard, 1)
    send(switch, job_of(4, 2), PacketType.PARTIAL, 0, 1)
    counted = controller.counters()
    assert {name: count for name, count in counted.items() if count} == {
        "FRAMES": 5,
        "PARTIALS": 2,
        "FULLS_TO_ALL": 1,
        "FULLS_TO_ONE": 1,
        "DROPPED_DUPLICATE": 1,
        "DROPPED_JOB": 1,
    }
    assert not {"DROPPED_RUNT", "DROPPED_LONG", "DROPPED_ETHERTYPE"} & set(counted)


def test_an_interrupted_call_is_repaired_by_the_next(switch, controller):
    """Whichever write fails, the job is not served, and the next call serves it completely."""
    old, new = job_of(1, 2), job_of(2, 3)
    for most in range(1, 30):
        controller.begin(0, old, 0)
        writes = []

        def cut(what, writes=writes, most=most):
            writes.append(what)
            if len(writes) == most:
                raise BfruntimeRpcException(14, "the connection is cut")

        def replace():
            controller.end(0)
            controller.begin(0, new, 0)

        switch.on_write = cut
        try:
            replace()
        except P4sgdError:
            switch.on_write = lambda what: None
            assert controller.served() == ({0: old} if most == 1 else {} if "del jobs" not in writes else {0: new})
            replace()
            assert controller.served() == {0: new}
        else:
            break
        controller.end(0)
    assert 5 < len(writes) < most
    assert writes[0] == "mod jobs"


def test_forwarding_other_traffic(switch, controller):
    """Frames to a station go to its port, others to all ports of the group except their own."""

    def ports_of(destination, port):
        frame = destination.to_bytes(6, "big") + bytes(6) + b"\x08\x00" + bytes(46)
        left = switch.forward(frame, port)
        assert {sent for _, sent in left} <= {frame}
        return [out for out, _ in left]

    for _ in range(2):
        controller.set_forwarding([0, 2, 40], {1: 40, 2: 2, 3: 2})
        assert [ports_of(1, 0), ports_of(3, 0), ports_of(4, 0), ports_of(4, 40)] == [[40], [2], [2, 40], [0, 2]]
    controller.set_forwarding([0, 4], {2: 0, 3: 2})
    assert [ports_of(1, 0), ports_of(2, 1), ports_of(3, 0), ports_of(4, 4)] == [[4], [0], [2], [0]]
    assert len(switch.program.tables["forwarding"].entries) == 2


def test_answers_to_all_reach_every_port(switch, controller):
    """Also the port of the last packet, and regardless of where other frames are flooded."""
    controller.set_forwarding(range(4), {})
    job = Job(1, (Member(1, 3), Member(2, 0)), 0x0100_5034_5347, 0b1001)
    controller.begin(0, job, 0)
    assert send(switch, job, PacketType.PARTIAL, 0, 0) is None
    last = packet_of(job, PacketType.PARTIAL, 1, 0)
    assert [port for port, _ in switch.forward(last.to_bytes(), 0)] == [0, 3]


def test_a_switch_that_refuses(switch, controller):
    with pytest.raises(P4sgdError, match="localhost:50052 refuses: Object not found"):
        controller.delete_group(8)


def test_without_the_sde():
    with pytest.raises(UserError, match=r"bfrt_grpc.*SDE"):
        BfRuntimeController("localhost:50052")


def test_another_program(switch, monkeypatch):
    monkeypatch.setattr("p4sgd.host.aggregators.bfruntime.P4_NAME", "ipv4")
    with pytest.raises(P4sgdError, match="does not run ipv4"):
        BfRuntimeController("localhost:50052")


def test_tls_is_refused():
    with pytest.raises(UserError, match="tls"):
        open_bfruntime(AggregatorAddress("tofino", "localhost:50052", tls=Tls(Path("ca.pem"))))
