"""The AllReduce protocol in Python: jobs one after the other, and keys. Faults at random are in tests/campaign."""

import random

import pytest
from conformance.mutants import MUTANTS
from support.aggregator_model import Aggregator
from support.batch import answers_of
from support.bench import default_seed
from support.faulty_cluster import FaultyCluster, Schedule, StalledError
from support.lines import Faults

from p4sgd.host.aggregators.seats import seats_of
from p4sgd.hw.spec.job import Job, Member
from p4sgd.hw.spec.packet import MOST_MICRO_BATCHES, ROUND_BITS, DropReason, KeyedDrop, Packet, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS, partial_limit
from p4sgd.sim.network.batch import BatchAggregator
from p4sgd.sim.network.endpoint import Endpoint

SLOTS = 4


def random_partials(rng, workers, count):
    """Partials of each worker, and the sums of each operation."""
    partials = [[[rng.randint(-1000, 1000) for _ in range(8)] for _ in range(count)] for _ in range(workers)]
    return partials, [tuple(map(sum, zip(*operation, strict=True))) for operation in zip(*partials, strict=True)]


def wrong_jobs(numbers, seed):
    """How many jobs, one after the other over a network that is never empty, get a wrong sum or none."""
    rng = random.Random(seed)
    faults = Faults(duplication=0.3, delay=(1, 30), straggle=0.05, straggle_delay=300)
    ends = [Endpoint(SLOTS, shard=shard, workers=3) for shard in range(3)]
    cluster = FaultyCluster(ends, Aggregator(SLOTS), Schedule(faults, faults), seed)
    bad = 0
    for number in numbers:
        partials, expected = random_partials(rng, 3, 10)
        cluster.begin_job(number, 1)
        try:
            bad += cluster.all_reduce(partials, time_limit=20_000) != [expected] * 3
        except StalledError:
            bad += 1
    return bad


def test_packets_of_earlier_jobs_change_nothing():
    for seed in range(50):
        assert wrong_jobs(range(10), seed) == 0


def test_two_jobs_of_one_number_are_caught():
    """A test of the test: the numbers are what keeps jobs apart."""
    assert sum(wrong_jobs([0] * 10, seed) for seed in range(20)) > 10


def test_sums_of_more_workers_than_an_aggregator_has():
    """Partials are at their limit, that of all workers: no sum wraps at either level."""
    seed, behind = default_seed(), [0, 1] * (MAX_WORKERS - 1) + [None] * 3
    rng, limit, faults = random.Random(seed), partial_limit(len(behind)), Faults(loss=0.05)
    ends = [Endpoint(SLOTS, shard=seat.shard, workers=seat.workers) for seat in seats_of(behind)]
    top, *racks = (Aggregator(SLOTS) for _ in range(3))
    partials = [[[limit, -limit, *rng.choices([-limit, limit], k=6)] for _ in range(6)] for _ in ends]
    expected = [tuple(map(sum, zip(*operation, strict=True))) for operation in zip(*partials, strict=True)]
    assert expected[0][0] == -expected[0][1] > (1 << 31) - 1 - len(ends)
    cluster = FaultyCluster(ends, top, Schedule(faults, faults), seed, racks=racks, behind=behind)
    cluster.begin_job(1, 1)
    assert cluster.all_reduce(partials, time_limit=200_000) == [expected] * len(ends)


# -- keys ----------------------------------------------------------------------------------------------------------

KEY = 0x0123_4567_89AB_CDEF
(ANY_KEY,) = (kind for kind in MUTANTS if kind.__name__ == "AnyKey")


def keyed_pair(workers=2, most=MOST_MICRO_BATCHES):
    """A switch of a job with a key, and its workers."""
    switch = Aggregator(SLOTS, most=most)
    members = tuple(Member(shard, shard) for shard in range(workers))
    switch.begin(0, Job(0, members, 1 << 40, (1 << workers) - 1, KEY))
    options = {"workers": workers, "key": KEY, "most": most}
    return switch, [Endpoint(SLOTS, shard=shard, local_mac=shard, **options) for shard in range(workers)]


def test_malformed_and_forged_frames_change_nothing():
    rng = random.Random(1)
    switch, (end, _) = keyed_pair()
    sent = end.submit(range(16), 0)
    switch.receive(sent, 0)
    full = switch.receive(Packet(**vars(sent) | {"shard": 1, "bitmap": 2, "source": 1}), 1).packet
    for _ in range(5000):
        assert end.receive_frame(rng.randbytes(64), 0) is None
    assert end.drops.total() == 5000
    for key in (0, KEY ^ 1, KEY ^ 1 << 63):
        assert end.receive_frame(Packet(**vars(full) | {"key": key}).to_bytes(), 0) is None
    assert end.drops[KeyedDrop.KEY] == 3
    assert not end.sums
    assert end.receive_frame(full.to_bytes(), 0).type is PacketType.ACK
    assert list(end.sums) == [tuple(2 * value for value in range(16))]


