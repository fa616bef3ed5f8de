"""Jobs of workers that join in any order."""

import re

import pytest

from p4sgd.host.aggregators.membership import JoinRequest, Membership, NumberTakenError
from p4sgd.host.errors import P4sgdError
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.job import Member
from p4sgd.hw.spec.register_map import RegisterClient


class Switch:
    """A controller that refuses what an aggregator refuses. ``began`` has (job, first round) by place.

    Functions in ``before_begin`` are called between a program's reading of the jobs and its beginning of one.
    """

    slots, jobs = 4, 2

    def __init__(self):
        self.mac = None
        self.began = {}
        self.before_begin = []

    def set_mac(self, mac):
        if mac != self.mac and self.began:
            raise P4sgdError("another address")
        self.mac = mac

    def begin(self, place, job, first_round):
        assert place in range(self.jobs)
        if self.before_begin:
            self.before_begin.pop()()
        if place in self.began or job.number in [other.number for other, _ in self.began.values()]:
            raise P4sgdError("refused")
        self.began[place] = job, first_round

    def end(self, place):
        self.began.pop(place, None)

    def served(self):
        return {place: job for place, (job, _) in self.began.items()}


class Cluster:
    """Four workers around a switch."""

    def __init__(self, switch=None):
        self.switch = switch or Switch()
        self.membership = Membership(self.switch)

    def join(self, port, number, shard, *, workers=2, first_round=1, index=None, mac=None, peer=0):
        low, high = registers.LOCAL_MAC
        words = {
            registers.JOB.offset: registers.JOB.encode(job=number, shard=shard, workers=workers),
            low.offset: 0x100 + (port if mac is None else mac),
            high.offset: 0x02,
            registers.PEER_MAC[0].offset: peer,
        }
        client = RegisterClient(lambda offset: words.get(offset, 0), lambda offset, word: pytest.fail("a write"))
        self.membership.join(JoinRequest.read(client), port, first_round, index=index)

    @property
    def served(self):
        """Ports in the order of shards, by the number of a served job."""
        found = {}
        for job in self.switch.served().values():
            found[job.number] = [member.port for member in job.members]
            assert [member.mac for member in job.members] == [0x02_0000_0100 + port for port in found[job.number]]
            assert job.ports == sum(1 << port for port in set(found[job.number]))
        return found


STORIES = {
    "in any order": "2:7.1/4 0:7.3/4 3:7.0/4 = 1:7.2/4 =7:3210",
    "in turn": "0:5.0/2 2:6.1/2 3:6.0/2 1:5.1/2 =5:01,6:32",
    "again": "0:5.0/2 1:5.1/2 2:6.0/2 3:6.1/2 1:5.0/2 =6:23 1:5.0/2 =6:23 0:5.1/2 =6:23,5:10 1:5.0/2 =6:23",
    "anew": "0:5.0/2 1:5.1/2 2:6.0/2 3:6.1/2 1:7.0/2 =6:23 1:7.0/2 =6:23 0:7.1/2 =6:23,7:10 1:7.0/2 =6:23",
    "other jobs": "0:1.0/4 1:1.1/4 2:1.2/4 3:1.3/4 3:2.0/2 = 3:3.0/1 =3:3 0:2.0/2 1:2.1/2 =3:3,2:01",
    "another number of workers": "0:5.0/3 = 1:5.1/2 = 2:5.0/2 =5:21 0:6.0/1 =5:21,6:0",
    "the same shard": "0:5.1/2 = 1:5.1/2 = 2:5.0/2 =5:21 0:6.0/1 =5:21,6:0",
}
"""Joins, PORT:JOB.SHARD/WORKERS, and what is served after them, =JOB:PORTS,… with the ports in the order of shards."""


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_jobs_are_served_while_all_their_workers_are_in(story):
    cluster = Cluster()
    for step in story.split():
        if step.startswith("="):
            served = {f"{number}:{''.join(map(str, ports))}" for number, ports in cluster.served.items()}
            assert served == {*filter(None, step[1:].split(","))}, step
        else:
            cluster.join(*map(int, re.split("[:.]", step[:-2])), workers=int(step[-1]))


def test_workers_of_a_job_are_peers():
    cluster = Cluster()
    for joined, (port, number, shard) in enumerate([(0, 5, 0), (2, 6, 1), (3, 6, 0), (1, 5, 1)]):
        assert len(cluster.membership.peers_of({0, 1, 2, 3})) == joined
        cluster.join(port, number, shard, first_round=9)
    assert [cluster.membership.peers_of(some) for some in (set(), {0}, {1, 3})] == [set(), {0, 1}, {0, 1, 2, 3}]
    assert {first_round for _, first_round in cluster.switch.began.values()} == {9}


