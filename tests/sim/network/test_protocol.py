"""The AllReduce protocol in Python: jobs one after the other. Faults at random are in tests/campaign."""

import random

from support.aggregator_model import Aggregator
from support.bench import default_seed
from support.faulty_cluster import FaultyCluster, Schedule, StalledError
from support.lines import Faults

from p4sgd.host.aggregators.seats import seats_of
from p4sgd.hw.spec.run import MAX_WORKERS, partial_limit
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