@pytest.mark.parametrize(("switch", "sums"), [(Aggregator, (3,) * 8), (ANY_KEY, (7,) * 8)])
def test_a_packet_that_is_65536_rounds_late_is_not_added(switch, sums):
    """Its round is sent as the same number; a switch that does not look at the key adds it."""
    job = Job(0, tuple(Member(shard, shard) for shard in range(2)), 1 << 40, 0b11, KEY)
    switch, options = switch(1, most=1), {"workers": 2, "key": KEY, "most": 1}
    switch.begin(0, job, 1 + (1 << ROUND_BITS))
    late, first, second = (
        Endpoint(1, shard=shard, local_mac=shard, first_round=round_, **options).submit([value] * 8, 0).to_bytes()
        for shard, round_, value in ((0, 1, 5), (0, 1 + (1 << ROUND_BITS), 1), (1, 1 + (1 << ROUND_BITS), 2))
    )
    for frame, port in ((late, 0), (first, 0), (second, 1)):
        answer = switch.receive_frame(frame, port)
    assert answer.packet.values == sums
    assert switch.drops[KeyedDrop.KEY] == (switch.__class__ is Aggregator)


@pytest.mark.slow
def test_packets_of_65536_rounds_before_change_nothing():
    """A worker and the compiled switch, and after as many rounds all packets of the first one again."""
    switch, (end,) = BatchAggregator(1, most=1), [Endpoint(1, shard=0, workers=1, key=KEY, most=1)]
    switch.begin(0, Job(0, (Member(0, 0),), 1 << 40, 1, KEY))

    def all_reduce(value):
        frames = [end.submit([value] * 8, 0).to_bytes()]
        for _ in range(2):
            ((answer, _),) = answers_of(switch, frames[-1:], 0)
            acknowledgement = end.receive_frame(answer, 0)
            frames += [answer, acknowledgement.to_bytes()] if acknowledgement else [answer]
        assert end.sums.popleft() == (value,) * 8
        return frames

    partial, full, ack, clear = all_reduce(5)
    for number in range((1 << ROUND_BITS) - 1):
        all_reduce(number)
    assert answers_of(switch, [partial, ack], 0) == []
    assert switch.counters()["DROPPED_KEY"] == 2
    sent = end.submit([7] * 8, 0).to_bytes()
    assert end.receive_frame(full, 0) is None
    ((answer, _),) = answers_of(switch, [ack, sent], 0)
    assert end.receive_frame(answer, 0) is not None
    assert end.receive_frame(clear, 0) is None
    assert end.drops[KeyedDrop.KEY] == 2
    assert (end.sums.popleft(), end.busy) == ((7,) * 8, True)


def test_sums_of_another_length_are_not_taken():
    switch, (end,) = keyed_pair(1)
    full = switch.receive(end.submit([1] * 16, 0), 0).packet
    for count, reason in ((8, DropReason.RUNT), (24, DropReason.LONG)):
        assert end.receive(Packet(**vars(full) | {"values": (1,) * count}), 0) is None
        assert end.drops[reason] == 1
    assert end.receive(full, 0) is not None


@pytest.mark.parametrize(("adapts", "again"), [(True, [2, 0, 0]), (False, [2, 2, 2])])
def test_the_first_wait_follows_the_answers(adapts, again):
    """Between the wait that is set, 100, and the longest, 800. FULL and CLEAR take as long."""
    end = Endpoint(1, shard=0, workers=1, resend_after=100, doublings=3, adapts=adapts)
    switch = Aggregator(1)
    switch.begin(0, Job(0, (Member(0, 0),), 1 << 40, 1))
    now, resent = 0, []
    for took in (10, 10, 300, 300, 300, 100_000, 10, 10):
        packet = end.submit([1] * 8, now)
        resent.append(0)
        for _ in range(2):
            answered = now + took
            while (due := end.next_resend()) < answered:
                assert 100 <= due - now <= 800
                resent[-1] += len(end.resend(now := due))
            now = answered
            packet = end.receive(switch.receive(packet, 0).packet, now)
    assert resent[:5] == [0, 0, *again]
    assert resent[6:] == [0, 0]


def test_a_pause_is_soon_forgotten():
    """Of the worker itself, whose answers wait: in one slot or in eight."""
    for slots in (1, 8):
        end = Endpoint(slots, shard=0, workers=1, resend_after=100, doublings=6, adapts=True)
        switch = Aggregator(slots)
        switch.begin(0, Job(0, (Member(0, 0),), 1 << 40, 1))
        now, waits = 0, []
        for took in [10] * 5 + [100_000] + [10] * 20:
            packets = [end.submit([1] * 8, now) for _ in range(slots)]
            for wait in (took, 10):
                now += wait
                packets = [end.receive(switch.receive(packet, 0).packet, now) for packet in packets]
            end.sums.clear()
            waits.append(end.first_wait)
        assert max(waits) <= 2 * 100
        assert waits[-1] == 100
