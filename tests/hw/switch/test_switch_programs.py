"""The switch's programs, interpreted, but for what tests/conformance asks of them."""

from collections import Counter
from dataclasses import replace

import pytest
from support.p4_switch import InterpretedSwitch
from support.switch import MAC, from_worker, job_of

from p4sgd.hw.spec.aggregator import FLOOD_GROUP, AggregatorConfig
from p4sgd.hw.spec.packet import FRAME_BYTES, DropReason, Packet, PacketType

CONFIG = AggregatorConfig(slots=4, jobs=2)


@pytest.mark.parametrize(("architecture", "global_rid"), [("v1model", 0), ("tna", 0), ("tna", 0xFFFF)])
def test_other_protocols_are_forwarded(tmp_path, architecture, global_rid):
    """To one port or flooded, but never back where it came from: there its station has seen it."""
    switch = InterpretedSwitch(tmp_path, architecture, CONFIG)
    switch.global_rid = global_rid
    switch.groups[FLOOD_GROUP] = {0, 3, 7, 40}
    table = switch.program.tables["forwarding"].entries
    table[(0x0200_0000_0001,)] = "forward", [7]
    table[(0x0200_0000_0002,)] = "drop", []
    for size in (20, 46, 1500):
        for port in (0, 3, 7, 40, 5):
            for destination, expected in ((1, {7} - {port}), (2, set()), (3, {0, 3, 7, 40} - {port})):
                frame = (0x0200_0000_0000 | destination).to_bytes(6, "big") + bytes(6) + b"\x08\x00"
                frame = (frame + bytes(range(250)) * 6)[: 14 + size]
                left = switch.receive(frame, port)
                assert left == ((frame, sum(1 << out for out in expected)) if expected else None)
    assert not switch.program.counts


@pytest.mark.parametrize(("architecture", "longer"), [("v1model", DropReason.LONG), ("tna", DropReason.VERSION)])
def test_version_2_is_dropped(tmp_path, architecture, longer):
    """Whatever it says, nothing of it is added; a probe is answered in version 1."""
    switch = InterpretedSwitch(tmp_path, architecture, CONFIG)
    switch.set_mac(MAC)
    switch.begin(0, job_of(1, ports=[3]), 0)
    where = 0, 0, 0, 1  # slot, round, shard and workers
    partials = [from_worker(PacketType.PARTIAL, *where, (1,) * 8 * n, key=0).to_bytes() for n in (1, 8, 46)]
    acknowledgement = from_worker(PacketType.ACK, *where, key=0).to_bytes()
    assert [len(frame) for frame in (*partials, acknowledgement)] == [72, 296, 1512, FRAME_BYTES]
    for frame in (*partials, acknowledgement):
        assert switch.receive(frame, 3) is None
    outcomes = switch.outcomes()
    drops = Counter([longer] * 3 + [DropReason.VERSION])
    assert {drop: outcomes[drop] for drop in DropReason if outcomes[drop]} == drops
    answer, ports = switch.receive(replace(from_worker(PacketType.PROBE, *where), version=2).to_bytes(), 3)
    assert ports == 1 << 3
    echo = Packet.from_bytes(answer)
    assert (echo.version, echo.round, echo.bitmap) == (1, 65535, 0), "the slot is fresh"
