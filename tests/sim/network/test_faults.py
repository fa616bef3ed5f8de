"""Faults of links between programs: each does what its settings say, as often as they say."""

import random
from collections import Counter
from itertools import accumulate, pairwise

import pytest
from support.aggregator_model import Aggregator
from support.faulty_cluster import FaultyCluster, Pauses, Restart, Schedule

from p4sgd.sim.network.endpoint import Endpoint
from p4sgd.sim.network.faults import Bursts, Faults, Line

COUNT = 20_000


def pass_through(faults, gap=1000):
    """Arrivals of packets that are sent one after the other, and what was counted."""
    counts = Counter()
    line = Line(faults, random.Random(1), counts)
    return [line.arrivals(number * gap) for number in range(COUNT)], counts


def check_share(count, chance, of=COUNT):
    """Within 6 standard deviations."""
    assert abs(count - of * chance) <= 6 * (of * chance * (1 - chance)) ** 0.5


def run(schedule, seed, workers=3, operations=40):
    """A cluster after a run, in which all sums were right."""
    rng = random.Random(seed)
    partials = [[[rng.randint(-1000, 1000) for _ in range(8)] for _ in range(operations)] for _ in range(workers)]
    cluster = FaultyCluster(
        [Endpoint(2, shard=shard, workers=workers) for shard in range(workers)], Aggregator(2), schedule, seed
    )
    cluster.begin_job(1, 1)
    expected = [tuple(map(sum, zip(*operation, strict=True))) for operation in zip(*partials, strict=True)]
    assert cluster.all_reduce(partials) == [expected] * workers
    assert all(sums == expected[operation] for operation, sums in cluster.discarded)
    return cluster


def test_a_good_line_takes_its_time_and_no_more():
    came, counts = pass_through(Faults(delay=(7, 7)))
    assert came == [[1000 * number + 7] for number in range(COUNT)]
    assert counts == {"packets": COUNT}


@pytest.mark.parametrize(("name", "fate"), [("loss", "lost"), ("corruption", "corrupted")])
def test_loses_the_share_it_was_told(name, fate):
    came, counts = pass_through(Faults(**{name: 0.1}))
    check_share(counts[fate], 0.1)
    assert sum(map(len, came)) == COUNT - counts[fate]
    assert set(counts) == {"packets", fate}


def test_repeats_the_share_it_was_told():
    came, counts = pass_through(Faults(duplication=0.1))
    check_share(counts["duplicated"], 0.1)
    assert Counter(map(len, came)) == {1: COUNT - counts["duplicated"], 2: counts["duplicated"]}


def test_bursts_begin_and_end_and_lose_as_told():
    came, counts = pass_through(Faults(bursts=Bursts(begin=0.01, end=0.1, loss=0.99)))
    share = 0.99 * 0.01 / (0.01 + 0.1)
    # Losses come together, so there is less to count than packets: a tenth of them, at a guess.
    assert abs(counts["lost"] - share * COUNT) < 6 * (10 * 2 * share * COUNT) ** 0.5
    after_loss = Counter(bool(after) for before, after in pairwise(came) if not before)
    check_share(after_loss[False], 0.9 * 0.99, after_loss.total())


def test_a_wide_delay_reorders_and_jitter_does_not():
    came, counts = pass_through(Faults(delay=(10, 50)), gap=5)
    times = [time for (time,) in came]
    assert {time - 5 * number for number, time in enumerate(times)} == set(range(10, 51))
    latest = accumulate(times, max)
    assert counts["reordered"] == sum(time < before for before, time in zip(latest, times[1:], strict=False))
    came, counts = pass_through(Faults(delay=(10, 50), in_order=True), gap=5)
    times = [time for (time,) in came]
    assert times == sorted(times)
    assert all(10 <= time - 5 * number <= 50 for number, time in enumerate(times))
    assert counts == {"packets": COUNT}


def test_stragglers_are_late():
    came, counts = pass_through(Faults(straggle=0.1, straggle_delay=1500))
    late = sum(time == 1000 * number + 1510 for number, (time,) in enumerate(came))
    check_share(late, 0.1)
    assert counts["reordered"] > 0.8 * late  # not by one that is late as well


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Faults(loss=1.0),
        lambda: Faults(corruption=-0.1),
        lambda: Faults(duplication=2),
        lambda: Faults(delay=(0, 5)),
        lambda: Faults(delay=(6, 5)),
        lambda: Bursts(begin=0.1, end=0.0),
        lambda: Pauses((5, 4), (1, 1)),
        lambda: Pauses((5, 5), (0, 1)),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        wrong()


def test_one_seed_gives_one_run():
    faults = Faults(loss=0.1, bursts=Bursts(0.05, 0.3), duplication=0.1, delay=(1, 60), straggle=0.01)
    schedule = Schedule(faults, faults, Pauses((100, 500), (10, 300)), (Restart(1, 400, 100),))
    first, again, other = (run(schedule, seed) for seed in (1, 1, 2))
    assert first.counts == again.counts
    assert first.counts != other.counts
