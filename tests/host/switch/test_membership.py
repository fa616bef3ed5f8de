"""Jobs of workers that join in any order, at an aggregator that refuses what hardware would not stand."""

import pytest

from p4sgd.host.errors import P4sgdError
from p4sgd.host.switch.membership import Membership
from p4sgd.hw.spec import registers
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.register_map import RegisterClient


class Switch:
    """Takes the place of `FpgaAggregator`; ``served`` are its jobs, a place each: number, ports, members, round."""

    config = AggregatorConfig(slots=4, jobs=2, ports=4)

    def __init__(self):
        self.mac = None
        self.members = {}
        self.served = {}

    def set_mac(self, mac):
        self.mac = mac

    def set_member(self, place, shard, *, mac, port):
        assert place not in self.served
        self.members[place, shard] = (mac, port)

    def begin(self, place, *, number, workers, group_mac, ports, first_round):
        assert place < self.config.jobs
        assert group_mac >> 40 & 1
        assert number not in [job[0] for other, job in self.served.items() if other != place]
        members = [self.members[place, shard] for shard in range(workers)]
        self.served[place] = (number, ports, members, first_round)

    def end(self, place):
        self.served.pop(place, None)


class Cluster:
    """Four workers around a switch."""

    def __init__(self):
        self.switch = Switch()
        self._membership = Membership(self.switch)

    def join(self, port, number, shard, *, workers=2, first_round=1):
        low, high = registers.LOCAL_MAC
        words = {
            registers.JOB.offset: registers.JOB.encode(job=number, shard=shard, workers=workers),
            low.offset: 0x100 + port,
            high.offset: 0x02,
        }
        client = RegisterClient(lambda offset: words.get(offset, 0), lambda offset, word: pytest.fail("a write"))
        self._membership.join(client, port, first_round)

    @property
    def served(self):
        """Ports in the order of shards, and first round, of each job that is served."""
        found = {}
        for number, ports, members, first_round in self.switch.served.values():
            assert [mac for mac, _ in members] == [0x02_0000_0100 + port for _, port in members]
            assert ports == sum(1 << port for _, port in members)
            found[number] = ([port for _, port in members], first_round)
        return found

    def together(self, *ports):
        return self._membership.of_same_jobs(set(ports))


def test_a_job_is_served_when_all_its_workers_are_there():
    cluster = Cluster()
    for joined, port in enumerate((2, 0, 3, 1)):
        assert not cluster.served
        assert len(cluster.together(2)) == joined
        cluster.join(port, 7, 3 - port, workers=4, first_round=9)
    assert cluster.served == {7: ([3, 2, 1, 0], 9)}
    assert cluster.switch.mac == 0


def test_two_jobs_join_by_turns():
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
        cluster.join(1, number, 0, first_round=round_)  # once more, before the job is whole
        cluster.join(0, number, 1, first_round=round_)
        assert cluster.served == {6: ([2, 3], 1), number: ([1, 0], round_)}


def test_workers_change_jobs():
    cluster = Cluster()
    for port in range(4):
        cluster.join(port, 1, port, workers=4)
    cluster.join(3, 2, 0)
    assert cluster.served == {}
    cluster.join(3, 3, 0, workers=1)  # which ends a job that was not whole
    assert cluster.served == {3: ([3], 1)}
    cluster.join(0, 2, 0)
    cluster.join(1, 2, 1)
    assert cluster.served == {3: ([3], 1), 2: ([0, 1], 1)}


def test_a_number_that_is_taken_is_served_anew():
    cluster = Cluster()
    cluster.join(0, 1, 0, workers=1)
    cluster.join(1, 1, 0, workers=1)
    assert cluster.served == {1: ([1], 1)}


def test_more_jobs_than_places():
    cluster = Cluster()
    cluster.join(0, 1, 0, workers=1)
    cluster.join(1, 2, 0, workers=1)
    with pytest.raises(P4sgdError, match="job 3 cannot begin: the aggregator serves 2 others, which is the most"):
        cluster.join(2, 3, 0, workers=1)
    assert cluster.served == {1: ([0], 1), 2: ([1], 1)}
