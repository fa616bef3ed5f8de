"""What controllers may ask a software aggregator for."""

import socket
import time
from dataclasses import replace
from ipaddress import IPv4Address

import msgspec
import pytest
from support.batch import answers_of
from support.switch import MAC, from_worker, job_of, running

from p4sgd.host.aggregators.cluster_file import UdpAddress
from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.aggregators.software import SoftwareAggregator
from p4sgd.host.errors import P4sgdError
from p4sgd.host.rpc.address import ControlAddress
from p4sgd.host.rpc.message import RefusedError
from p4sgd.host.serve import aggregator as serving
from p4sgd.host.serve.aggregator import Requests, SoftwareAggregatorServer
from p4sgd.hw.spec.packet import MOST_BYTES, PacketType
from p4sgd.hw.spec.udp import address_of
from p4sgd.sim.network.batch import BatchAggregator

SLOTS, PLACES = 6, 3


class Port:
    """A link that nothing comes from."""

    lost = 2
    most_bytes = MOST_BYTES

    def __init__(self, foreign=(), address=None):
        self._ends = socket.socketpair()
        self._foreign = foreign
        self.address = address

    def reaches(self, address):
        return address not in self._foreign

    def fileno(self):
        return self._ends[0].fileno()

    def receive_batch(self, batch):
        return 0


def requests_of(model, foreign=()):
    """Of an aggregator with two ports, of which the second does not reach some addresses."""
    return Requests(model, {"a": Port(), "b": Port(foreign)}, slots=SLOTS, places=PLACES)


def test_a_stand_in_becomes_the_worker():
    """Of all of the shard's packets only its own count from then on."""
    model, job = BatchAggregator(SLOTS, jobs=PLACES, mac=MAC), job_of(2)
    methods, (other, own) = requests_of(model).methods, job.members
    model.begin(1, replace(job, members=(other, replace(own, stand_in=other))), 10)

    def answered(kind, shard, port):
        frame = replace(from_worker(kind, 4, 10, shard, 2), source=job.members[port].mac)
        return len(answers_of(model, [frame.to_bytes()], port))

    assert answered(PacketType.PARTIAL, 0, 0) == 0
    assert answered(PacketType.PARTIAL, 1, 0) == 1
    assert answered(PacketType.ACK, 0, 0) == answered(PacketType.ACK, 1, 0) == 0
    methods.call({"do": "promote", "place": 1, "shard": 1})
    assert model.jobs[1].members == (other, other)
    assert answered(PacketType.ACK, 1, 1) == 0
    assert answered(PacketType.ACK, 1, 0) == 1
    for place, shard in ((1, 1), (1, 2), (1, -1), (0, 0), (PLACES, 0)):
        with pytest.raises(RefusedError, match=f"place {place} has no job|place must be 0"):
            methods.call({"do": "promote", "place": place, "shard": shard})


def test_what_a_controller_can_do(tmp_path):
    address = ControlAddress(path=tmp_path / "control")
    server = SoftwareAggregatorServer({"a": Port(), "b": Port()}, address, slots=SLOTS, jobs=PLACES)
    with running(server):
        client, model = SoftwareAggregator(address), server.aggregator
        assert (client.slots, client.jobs) == (SLOTS, PLACES)
        assert client.served() == {}
        client.set_mac(UdpAddress(0x0250_0000_0001))
        assert model.mac == 0x0250_0000_0001
        assert client.read_slots(1, range(2, 4)) == [SlotView(0, 0, 0)] * 2
        first, second = replace(job_of(2), group_mac=UdpAddress(job_of(2).group_mac)), job_of(1, number=7, ports=[1])
        client.begin(1, first, 10)
        client.begin(0, second, 0)
        assert client.served() == {0: second, 1: first}
        assert client.read_slots(1, range(SLOTS)) == [SlotView(9, 0, 0)] * SLOTS
        assert client.read_slots(0, range(1)) == [SlotView(65535, 0, 0)]
        for kind, shard in ((PacketType.PARTIAL, 0), (PacketType.PARTIAL, 1), (PacketType.ACK, 0)):
            answers_of(model, [from_worker(kind, 4, 10, shard, 2).to_bytes()], shard)
        assert client.read_slots(1, range(3, 6)) == [SlotView(9, 0, 0), SlotView(10, 3, 1), SlotView(9, 0, 0)]
        client.end(1)
        client.end(1)
        client.begin(1, first, 20)
        assert client.read_slots(1, range(4, 5)) == [SlotView(19, 0, 0)]
        client.end(1)
        assert client.served() == {0: second}
        assert client.counters() == model.counters() | {"OVERRUNS": 4}
        with pytest.raises(P4sgdError, match="refuses: place 0 serves job 7: end that"):
            client.begin(0, first, 1)
        client.close()
    server.stop()  # as by a second SIGTERM, whose handler may come at any time


