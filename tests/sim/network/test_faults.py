"""Faults of links between programs: each does what its settings say, as often as they say."""

import random
from collections import Counter
from itertools import accumulate, pairwise

import pytest
from support.aggregator_model import Aggregator
from support.faulty_cluster import FaultyCluster, Pauses, Restart, Schedule
from support.lines import Faults, Line

from p4sgd.sim.network.endpoint import Endpoint

COUNT = 20_000


def pass_through(faults, gap=1000):
    """Arrivals of packets that are sent one after the other, and what was counted but is not 0."""
    counts = Counter()
    line = Line(faults, random.Random(1), counts)
    return [line.arrivals(number * gap) for number in range(COUNT)], +counts


def check_share(count, chance, of=COUNT):
    """Within 6 standard deviations."""
    assert abs(count - of * chance) <= 6 * (of * chance * (1 - chance)) ** 0.5


def test_a_good_line_takes_its_time_and_no_more():
    came, counts = pass_through(Faults(delay=(7, 7)))
    assert came == [[1000 * number + 7] for number in range(COUNT)]
    assert counts == {"packets": COUNT}


@pytest.mark.parametrize(("name", "fate", "copies"), [("loss", "lost", 0), ("duplication", "duplicated", 2)])
def test_loses_and_repeats_the_share_it_was_told(name, fate, copies):
    came, counts = pass_through(Faults(**{name: 0.1}))
    check_share(counts[fate], 0.1)
    assert Counter(map(len, came)) == {1: COUNT - counts[fate], copies: counts[fate]}
    assert counts == {"packets": COUNT, fate: counts[fate]}


def test_bursts_begin_and_end_and_lose_as_told():
    came, counts = pass_through(Faults(burst_begin=0.01, burst_end=0.1, burst_loss=0.99))
    share = 0.99 * 0.01 / (0.01 + 0.1)
    # Losses come together, so there is less to count than packets: a tenth of them, at a guess.
    assert abs(counts["lost"] - share * COUNT) < 6 * (10 * 2 * share * COUNT) ** 0.5
    after_loss = Counter(bool(after) for before, after in pairwise(came) if not before)
    check_share(after_loss[False], 0.9 * 0.99, after_loss.total())


def test_delays():
    """A wide range reorders; stragglers are late."""
    came, counts = pass_through(Faults(delay=(10, 50)), gap=5)
    times = [time for (time,) in came]
    assert {time - 5 * number for number, time in enumerate(times)} == set(range(10, 51))
    latest = accumulate(times, max)
    assert counts["reordered"] == sum(time < before for before, time in zip(latest, times[1:], strict=False))
    came, counts = pass_through(Faults(straggle=0.1, straggle_delay=1500))
    late = sum(time == 1000 * number + 1510 for number, (time,) in enumerate(came))
    check_share(late, 0.1)
    assert counts["reordered"] > 0.8 * late  # not by one that is late as well


def test_one_seed_gives_one_run():
    def counts(seed, workers=3, operations=40):
        rng = random.Random(seed)
        partials = [[[rng.randint(-1000, 1000) for _ in range(8)] for _ in range(operations)] for _ in range(workers)]
        ends = [Endpoint(2, shard=shard, workers=workers) for shard in range(workers)]
        cluster = FaultyCluster(ends, Aggregator(2), schedule, seed)
        cluster.begin_job(1, 1)
        expected = [tuple(map(sum, zip(*operation, strict=True))) for operation in zip(*partials, strict=True)]
        assert cluster.all_reduce(partials) == [expected] * workers
        assert all(sums == expected[operation] for operation, sums in cluster.discarded)
        return cluster.counts

    faults = Faults(loss=0.1, burst_begin=0.05, burst_end=0.3, duplication=0.1, delay=(1, 60), straggle=0.01)
    schedule = Schedule(faults, faults, Pauses((100, 500), (10, 300)), (Restart(1, 400, 100),))
    assert counts(1) == counts(1) != counts(2)
