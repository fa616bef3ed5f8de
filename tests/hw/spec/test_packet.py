"""The packet, against scapy's view of the frame and the table of bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether

from p4sgd.hw.spec.packet import FIELDS, FRAME_BYTES, MalformedPacketError, Packet, PacketType

packets = st.builds(
    Packet,
    type=st.sampled_from(PacketType),
    job=st.integers(0, 255),
    slot=st.integers(0, 65535),
    round=st.integers(0, 65535),
    shard=st.integers(0, 255),
    workers=st.integers(0, 255),
    bitmap=st.integers(0, (1 << 32) - 1),
    values=st.tuples(*[st.integers(-(1 << 31), (1 << 31) - 1)] * 8),
    destination=st.integers(0, (1 << 48) - 1),
    source=st.integers(0, (1 << 48) - 1),
)


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


def test_unknown_types_are_left_to_who_gets_them():
    packet = Packet(7, 0, 0, 0, 0, 1, 1)
    assert Packet.from_bytes(packet.to_bytes()) == packet


def test_other_lengths_are_refused():
    with pytest.raises(MalformedPacketError, match="64 bytes"):
        Packet.from_bytes(bytes(63))


@pytest.mark.parametrize("field", ["job", "slot", "round", "shard", "workers", "bitmap"])
def test_values_that_do_not_fit_are_refused(field):
    values = {"type": PacketType.ACK, "job": 0, "slot": 0, "round": 0, "shard": 0, "workers": 1, "bitmap": 1}
    with pytest.raises(ValueError, match=f"{field} must be"):
        Packet(**values | {field: 1 << 32}).to_bytes()
