"""The P4 headers say what the specification says, and those that are committed are those."""

import re
from pathlib import Path

import pytest

from p4sgd.build.generate.switch_program import HEADERS_COMMAND, headers, sizes
from p4sgd.hw.spec.aggregator import MAX_JOBS, AggregatorConfig, Outcome, group_of
from p4sgd.hw.spec.packet import VERDICT, DropReason, EchoValue, PacketType

COMMITTED = Path(__file__).parents[3] / "hw" / "switch" / "p4sgd_headers.p4"


def test_the_committed_headers_are_those_of_the_specification():
    assert COMMITTED.read_text() == headers(), f"run {HEADERS_COMMAND}"


def test_numbers():
    found = dict(re.findall(r"^const \S+ (\w+) = (\w+);", COMMITTED.read_text(), re.MULTILINE))
    numbers = {name: int(value, 0) for name, value in found.items()}
    expected = {kind.name: kind.value for kind in PacketType} | {outcome.name: outcome.value for outcome in Outcome}
    expected |= {f"DROPPED_{drop.name}": drop.value for drop in DropReason}
    expected |= {f"FAILS_{check.name}": 1 << bit for bit, check in enumerate(VERDICT)}
    expected |= {"FRAME_BYTES": 64, "ETHERTYPE": 0x88B5, "VERSION": 1, "BROADCAST": 0xFFFF_FFFF_FFFF}
    expected |= {"FLOOD_GROUP": 16, "JOB_GROUPS": 1, "NODE_RID": 1}
    assert numbers == expected
    assert [group_of(place) for place in range(MAX_JOBS)] == [numbers["JOB_GROUPS"] << 3 | place for place in range(8)]
    values = dict(re.findall(r"^#define ECHO_(\w+) value(\d)", COMMITTED.read_text(), re.MULTILINE))
    assert {name: int(value) for name, value in values.items()} == {v.name: v.value for v in EchoValue if v}


def test_outcomes_are_apart():
    assert not {*map(int, DropReason)} & {*map(int, Outcome)}
    bits = int(re.search(r"typedef bit<(\d+)> outcome_t;", COMMITTED.read_text())[1])
    assert max(*DropReason, *Outcome) < 1 << bits
    assert 1 << int(re.search(r"typedef bit<(\d+)> place_t;", COMMITTED.read_text())[1]) >= MAX_JOBS


@pytest.mark.parametrize(("slots", "bits"), [(2, 1), (4096, 12), (65536, 16)])
def test_sizes(slots, bits):
    found = dict(re.findall(r"#define (\w+) (\d+)", sizes(AggregatorConfig(slots=slots, jobs=2), "a command")))
    assert {name: int(value) for name, value in found.items()} == {"SLOTS": slots, "SLOT_BITS": bits, "JOBS": 2}
