"""Faults of the Python network: each does what its settings say, as often as they say, and to its direction only."""

import random
from collections import Counter
from itertools import accumulate, pairwise

import pytest
from support.aggregator_model import Aggregator
from support.faulty_cluster import FaultyCluster, Pauses, Restart, Schedule, StalledError

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


def run(schedule, seed=1, workers=3, operations=40, **limits):
    """A cluster after a run, in which all sums were right."""
    rng = random.Random(seed)
    partials = [[[rng.randint(-1000, 1000) for _ in range(8)] for _ in range(operations)] for _ in range(workers)]
    cluster = FaultyCluster(
        [Endpoint(2, shard=shard, workers=workers) for shard in range(workers)], Aggregator(2), schedule, seed
    )
    cluster.begin_job(1, 1)
    expected = [tuple(map(sum, zip(*operation, strict=True))) for operation in zip(*partials, strict=True)]
    assert cluster.all_reduce(partials, **limits) == [expected] * workers
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


def test_bursts_of_no_loss_lose_nothing():
    assert all(pass_through(Faults(bursts=Bursts(begin=0.5, end=0.5, loss=0.0)))[0])


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


@pytest.mark.parametrize(("direction", "reaches"), [("up", False), ("down", True)])
def test_a_direction_has_its_own_faults(direction, reaches):
    switch = Aggregator(2)
    schedule = Schedule(**{direction: Faults(loss=1 - 1e-9)})
    cluster = FaultyCluster([Endpoint(2, shard=shard, workers=2) for shard in range(2)], switch, schedule, 1)
    cluster.begin_job(1, 1)
    with pytest.raises(StalledError):
        cluster.all_reduce([[[1] * 8] * 4] * 2, time_limit=5000)
    assert bool(switch.accepted) == reaches
    assert cluster.counts["resent"] > 0


def test_one_seed_gives_one_run():
    faults = Faults(loss=0.1, bursts=Bursts(0.05, 0.3), duplication=0.1, delay=(1, 60), straggle=0.01)
    schedule = Schedule(faults, faults, Pauses((100, 500), (10, 300)), (Restart(1, 400, 100),))
    first, again, other = (run(schedule, seed) for seed in (1, 1, 2))
    assert first.counts == again.counts
    assert first.counts != other.counts


def test_paused_workers_hold_the_others_up_and_lose_nothing():
    quick, slow = run(Schedule()), run(Schedule(pauses=Pauses((200, 300), (400, 500))))
    assert slow.counts["pauses"] >= 3 * 2
    assert slow._events.now > 2 * quick._events.now
    assert slow.counts["lost"] == 0


def test_a_paused_worker_takes_what_waited_and_sends_nothing_meanwhile():
    cluster = run(Schedule(pauses=Pauses((100, 100), (1000, 1000))), workers=1, operations=10)
    assert cluster.counts["pauses"] >= 1
    assert cluster._events.now > 1000  # ten operations take 500


def test_a_restarted_worker_has_the_job_begun_anew_in_the_next_number():
    faults = Faults(duplication=0.2, delay=(1, 60), straggle=0.05)
    cluster = run(Schedule(faults, faults, restarts=(Restart(1, 300, 200), Restart(2, 400, 200))))
    assert cluster.counts["restarts"] == 2
    assert [endpoint.job for endpoint in cluster._endpoints] == [3, 3, 3]
    assert cluster.discarded, "some had sums that others had not"


def impatient(schedule, *resends, operations=40):
    """A cluster of workers that give up after so many resends, and their partials."""
    ends = [Endpoint(2, shard=n, workers=len(resends), resends=limit) for n, limit in enumerate(resends)]
    cluster = FaultyCluster(ends, Aggregator(2), schedule, seed=1)
    cluster.begin_job(1, 1)
    return cluster, [[[number + worker] * 8 for number in range(operations)] for worker in range(len(ends))]


def test_a_worker_that_gives_up_has_the_job_begun_anew_in_the_next_number():
    faults = Faults(loss=0.4, duplication=0.2, delay=(1, 60), straggle=0.05)
    cluster, partials = impatient(Schedule(faults, faults), 1, 1, 1)
    got = cluster.all_reduce(partials)
    assert got == [[(3 * number + 3,) * 8 for number in range(40)]] * 3
    job = cluster._endpoints[0].job
    assert 1 < job <= 1 + cluster.counts["given up"], "two may have, before the host knew of one"
    assert cluster.discarded, "some had sums that others had not"


def test_workers_that_wait_for_too_short_a_time_get_more():
    """The last one has given up whenever its answers come, at first."""
    cluster, partials = impatient(Schedule(down=Faults(delay=(900, 900))), 0, 1)
    assert cluster.all_reduce(partials) == [[(2 * number + 1,) * 8 for number in range(40)]] * 2
    assert cluster.counts["given up"] > 1
    assert [endpoint.resends for endpoint in cluster._endpoints] == [0, 1 << cluster.counts["given up"]]
    assert len(cluster.discarded) > 1, "the other had its sums"


def test_beginning_anew_in_the_old_number_is_caught():
    """A test of the test: packets of before the restart are still under way after it."""

    class SameNumber(FaultyCluster):
        def begin_job(self, job, first_round):
            super().begin_job(1, first_round)

    faults = Faults(duplication=0.3, delay=(1, 60), straggle=0.1, straggle_delay=300)
    schedule = Schedule(faults, faults, restarts=tuple(Restart(0, time, 50) for time in range(200, 2000, 200)))
    bad = 0
    for seed in range(20):
        rng = random.Random(seed)
        partials = [[[rng.getrandbits(20)] * 8 for _ in range(40)] for _ in range(3)]
        cluster = SameNumber([Endpoint(2, shard=n, workers=3) for n in range(3)], Aggregator(2), schedule, seed)
        cluster.begin_job(1, 1)
        try:
            got = cluster.all_reduce(partials, time_limit=50_000)
            expected = [(sum(part[0] for part in operation),) * 8 for operation in zip(*partials, strict=True)]
            bad += got != [expected] * 3
        except StalledError:
            bad += 1
    assert bad >= 5
