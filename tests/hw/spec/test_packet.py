"""The packet, against scapy's view of the frame and the table of bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether

from p4sgd.hw.spec.aggregator import Outcome
from p4sgd.hw.spec.packet import (
    FIELDS,
    FRAME_BYTES,
    KEYED_FIELDS,
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


def keyed_of(kind, micro_batches):
    """Packets of version 2."""
    count = 8 * micro_batches if kind in (PacketType.PARTIAL, PacketType.FULL) else 0
    values = st.lists(int32, min_size=count, max_size=count).map(tuple)
    keys = st.integers(0, (1 << 64) - 1)
    return st.builds(Packet, type=st.just(kind), values=values, key=keys, version=st.just(2), **header)


WORK = [PacketType.PARTIAL, PacketType.FULL, PacketType.ACK, PacketType.CLEAR]
keyed = st.tuples(st.sampled_from(WORK), st.integers(1, MOST_MICRO_BATCHES)).flatmap(lambda both: keyed_of(*both))


@given(packets)
def test_round_trip(packet):
    assert Packet.from_bytes(packet.to_bytes()) == packet


@given(packets)
def test_bytes_are_where_the_table_says(packet):
    frame = packet.to_bytes()
    assert len(frame) == FRAME_BYTES
    ether = Ether(frame)
    assert ether.type == 0x88B5
    assert ether.dst == packet.destination.to_bytes(6, "big").hex(":")
    assert ether.src == packet.source.to_bytes(6, "big").hex(":")
    assert frame[14] == 1 << 4 | packet.type
    assert struct.unpack(">xBHHBBI6s8i", frame[14:]) == (
        packet.job,
        packet.slot,
        packet.round,
        packet.shard,
        packet.workers,
        packet.bitmap,
        bytes(6),
        *packet.values,
    )


def test_fields_tile_the_frame():
    assert [field.offset_bits for field in FIELDS[1:]] == [field.offset_bits + field.bits for field in FIELDS[:-1]]
    assert FIELDS[-1].offset_bits + FIELDS[-1].bits == 8 * FRAME_BYTES


@pytest.mark.parametrize(("byte", "what"), [(12, "ethertype"), (14, "version"), (26, "reserved"), (31, "reserved")])
def test_broken_frames_are_refused(byte, what):
    frame = bytearray(Packet(PacketType.ACK, 0, 0, 0, 0, 1, 1).to_bytes())
    frame[byte] ^= 0x80
    with pytest.raises(MalformedPacketError, match=what):
        Packet.from_bytes(bytes(frame))
    with pytest.raises(MalformedPacketError, match="64 bytes"):
        Packet.from_bytes(bytes(63))


def test_unknown_types_are_left_to_who_gets_them():
    packet = Packet(7, 0, 0, 0, 0, 1, 1)
    assert Packet.from_bytes(packet.to_bytes()) == packet


# -- version 2 -----------------------------------------------------------------------------------------------------


@given(keyed)
def test_frames_of_version_2_are_what_the_table_says(packet):
    frame = packet.to_bytes()
    assert Packet.from_bytes(frame, MOST_MICRO_BATCHES) == packet
    count = len(packet.values) // 8
    assert len(frame) == (40 + 32 * count if count else 64)
    beginning = struct.pack(
        ">6s6sHBBHHBBIHIQ",
        packet.destination.to_bytes(6, "big"),
        packet.source.to_bytes(6, "big"),
        0x88B5,
        2 << 4 | packet.type,
        *(packet.job, packet.slot, packet.round, packet.shard, packet.workers, packet.bitmap),
        *(count, 0, packet.key),
    )
    assert frame == beginning + (struct.pack(f">{8 * count}i", *packet.values) if count else bytes(24))


def test_fields_of_version_2_begin_as_those_of_version_1():
    shared = FIELDS[:11]
    assert KEYED_FIELDS[: len(shared)] == shared
    assert [field.name for field in shared][-1] == "bitmap"
    assert [(field.name, field.offset_bits // 8) for field in KEYED_FIELDS[len(shared) :]] == [
        ("micro_batches", 26),
        ("reserved", 28),
        ("key", 32),
    ]


def test_the_longest_frame_fills_an_ethernet_frame_or_a_datagram():
    """IPv4 and UDP take 28 of the 1,500 bytes that are also the Ethernet header's 14 more than ours."""
    assert most_micro_batches(MOST_BYTES) == MOST_MICRO_BATCHES == 46
    assert most_micro_batches(MOST_BYTES - 28) == 45
    assert most_micro_batches(9000) == 46
    assert most_micro_batches(71) == most_micro_batches(0) == 0


def test_who_speaks_version_1_only_takes_no_packet_of_version_2():
    packet = Packet(PacketType.ACK, 0, 0, 0, 0, 1, 1, (), version=2, key=0)
    with pytest.raises(MalformedPacketError, match="version is 0x2, not 1") as error:
        Packet.from_bytes(packet.to_bytes())
    assert error.value.reason is DropReason.VERSION
    long = Packet(PacketType.PARTIAL, 0, 0, 0, 0, 1, 1, (0,) * 16, version=2, key=0)
    with pytest.raises(MalformedPacketError, match="64 bytes, not 104"):
        Packet.from_bytes(long.to_bytes())


@pytest.mark.parametrize(
    ("byte", "to", "reason"),
    [
        (12, 0, DropReason.ETHERTYPE),
        (14, 0x31, DropReason.LONG),  # of no other version is a frame longer than 64 bytes
        (14, 0x23, DropReason.LONG),
        (27, 1, DropReason.LONG),
        (27, 3, DropReason.RUNT),
        (27, 0, DropReason.LONG),
        (26, 1, DropReason.LONG),
        (28, 1, DropReason.RESERVED),
        (31, 1, DropReason.RESERVED),
    ],
)
def test_broken_frames_of_version_2_are_refused(byte, to, reason):
    frame = bytearray(Packet(PacketType.PARTIAL, 0, 0, 0, 0, 1, 1, (0,) * 16, version=2, key=5).to_bytes())
    frame[byte] = to
    with pytest.raises(MalformedPacketError) as error:
        Packet.from_bytes(bytes(frame), MOST_MICRO_BATCHES)
    assert error.value.reason is reason


def test_more_micro_batches_than_are_taken_make_a_frame_too_long():
    frame = Packet(PacketType.PARTIAL, 0, 0, 0, 0, 1, 1, (0,) * 24, version=2, key=5).to_bytes()
    assert Packet.from_bytes(frame, 3).micro_batches == 3
    with pytest.raises(MalformedPacketError) as error:
        Packet.from_bytes(frame, 2)
    assert error.value.reason is DropReason.LONG


@pytest.mark.parametrize("version", range(16))
def test_probes_have_their_layout_in_every_version(version):
    packet = Packet(PacketType.PROBE, 1, 2, 0, 0, 1, 1, tuple(range(8)), version=version)
    assert len(packet.to_bytes()) == 64
    assert Packet.from_bytes(packet.to_bytes()) == Packet.from_bytes(packet.to_bytes(), 46) == packet


def test_an_echo_of_version_2_tells_how_many_micro_batches_are_taken():
    packet = Packet(PacketType.ECHO, 1, 2, 0, 0, 1, 1, tuple(range(8)), version=2, most=46)
    assert packet.to_bytes()[26:32] == bytes([0, 46, 0, 0, 0, 0])
    assert Packet.from_bytes(packet.to_bytes(), 46) == packet
    with pytest.raises(MalformedPacketError, match="reserved"):
        Packet.from_bytes(packet.to_bytes())


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
