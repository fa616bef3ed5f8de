"""Jobs of workers that join in any order."""

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
        self._membership = Membership(self.switch)

    def join(self, port, number, shard, *, workers=2, first_round=1, index=None, mac=None, peer=0):
        low, high = registers.LOCAL_MAC
        words = {
            registers.JOB.offset: registers.JOB.encode(job=number, shard=shard, workers=workers),
            low.offset: 0x100 + (port if mac is None else mac),
            high.offset: 0x02,
            registers.PEER_MAC[0].offset: peer,
        }
        client = RegisterClient(lambda offset: words.get(offset, 0), lambda offset, word: pytest.fail("a write"))
        self._membership.join(JoinRequest.read(client), port, first_round, index=index)

    @property
    def served(self):
        """Ports in the order of shards, and first round, of each served job."""
        found = {}
        for job, first_round in self.switch.began.values():
            assert [member.mac for member in job.members] == [0x02_0000_0100 + member.port for member in job.members]
            assert job.ports == sum(1 << member.port for member in job.members)
            found[job.number] = ([member.port for member in job.members], first_round)
        return found

    def end(self):
        self._membership.end()

    def together(self, *ports):
        return self._membership.peers_of(set(ports))


def test_a_job_is_served_when_all_its_workers_are_there():
    cluster = Cluster()
    for joined, port in enumerate((2, 0, 3, 1)):
        assert not cluster.served
        assert len(cluster.together(2)) == joined
        cluster.join(port, 7, 3 - port, workers=4, first_round=9)
    assert cluster.served == {7: ([3, 2, 1, 0], 9)}
    assert cluster.switch.mac == 0


def test_a_program_ends_its_own_jobs():
    ours = Cluster()
    others = Cluster(ours.switch)
    for shard in (0, 1):
        ours.join(shard, 5, shard)
        others.join(2 + shard, 6, shard)
    ours.end()
    assert list(ours.served) == [6]
    ours.end()
    others.join(0, 5, 0)  # under the number of the job that has ended
    others.join(1, 5, 1)
    ours.end()
    assert sorted(ours.served) == [5, 6]


def test_workers_of_two_jobs_join_in_turn():
    cluster = Cluster()
    for port, number, shard in ((0, 5, 0), (2, 6, 1), (3, 6, 0), (1, 5, 1)):
        cluster.join(port, number, shard)
    assert cluster.served == {5: ([0, 1], 1), 6: ([3, 2], 1)}
    assert cluster.together(0) == {0, 1}
    assert cluster.together(1, 3) == {0, 1, 2, 3}
    assert cluster.together() == set()


