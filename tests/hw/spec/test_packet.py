"""The packet, against scapy's view of the frame and the table of bytes."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether

from p4sgd.hw.spec.aggregator import Outcome
from p4sgd.hw.spec.packet import (
    FRAME_BYTES,
    MOST_BYTES,
    MOST_MICRO_BATCHES,
    DropReason,
    KeyedDrop,
    MalformedPacketError,
    Packet,
    PacketType,
    most_micro_batches,
)

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
header = {
    "job": st.integers(0, 255),
    "slot": st.integers(0, 65535),
    "round": st.integers(0, 65535),
    "shard": st.integers(0, 255),
    "workers": st.integers(0, 255),
    "bitmap": st.integers(0, (1 << 32) - 1),
    "destination": st.integers(0, (1 << 48) - 1),
    "source": st.integers(0, (1 << 48) - 1),
}
packets = st.builds(Packet, type=st.sampled_from(PacketType), values=st.tuples(*[int32] * 8), **header)


WORK = [PacketType.PARTIAL, PacketType.FULL, PacketType.ACK, PacketType.CLEAR]


@st.composite
def keyed(draw):
    """Packets of version 2."""
    kind = draw(st.sampled_from(WORK))
    count = 8 * draw(st.integers(1, MOST_MICRO_BATCHES)) if kind in (PacketType.PARTIAL, PacketType.FULL) else 0
    values = st.lists(int32, min_size=count, max_size=count).map(tuple)
    keys = st.integers(0, (1 << 64) - 1)
    return draw(st.builds(Packet, type=st.just(kind), values=values, key=keys, version=st.just(2), **header))


def packet_of(kind, **fields):
    return Packet(kind, 0, 0, 0, 0, 1, 1, **fields)


def reason_of(frame, most=0):
    with pytest.raises(MalformedPacketError) as error:
        Packet.from_bytes(bytes(frame), most)
    return error.value.reason


@given(packets)
def test_bytes_are_where_the_table_says(packet):
    frame = packet.to_bytes()
    assert Packet.from_bytes(frame) == packet
    assert len(frame) == FRAME_BYTES
    ether = Ether(frame)
    assert ether.type == 0x88B5
    assert ether.dst == packet.destination.to_bytes(6, "big").hex(":")
    assert ether.src == packet.source.to_bytes(6, "big").hex(":")
    numbers = (packet.job, packet.slot, packet.round, packet.shard, packet.workers, packet.bitmap)
    assert frame[14] == 1 << 4 | packet.type
    assert struct.unpack(">xBHHBBI6s8i", frame[14:]) == (*numbers, bytes(6), *packet.values)


@given(keyed())
def test_frames_of_version_2_are_what_the_table_says(packet):
    frame = packet.to_bytes()
    assert Packet.from_bytes(frame, MOST_MICRO_BATCHES) == packet
    count = len(packet.values) // 8
    addresses = (address.to_bytes(6, "big") for address in (packet.destination, packet.source))
    numbers = (packet.job, packet.slot, packet.round, packet.shard, packet.workers, packet.bitmap, count)
    beginning = struct.pack(">6s6sHBBHHBBIH", *addresses, 0x88B5, 2 << 4 | packet.type, *numbers)
    rest = struct.pack(">Q", packet.key) + (struct.pack(f">{8 * count}i", *packet.values) if count else bytes(24))
    assert frame == beginning + struct.pack(">I", zlib.crc32(rest + beginning[14:])) + rest


def test_the_longest_frame_fills_an_ethernet_frame_or_a_datagram():
    """IPv4 and UDP take 28 of the 1,500 bytes that are also the Ethernet header's 14 more than ours."""
    assert most_micro_batches(MOST_BYTES) == most_micro_batches(9000) == MOST_MICRO_BATCHES == 46
    assert most_micro_batches(MOST_BYTES - 28) == 45
    assert most_micro_batches(71) == most_micro_batches(0) == 0


@st.composite
def damage(draw, bits):
    """Bits to flip of so many behind the EtherType: up to three anywhere, or some of 32 in a row, which are all of the
    check or none."""
    if draw(st.booleans()):
        return draw(st.sets(st.integers(0, bits - 1), min_size=1, max_size=3))
    first = draw(st.integers(0, bits - 32))
    burst = {first + bit for bit in draw(st.sets(st.integers(0, 31), min_size=1))}
    of_check = {bit for bit in burst if 14 * 8 <= bit < 18 * 8}
    return burst - of_check or of_check


@given(keyed(), st.data())
def test_damage_behind_the_addresses_is_found(packet, data):
    """Also if it makes a packet of version 1 or a probe of it."""
    frame = bytearray(packet.to_bytes())
    for bit in data.draw(damage(8 * (len(frame) - 14))):
        frame[14 + bit // 8] ^= 1 << bit % 8
    assert reason_of(frame, MOST_MICRO_BATCHES) in {*DropReason, KeyedDrop.CHECK}


def test_more_micro_batches_than_are_taken_make_a_frame_too_long():
    """For who speaks version 1 only, any."""
    frame = packet_of(PacketType.PARTIAL, values=(0,) * 24, version=2, key=5).to_bytes()
    assert Packet.from_bytes(frame, 3).micro_batches == 3
    assert reason_of(frame, 2) is reason_of(frame) is DropReason.LONG
    assert reason_of(packet_of(PacketType.ACK, values=(), version=2, key=0).to_bytes()) is DropReason.VERSION


@pytest.mark.parametrize("version", range(16))
def test_probes_have_their_layout_in_every_version(version):
    packet = packet_of(PacketType.PROBE, values=tuple(range(8)), version=version)
    assert len(packet.to_bytes()) == 64
    assert Packet.from_bytes(packet.to_bytes()) == Packet.from_bytes(packet.to_bytes(), 46) == packet
    unknown = packet_of(7)
    assert Packet.from_bytes(unknown.to_bytes()) == unknown, "left to who gets it"


def test_an_echo_of_version_2_tells_how_many_micro_batches_are_taken():
    packet = packet_of(PacketType.ECHO, values=tuple(range(8)), version=2, most=46)
    assert packet.to_bytes()[26:32] == bytes([0, 46, 0, 0, 0, 0])
    assert Packet.from_bytes(packet.to_bytes(), 46) == packet
    assert reason_of(packet.to_bytes()) is DropReason.RESERVED


VALUES_2 = {"type": PacketType.PARTIAL, "version": 2, "key": 0, "values": (0,) * 16}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        *(({name: 1 << 32}, f"{name} must be") for name in ("job", "slot", "round", "shard", "workers", "bitmap")),
        (VALUES_2 | {"key": 1 << 64}, "must be"),
        (VALUES_2 | {"values": (0,) * 9 + (1 << 31,) + (0,) * 6}, "must be"),
        (VALUES_2 | {"values": ()}, "values"),
        (VALUES_2 | {"values": (0,) * 12, "type": PacketType.FULL}, "values"),
        (VALUES_2 | {"values": (0,) * 376}, "values"),
        (VALUES_2 | {"values": (0,) * 8, "type": PacketType.ACK}, "values"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields, says):
    known = {"type": PacketType.ACK, "job": 0, "slot": 0, "round": 0, "shard": 0, "workers": 1, "bitmap": 1}
    with pytest.raises(ValueError, match=says):
        Packet(**known | fields).to_bytes()


def test_reasons_have_numbers_below_those_of_outcomes():
    numbers = [*DropReason, *KeyedDrop]
    assert [int(drop) for drop in numbers] == list(range(len(numbers)))
    assert max(numbers) < min(Outcome)
