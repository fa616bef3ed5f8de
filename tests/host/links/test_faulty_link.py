"""Faults of a link, only in the direction that was named; tests/sim/network/test_faults.py counts them."""

from itertools import pairwise

import pytest
from support.bench import default_seed

from p4sgd.host.errors import UserError
from p4sgd.host.links.faulty import FaultyLink

FRAMES = [index.to_bytes(4, "big") for index in range(20_000)]


class Wire:
    lost, address, most_bytes = 3, 5, 1514
    fileno = close = reaches = None

    def __init__(self, coming=()):
        self.sent = []
        self.send = self.sent.append
        self.coming = list(reversed(coming))

    def receive(self):
        return self.coming.pop() if self.coming else None


def both_ways(chances, seed=0):
    """What arrives of all frames that are sent, and of all that come."""
    wire = Wire(FRAMES)
    link = FaultyLink(wire, chances, seed)
    for frame in FRAMES:
        link.send(frame)
    received = list(iter(link.receive, None))
    assert (link.lost, link.address) == (3, 5)
    return wire.sent, received


@pytest.mark.parametrize(
    ("chances", "up", "down"),
    [
        ({}, 0, 0),
        ({"up_loss": 0.1}, 0.1, 0),
        ({"down_loss": 0.1}, 0, 0.1),
        ({"link_loss": 0.1}, 0.1, 0.1),
        ({"link_loss": 0.1, "down_loss": 0.0}, 0.1, 0),  # a chance for a direction takes the place of that for both
    ],
)
def test_losses_are_of_the_direction_that_is_named(chances, up, down):
    for arrived, chance in zip(both_ways(chances, default_seed()), (up, down), strict=True):
        assert abs(len(FRAMES) - len(arrived) - chance * len(FRAMES)) <= (500 if chance else 0)
        assert arrived == sorted(set(arrived))


def test_reordered_frames_are_overtaken_by_the_next():
    arrived, _ = both_ways({"up_reordering": 0.1}, default_seed())
    late = [index for index, (one, next_) in enumerate(pairwise(arrived)) if one > next_]
    assert sorted(arrived)[:-1] == FRAMES[: len(arrived) - 1], "but for the last, which may still be held"
    assert 1_500 < len(late) < 2_100
    for index in late:
        assert int.from_bytes(arrived[index], "big") == int.from_bytes(arrived[index + 1], "big") + 1


def test_a_seed_decides_all_and_bursts_end():
    chances = dict.fromkeys(("link_loss", "link_duplication", "link_reordering"), 0.2)
    assert both_ways(chances, 7) == both_ways(chances, 7) != both_ways(chances, 8)
    with pytest.raises(UserError, match="--fault burst_begin without burst_end"):
        FaultyLink(Wire(), {"link_burst_begin": 0.1}, 0)


def test_changed_frames_keep_their_addresses():
    """One to eight bits of the share that was told are flipped."""
    wire, frame = Wire(), bytes([*range(14), 0x21, *range(15, 80)])  # version 2 has a check
    link = FaultyLink(wire, {"up_change": 0.25}, default_seed())
    for _ in range(4000):
        link.send(frame)
    flipped = [int.from_bytes(frame) ^ int.from_bytes(sent) for sent in wire.sent]
    assert 800 < sum(map(bool, flipped)) < 1200
    assert {each.bit_count() for each in flipped} == set(range(9))
    assert not any(each >> 8 * (80 - 14) for each in flipped)
    others = [frame[:14], frame[:14] + bytes([0x11]) + frame[15:]]
    spared = FaultyLink(wire, {"link_change": 1.0}, 0)
    for other in others:
        spared.send(other)
    assert wire.sent[-2:] == others