@pytest.mark.parametrize("number", [5, 7])
def test_the_next_job_of_the_same_workers(number):
    cluster = Cluster()
    for port in range(4):
        cluster.join(port, 5 + port // 2, port % 2)
    for round_ in (1, 2, 3):
        cluster.join(1, number, 0, first_round=round_)
        assert cluster.served == {6: ([2, 3], 1)}, "a job without a worker is over"
        cluster.join(1, number, 0, first_round=round_)  # once more, before the job is complete
        cluster.join(0, number, 1, first_round=round_)
        assert cluster.served == {6: ([2, 3], 1), number: ([1, 0], round_)}


def test_workers_change_jobs():
    cluster = Cluster()
    for port in range(4):
        cluster.join(port, 1, port, workers=4)
    cluster.join(3, 2, 0)
    assert cluster.served == {}
    cluster.join(3, 3, 0, workers=1)  # which ends an incomplete job
    assert cluster.served == {3: ([3], 1)}
    cluster.join(0, 2, 0)
    cluster.join(1, 2, 1)
    assert cluster.served == {3: ([3], 1), 2: ([0, 1], 1)}


def test_a_number_under_which_others_are_served_is_refused():
    cluster = Cluster()
    cluster.join(0, 1, 0)
    cluster.join(1, 1, 1)
    for shard, port in enumerate((2, 3)):
        with pytest.raises(P4sgdError, match=r"job 1 cannot begin: .* under this number"):
            cluster.join(port, 1, shard)
    assert cluster.served == {1: ([0, 1], 1)}
    assert cluster.together(2) == set()


def test_a_number_is_free_when_its_job_was_ended_by_another_program():
    cluster = Cluster()
    cluster.join(0, 1, 0)
    cluster.join(1, 1, 1)
    cluster.switch.end(0)
    cluster.join(2, 1, 0)
    cluster.join(3, 1, 1)
    assert cluster.served == {1: ([2, 3], 1)}
    cluster.join(0, 2, 0, workers=1)
    assert cluster.served == {1: ([2, 3], 1), 2: ([0], 1)}, "the first job is no longer theirs to end"


def test_the_address_stays_while_others_are_served():
    cluster = Cluster()
    cluster.join(0, 1, 0, workers=1, peer=5)
    with pytest.raises(P4sgdError, match="another address"):
        cluster.join(1, 2, 0, workers=1, peer=6)
    assert (cluster.switch.mac, cluster.served) == (5, {1: ([0], 1)})
    cluster.join(0, 3, 0, workers=1, peer=6)
    assert (cluster.switch.mac, cluster.served) == (6, {3: ([0], 1)}), "the last job of the worker was the only one"


@pytest.mark.parametrize("left", [(0, 3), (1, 2)], ids=["other number of workers", "same shard"])
def test_an_incomplete_job_is_forgotten(left):
    shard, workers = left
    cluster = Cluster()
    cluster.join(0, 5, shard, workers=workers)
    for at, port in ((1, 1), (0, 2)):
        assert not cluster.served
        cluster.join(port, 5, at)
    (job,) = cluster.switch.served().values()
    assert [member.port for member in job.members] == [2, 1]
    assert job.ports == 0b110
    cluster.join(0, 6, 0, workers=1)
    assert set(cluster.served) == {5, 6}, "the worker that was first is no longer of the job"


def test_a_shard_that_the_job_does_not_have():
    cluster = Cluster()
    with pytest.raises(P4sgdError, match="job 5 cannot begin: a worker says that it is shard 2 of 2"):
        cluster.join(0, 5, 2)


def test_more_jobs_than_places():
    cluster = Cluster()
    cluster.join(0, 1, 0, workers=1)
    cluster.join(1, 2, 0, workers=1)
    with pytest.raises(P4sgdError, match="job 3 cannot begin: the aggregator already serves 2 others, the most"):
        cluster.join(2, 3, 0, workers=1)
    assert cluster.served == {1: ([0], 1), 2: ([1], 1)}


def test_workers_behind_one_port():
    cluster = Cluster()
    for index in range(3):
        cluster.join(1, 5, index, workers=3, index=index, mac=0x40 + index)
    (job, _), *_ = cluster.switch.began.values()
    assert job.members == tuple(Member(0x02_0000_0140 + index, 1) for index in range(3))
    assert job.ports == 0b10
    assert cluster.together(2) == {0, 1, 2}


def test_jobs_of_another_program_are_left_alone():
    first = Cluster()
    first.join(0, 1, 0, workers=1)
    second = Cluster(first.switch)
    second.join(1, 2, 0, workers=1)
    assert second.served == {1: ([0], 1), 2: ([1], 1)}
    with pytest.raises(P4sgdError, match=r"job 1 cannot begin: .* under this number"):
        second.join(1, 1, 0, workers=1)
    assert second.served == {1: ([0], 1)}


def test_a_job_left_by_another_program_ends_when_its_worker_joins():
    first = Cluster()
    first.join(0, 1, 0)
    first.join(1, 1, 1)
    second = Cluster(first.switch)
    second.join(1, 1, 0)
    assert second.served == {}
    second.join(0, 1, 1)
    assert second.served == {1: ([1, 0], 1)}


def test_a_place_that_another_program_takes_at_the_same_time():
    first = Cluster()
    second = Cluster(first.switch)
    first.switch.before_begin.append(lambda: second.join(2, 2, 0, workers=1))
    first.join(0, 1, 0, workers=1)
    assert first.served == {2: ([2], 1), 1: ([0], 1)}


@pytest.mark.parametrize("places", [1, 2])
def test_a_number_that_another_program_takes_at_the_same_time(monkeypatch, places):
    monkeypatch.setattr(Switch, "jobs", places)
    first = Cluster()
    second = Cluster(first.switch)
    first.switch.before_begin.append(lambda: second.join(2, 1, 0, workers=1))
    with pytest.raises(NumberTakenError, match=r"job 1 cannot begin: .* under this number"):
        first.join(0, 1, 0, workers=1)
    assert first.served == {1: ([2], 1)}


def test_other_refusals_are_raised():
    def refuse():
        raise P4sgdError("no such port")

    cluster = Cluster()
    cluster.switch.before_begin.append(refuse)
    with pytest.raises(P4sgdError, match="no such port"):
        cluster.join(0, 1, 0, workers=1)