def test_a_program_ends_its_own_jobs():
    ours = Cluster()
    others = Cluster(ours.switch)
    for shard in (0, 1):
        ours.join(shard, 5, shard)
        others.join(2 + shard, 6, shard)
    ours.membership.end()
    assert list(ours.served) == [6]
    ours.membership.end()
    others.join(0, 5, 0)  # under the number of the job that has ended
    others.join(1, 5, 1)
    ours.membership.end()
    assert sorted(ours.served) == [5, 6]


def test_a_number_is_free_when_its_job_was_ended_by_another_program():
    cluster = Cluster()
    cluster.join(0, 1, 0)
    cluster.join(1, 1, 1)
    cluster.switch.end(0)
    cluster.join(2, 1, 0)
    cluster.join(3, 1, 1)
    assert cluster.served == {1: [2, 3]}
    cluster.join(0, 2, 0, workers=1)
    assert cluster.served == {1: [2, 3], 2: [0]}, "the first job is no longer theirs to end"


def test_the_address_stays_while_others_are_served():
    cluster = Cluster()
    cluster.join(0, 1, 0, workers=1, peer=5)
    with pytest.raises(P4sgdError, match="another address"):
        cluster.join(1, 2, 0, workers=1, peer=6)
    assert (cluster.switch.mac, cluster.served) == (5, {1: [0]})
    cluster.join(0, 3, 0, workers=1, peer=6)
    assert (cluster.switch.mac, cluster.served) == (6, {3: [0]}), "the last job of the worker was the only one"


def test_what_is_refused():
    cluster = Cluster()
    with pytest.raises(P4sgdError, match="job 5 cannot begin: a worker says that it is shard 2 of 2"):
        cluster.join(0, 5, 2)
    cluster.join(0, 1, 0, workers=1)
    cluster.join(1, 2, 0, workers=1)
    with pytest.raises(P4sgdError, match="job 3 cannot begin: the aggregator already serves 2 others, the most"):
        cluster.join(2, 3, 0, workers=1)
    with pytest.raises(NumberTakenError, match=r"job 1 cannot begin: .* under this number"):
        cluster.join(2, 1, 0)
    assert cluster.served == {1: [0], 2: [1]}
    assert cluster.membership.peers_of({2}) == set()


def test_workers_stand_in_for_each_other():
    cluster = Cluster()
    for shard, other in ((0, 1), (1, None), (2, 0)):
        request = JoinRequest(5, shard, 3, 0x40 + shard, 0, stands_in_for=other)
        cluster.membership.join(request, 1, 1, index=shard)
    (job, _), *_ = cluster.switch.began.values()
    assert [member.stand_in for member in job.members] == [Member(0x42, 1), Member(0x40, 1), None]


def test_jobs_of_another_program_end_when_their_workers_join():
    first = Cluster()
    first.join(0, 1, 0)
    first.join(1, 1, 1)
    second = Cluster(first.switch)
    second.join(2, 2, 0, workers=1)
    with pytest.raises(NumberTakenError, match=r"job 1 cannot begin: .* under this number"):
        second.join(2, 1, 0, workers=1)
    assert second.served == {1: [0, 1]}, "others are left alone"
    second.join(1, 1, 0)
    assert second.served == {}
    second.join(0, 1, 1)
    assert second.served == {1: [1, 0]}


@pytest.mark.parametrize(("places", "number"), [(2, 2), (1, 1), (2, 1)])
def test_what_another_program_takes_at_the_same_time(monkeypatch, places, number):
    """A place, and a number."""
    monkeypatch.setattr(Switch, "jobs", places)
    first = Cluster()
    second = Cluster(first.switch)
    first.switch.before_begin.append(lambda: second.join(2, number, 0, workers=1))
    if number == 2:
        first.join(0, 1, 0, workers=1)
        assert first.served == {2: [2], 1: [0]}
    else:
        with pytest.raises(NumberTakenError, match=r"job 1 cannot begin: .* under this number"):
            first.join(0, 1, 0, workers=1)
        assert first.served == {1: [2]}


def test_other_refusals_are_raised():
    def refuse():
        raise P4sgdError("no such port")

    cluster = Cluster()
    cluster.switch.before_begin.append(refuse)
    with pytest.raises(P4sgdError, match="no such port"):
        cluster.join(0, 1, 0, workers=1)
