"""Faults of links between programs: each does what its settings say, as often as they say."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from support.lines import Faults, Line

COUNT = 20_000


def pass_through(faults, gap=1000):
    """Arrivals of packets that are sent one after the other, and what was counted but is not 0."""
    counts = Counter()
    line = Line(faults, random.Random(1), counts)
    return [line.arrivals(number * gap) for number in range(COUNT)], +counts


def check_share(count, chance, of=COUNT):
    """Within 6 standard deviations."""
    assert abs(count - of * chance) <= 6 * (of * chance * (1 - chance)) ** 0.5


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
