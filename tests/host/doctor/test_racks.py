"""Which link between two levels of aggregators is at fault, by what their counters and slots say."""

import re
from types import SimpleNamespace

import pytest

from p4sgd.host.aggregators.controller import SlotView
from p4sgd.host.doctor.finding import Result
from p4sgd.host.doctor.racks import count_parts, examine_racks
from p4sgd.hw.spec.job import Job, Member

ADDRESSES = (5, 6, 7)
COUNTERS = ("PARTIALS_TO_PARENT", "FULLS_TO_ALL", "DROPPED_SOURCE")


class Part:
    def __init__(self):
        self.counts, self.seen = dict.fromkeys(COUNTERS, 5), 0

    def counters(self):
        return dict(self.counts)

    def served(self):
        return {3: Job(7, tuple(Member(mac, 0) for mac in (ADDRESSES[0], ADDRESSES[2], 9)), 1 << 40, 1)}

    def read_slots(self, place, slots):
        assert (place, slots) == (3, range(2))
        return [SlotView(1, self.seen, 0), SlotView(0, 0, 0)]


def examined(top, *racks, seen=0):
    """Findings about three racks, of which the second has no workers there, after counters have gone up by so much."""
    parts = {"top": Part(), **{f"rack {rack}": Part() for rack in range(3)}}
    cluster = SimpleNamespace(racks=[SimpleNamespace(address=address) for address in ADDRESSES])
    tree = SimpleNamespace(parts=parts, cluster=cluster, slots=2)
    before = count_parts(tree)
    parts["top"].seen = seen
    for part, moved in zip((parts["top"], parts["rack 0"], parts["rack 2"]), (top, *racks), strict=True):
        for name, count in moved.items():
            part.counts[name] += count
    return examine_racks(tree, before)


WELL = {"PARTIALS_TO_PARENT": 9, "FULLS_TO_ALL": 9}
ASKS = {"PARTIALS_TO_PARENT": 9}
TOLD = {"FULLS_TO_ALL": 9}


@pytest.mark.parametrize(
    ("top", "rack", "seen", "says"),
    [
        ({}, ASKS, 0b01, r"nothing that the aggregator of rack 2 sends comes to the top .*: the link .* is down"),
        ({"DROPPED_SOURCE": 9}, ASKS, 0b01, r"the top aggregator drops what .* rack 2 sends: .* another port"),
        (TOLD, ASKS | {"DROPPED_SOURCE": 9}, 0b111, r"the aggregator of rack 2 drops the top .* port than its uplink"),
        (TOLD, ASKS, 0b111, r"the aggregator of rack 2 gets no answer, .*: the way down is dead"),
    ],
)
def test_a_link_that_is_at_fault(top, rack, seen, says):
    one, two = examined(top, WELL, rack, seen=seen)
    assert (one.check, one.result, one.evidence["rack"]) == ("rack", Result.PASSED, 0)
    assert (two.check, two.result, two.evidence["rack"]) == ("rack", Result.FAILED, 2)
    assert re.match(says, two.problem), two.problem
    assert "racks[2]" in two.remedy


@pytest.mark.parametrize(
    ("rack", "seen"), [(WELL, 0b11), ({}, 0b01), (ASKS, 0b10), (ASKS | {"DROPPED_SOURCE": 9}, 0b10)]
)
def test_a_rack_that_is_well_or_waits_for_others(rack, seen):
    """Its own workers, or other racks. Meanwhile other jobs have sums, and strangers send packets."""
    assert [each.result for each in examined(TOLD, WELL, rack, seen=seen)] == [Result.PASSED] * 2