def test_a_job_is_ended_when_its_program_has_been_gone_for_long(tmp_path, monkeypatch):
    """Not that of a program which connects again, or is there: it may do nothing for hours."""
    monkeypatch.setattr(serving, "LEASE_S", 0.5)
    monkeypatch.setattr(serving, "_POLL_S", 0.02)
    address, said = ControlAddress(path=tmp_path / "control"), []
    server = SoftwareAggregatorServer({"a": Port(), "b": Port()}, address, slots=SLOTS, jobs=PLACES, tell=said.append)
    with running(server):
        gone, back, other = (SoftwareAggregator(address) for _ in range(3))
        for place, each in enumerate((gone, back, other)):
            each.begin(place, job_of(1, number=5 + place), 1)
        gone.close()
        back.close()
        assert back.served().keys() == {0, 1, 2}
        end = time.monotonic() + 60
        while 0 in other.served():
            assert time.monotonic() < end
        assert other.served().keys() == {1, 2}
        other.begin(0, job_of(1, number=5), 1)
        assert said == ["job 5 is ended: the program that began it is gone"]
        for each in (back, other):
            each.close()


GOOD = msgspec.to_builtins(job_of(2))
PARENT = {"mac": 5, "port": 1, "shard": 1, "workers": 2}


def begin(place=0, first_round=1, **changes):
    return {"do": "begin", "place": place, "job": GOOD | changes, "first_round": first_round}


def test_a_job_whose_workers_a_port_cannot_reach_is_refused():
    job = job_of(2)
    model = BatchAggregator(SLOTS, jobs=PLACES)
    with pytest.raises(RefusedError, match=r"port 1, b, cannot send to 02:00:00:00:01:01, .* its udp"):
        requests_of(model, {job.members[1].mac}).methods.call(begin())
    assert model.jobs == {}
    with pytest.raises(RefusedError, match=r"port 1, b, cannot send to 00:00:00:00:00:05, .* its udp"):
        requests_of(model, {PARENT["mac"]}).methods.call(begin(parent=PARENT))
    requests_of(model, {job.group_mac}).methods.call(begin())  # then each worker gets an answer of its own
    assert model.jobs == {0: job}


def test_a_job_of_workers_that_send_to_another_address_is_refused():
    here, there = (address_of(IPv4Address("10.0.0.9"), port) for port in (51207, 51208))
    one = msgspec.to_builtins(job_of(1))
    for mac, text in ((5, "00:00:00:00:00:05"), (there, r"10\.0\.0\.9:51208")):
        model = BatchAggregator(SLOTS, jobs=PLACES, mac=mac)
        requests = Requests(model, {"udp:10.0.0.9:51207": Port(address=here)}, slots=SLOTS, places=PLACES)
        with pytest.raises(RefusedError, match=rf"sent to 10\.0\.0\.9:51207, not to {text}: .* former as the"):
            requests.methods.call(begin(**one))
        assert model.jobs == {}
    requests.methods.call({"do": "set_mac", "mac": here})
    requests.methods.call(begin(**one))
    assert model.jobs == {0: job_of(1)}


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({}, "there is no method None; there are size, set_mac"),
        ({"do": "reboot"}, "there is no method 'reboot'"),
        ({"do": "end"}, "end: .*missing required field `place`"),
        ({"do": "size", "place": 0}, "size: .*unknown field `place`"),
        ({"do": "end", "place": True}, "Expected `int`, got `bool`"),
        ({"do": "end", "place": -1}, "place must be 0 to 2, not -1"),
        ({"do": "set_mac", "mac": 1 << 48}, "set_mac: .*`int`"),
        ({"do": "read_slots", "place": 0, "first": 0, "count": 7}, "no 7 slots from 0 on: each place has 6"),
        ({"do": "read_slots", "place": 0, "first": -1, "count": 1}, "no 1 slots from -1 on"),
        ({"do": "read_slots", "place": 0, "first": 0, "count": 0}, "no 0 slots from 0 on"),
        ({"do": "read_slots", "place": 3, "first": 0, "count": 1}, "place must be 0 to 2, not 3"),
        (begin(first_round=65536), "first_round"),
        (begin(1, number=9), "job 9 is being served already"),
        (begin(1, ports=4), "needs a port .*: there are 2"),
        (begin(1, members=[{"mac": 5, "port": 2}]), "needs a port that"),
        (begin(1, parent={"mac": 5, "port": 2, "shard": 0, "workers": 2}), "needs a port that"),
        (begin(parent={"mac": 5, "port": 1, "shard": 2, "workers": 2}), "shard must be 0 to 1, not 2"),
        (begin(members=[{"mac": 5, "port": 1}] * 32, parent=PARENT), "with a parent has at most 31 workers"),
        (begin(3), "place must be 0 to 2, not 3"),
        (begin(members=[{"mac": "1", "port": 0}]), "Expected `int`, got `str`"),
        (begin(members=[]), "a job has 1 to 992 workers"),
        (begin(group_mac=2), "is no address of a group"),
    ],
)
def test_mistakes_change_nothing(request_, says):
    model = BatchAggregator(SLOTS, jobs=PLACES, mac=5)
    model.begin(0, job_of(2, number=9), 3)
    with pytest.raises(RefusedError, match=says):
        requests_of(model).methods.call(dict(request_))
    assert model.jobs == {0: job_of(2, number=9)}
    assert model.mac == 5
