"""Two levels of aggregators as one controller: what each part serves, and what is seen of all."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from msgspec import structs
from support.batch import answers_of

from p4sgd.host.aggregators import opening
from p4sgd.host.aggregators.cluster_file import AggregatorAddress, Cluster, RackAddress, WorkerAddress
from p4sgd.host.aggregators.controller import SlotView, read_active_slots, why_not_begin
from p4sgd.host.aggregators.membership import JoinRequest, Membership
from p4sgd.host.aggregators.seats import Seat, seats_of
from p4sgd.host.aggregators.tree import Tree
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.hw.spec.job import Job, Member, Parent
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS
from p4sgd.sim.network.batch import BatchAggregator

GROUP, KEY, SLOTS = 1 << 40, 99, 4
TOP, RACKS = 0x0250_0000_00FF, (0x0250_0000_00F0, 0x0250_0000_00F1)
BEHIND = (1, 0, None, 1)
"""The rack of each worker; worker 2 is behind the top aggregator."""

CLUSTER = Cluster(
    AggregatorAddress("socket", "unix:top", mac=TOP),
    tuple(
        WorkerAddress(port=shard, control=f"unix:w{shard}", mac=0x0200_0000_0000 + shard, rack=rack)
        for shard, rack in enumerate(BEHIND)
    ),
    racks=tuple(
        RackAddress(kind="socket", control=f"unix:r{rack}", mac=mac, port=4 + rack, uplink=6)
        for rack, mac in enumerate(RACKS)
    ),
)
MEMBERS = tuple(Member(worker.mac, worker.port) for worker in CLUSTER.workers)
JOB = Job(7, MEMBERS, GROUP, 0b1111, KEY)


class Part:
    """The controller of an aggregator in this process, of so many ``slots``; it may refuse to begin jobs."""

    most, jobs = 46, 2

    def __init__(self, slots=SLOTS):
        self.slots, self.refuses, self.is_closed = slots, False, False
        self.restart()

    def restart(self):
        self.model = BatchAggregator(self.slots, jobs=self.jobs, most=self.most)

    def set_mac(self, mac):
        self.model.mac = mac

    def begin(self, place, job, first_round):
        if self.refuses:
            raise P4sgdError("refuses")
        self.model.begin(place, job, first_round)

    def end(self, place):
        self.model.end(place)

    def served(self):
        return dict(self.model.jobs)

    def counters(self):
        return self.model.counters()

    def read_slots(self, place, slots):
        return [SlotView(*view) for view in self.model.read_slots(place, slots)]

    def close(self):
        self.is_closed = True


@pytest.fixture
def parts():
    return Part(8), Part(8), Part()


@pytest.fixture
def tree(parts):
    tree = Tree(CLUSTER, parts[0], parts[1:])
    tree.set_mac(RACKS[1])
    return tree


def test_seats():
    """Of racks, of the top, of racks that lost their workers, and of one level."""
    assert seats_of(BEHIND) == [Seat(1, 0, 2, 1), Seat(0, 0, 1, 0), Seat(None, 2, 3, None), Seat(1, 1, 2, 1)]
    assert seats_of([3, None, 3]) == [Seat(3, 0, 2, 0), Seat(None, 1, 2, None), Seat(3, 1, 2, 0)]
    assert seats_of([None, None]) == [Seat(None, 0, 2, None), Seat(None, 1, 2, None)]


def test_each_part_serves_its_part(tree, parts):
    assert (tree.slots, tree.jobs, tree.most) == (SLOTS, 2, 46)
    assert [part.model.mac for part in parts] == [TOP, *RACKS]
    tree.begin(1, JOB, 5)
    top = (Member(RACKS[0], 4), Member(RACKS[1], 5), MEMBERS[2])
    assert parts[0].served() == {1: Job(7, top, GROUP, 0b110100, KEY)}
    assert parts[1].served() == {1: Job(7, MEMBERS[1:2], GROUP, 0b0010, KEY, Parent(TOP, 6, 0, 3))}
    assert parts[2].served() == {1: Job(7, (MEMBERS[0], MEMBERS[3]), GROUP, 0b1001, KEY, Parent(TOP, 6, 1, 3))}
    assert tree.read_slots(1, range(1)) == [SlotView(4, 0, 0)]
    assert tree.served() == {1: JOB}
    tree.end(1)
    assert tree.served() == {}
    tree.close()
    assert all(part.is_closed for part in parts)


def test_a_job_of_more_workers_than_one_aggregator_adds_up():
    workers = [
        WorkerAddress(port=index // 2, control=f"unix:w{index}", mac=0x0200_0000_0000 + index, rack=index % 2)
        for index in range(2 * (MAX_WORKERS - 1))
    ]
    cluster = structs.replace(CLUSTER, workers=tuple(workers))
    members = tuple(Member(worker.local_mac, worker.port) for worker in workers)
    job, parts = Job(7, members, GROUP, (1 << 31) - 1, KEY), (Part(), Part(), Part())
    tree = Tree(cluster, parts[0], parts[1:])
    tree.begin(0, job, 1)
    assert [len(part.served()[0].members) for part in parts] == [2, 31, 31]
    assert tree.served() == {0: job}
    assert str(len(members)) in why_not_begin(0, job, [], parents=True, stand_ins=True)


def test_a_job_that_a_part_refuses_is_begun_nowhere(tree, parts):
    parts[2].refuses = True
    with pytest.raises(P4sgdError, match="refuses"):
        tree.begin(0, JOB, 1)
    assert tree.served() == {}


@pytest.mark.parametrize("gone", [0, 1])
def test_a_part_that_is_gone_keeps_no_other_from_ending(tree, parts, monkeypatch, gone):
    def served():
        raise P4sgdError("gone")

    tree.begin(0, JOB, 1)
    with monkeypatch.context() as patched:
        patched.setattr(parts[gone], "served", served)
        with pytest.raises(P4sgdError, match="gone"):
            tree.end(0)
    assert [bool(part.served()) for part in parts] == [part == gone for part in range(3)]


def test_an_aggregator_that_cannot_be_opened_is_named(monkeypatch):
    monkeypatch.setattr(opening, "_open", Mock(side_effect=[Part(), Part(), UserError("is not there")]))
    with pytest.raises(UserError, match=r"racks\[1\]: is not there"):
        opening.open_controller(CLUSTER)


def test_a_top_aggregator_must_know_all_slots_of_racks():
    with pytest.raises(UserError, match="of rack 1 has 8 slots, the top one only 4: start that with --slots 8"):
        Tree(CLUSTER, Part(), (Part(), Part(8)))


def test_a_job_that_others_begin_or_end_has_only_its_members(tree, parts, monkeypatch):
    """Or a worker of the same rack that joins another job would end it."""
    job, seen = replace(JOB, members=(*MEMBERS[:1], MEMBERS[2])), []
    for part in parts:
        for name in ("begin", "end"):

            def act(*what, does=getattr(part, name)):
                does(*what)
                seen.extend(tree.served().values())

            monkeypatch.setattr(part, name, act)
    tree.begin(0, job, 1)
    tree.end(0)
    assert len(seen) == 3
    assert set().union(*(each.members for each in seen)) == set(job.members)


def test_what_is_left_of_a_job_is_ended_by_who_joins_again(tree, parts):
    """Aggregators of racks, or the top one, were started again; a job of others in the place of one part goes on."""
    membership = Membership(tree, GROUP)
    other = Job(9, (Member(1, 0),), GROUP, 1)

    def join(number):
        for shard, member in enumerate(MEMBERS):
            request = JoinRequest(number, shard, len(MEMBERS), member.mac, TOP, KEY)
            membership.join(request, member.port, 1, index=shard)

    for number, lost in enumerate([(), (1,), (2,), (1, 2), (0,), (0, 1, 2)], 1):
        join(number)
        assert tree.served() == {0: replace(JOB, number=number)}
        for part in lost:
            parts[part].restart()
        tree.set_mac(TOP)
    parts[1].begin(1, other, 1)
    join(20)
    assert tree.served() == {0: replace(JOB, number=20), 1: other}
    membership.end()
    assert tree.served() == {1: other}
    assert parts[1].served() == {1: other}


def test_what_is_left_in_a_rack_is_not_of_the_job_of_others_in_its_place(tree, parts):
    """A worker of the rack that joins again must not end their job."""
    other = Job(9, (Member(1, 0),), GROUP, 1)
    tree.begin(0, JOB, 1)
    parts[0].restart()
    parts[0].begin(0, other, 1)
    assert tree.served() == {0: other}


def test_slots_tell_of_all_workers(tree, parts):
    """By their shards in the whole job; all of a rack are missing while its sums are missing at the top."""
    tree.begin(0, JOB, 1)

    def deliver(part, frame, port, *, reaches_top):
        for answer, ports in answers_of(parts[part].model, [frame], port):
            for rack, address in enumerate(CLUSTER.racks):
                if part == 0 and ports >> address.port & 1:
                    deliver(1 + rack, answer, address.uplink, reaches_top=reaches_top)
                elif part == 1 + rack and ports == 1 << address.uplink and reaches_top:
                    deliver(0, answer, address.port, reaches_top=reaches_top)

    def seen(kind, worker, round_=1, *, reaches_top=True):
        """What is seen once a worker has sent a packet."""
        seat, member = seats_of(BEHIND)[worker], MEMBERS[worker]
        part, mac = (0, TOP) if seat.rack is None else (1 + seat.rack, RACKS[seat.rack])
        values = (1,) * 8 if kind is PacketType.PARTIAL else ()
        where = 7, 2, round_, seat.shard, seat.workers, 1 << seat.shard
        packet = Packet(kind, *where, values, mac, member.mac, 2, KEY)
        deliver(part, packet.to_bytes(), member.port, reaches_top=reaches_top)
        (view,) = tree.read_slots(0, range(2, 3))
        return view.round, f"{view.aggregated:04b}", f"{view.acknowledged:04b}"

    partial, ack = PacketType.PARTIAL, PacketType.ACK
    assert seen(partial, 0) == (1, "0001", "0000")
    assert seen(partial, 1, reaches_top=False) == (1, "0001", "0000")
    assert seen(partial, 3) == (1, "1001", "0000")
    assert seen(partial, 1) == (1, "1011", "0000")
    (waiting,) = read_active_slots(tree)[0, JOB]
    assert (waiting.slot, waiting.partials) == (2, (2,))
    assert seen(partial, 2) == (1, "1111", "0000")
    assert seen(ack, 2) == (1, "1111", "0100")
    assert seen(ack, 3) == (1, "1111", "1100")
    assert seen(ack, 0, reaches_top=False) == (1, "1111", "0100")
    (waiting,) = read_active_slots(tree)[0, JOB]
    assert (waiting.partials, waiting.acknowledgements) == ((), (0, 1, 3))
    assert seen(ack, 0) == (1, "1111", "1101")
    assert seen(ack, 1) == (1, "1111", "1111")
    assert read_active_slots(tree) == {(0, JOB): []}
    assert seen(partial, 3, 2) == (2, "1000", "0000")
    (waiting,) = read_active_slots(tree)[0, JOB]
    assert waiting.partials == (0, 1, 2)


def test_counters_are_sums(tree, parts):
    answers_of(parts[0].model, [b"short"], 0)
    answers_of(parts[2].model, [b"short"], 0)
    assert tree.counters()["DROPPED_RUNT"] == tree.counters()["FRAMES"] == 2
