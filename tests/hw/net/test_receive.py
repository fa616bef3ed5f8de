"""Packets in hardware: FrameCheck against the codec in Python, frame by frame, and the layout of their fields."""

import itertools
import random

import cocotb
import pytest
from amaranth.hdl import Fragment, Module, Signal
from cocotb.triggers import RisingEdge
from support.bench import run_bench, start
from support.frames import KEEP, beat
from support.signals import drive

from p4sgd.hw.net.packet import PACKET, FrameCheck, build, parse
from p4sgd.hw.spec.packet import (
    ETHERTYPE,
    FIELDS,
    FRAME_BYTES,
    VERSION,
    DropReason,
    MalformedPacketError,
    Packet,
    PacketType,
)


def random_fields(**known):
    """Every field by name: right where the format says what it is, else random."""
    drawn = {field.name: random.choice([0, (1 << field.bits) - 1, random.getrandbits(field.bits)]) for field in FIELDS}
    return drawn | {"ethertype": ETHERTYPE, "version": VERSION, "reserved": 0} | known


def to_bytes(fields):
    number = 0
    for name, _, bits, _ in FIELDS:
        number = number << bits | fields[name]
    return number.to_bytes(FRAME_BYTES, "big")


def parsed(word):
    """The fields of the output ``packet``, whose layout is that of PACKET with the values at its end."""
    found = {}
    for name, _, bits, _ in FIELDS:
        found[name], word = word & (1 << bits) - 1, word >> bits
    return found


async def watch(dut, items, cycles):
    """Note each received frame as ``(fault, fields)``, None being no fault; check what must hold in every cycle."""
    came = begins = inside = False
    held = None
    for cycle in itertools.count():
        await RisingEdge(dut.clk)
        assert dut.frames__ready.value, "always ready"
        assert dut.received.value == begins, "a cycle after a frame has begun"
        shown = bool(dut.good.value), int(dut.packet.value)
        if dut.received.value:
            items.append((None if shown[0] else DropReason(int(dut.drop.value)), parsed(shown[1])))
            cycles.append(cycle)
        elif not came:  # inside of a longer frame, `good` means nothing
            assert shown == held or held is None, "packet and good stay"
        held, came = shown, bool(dut.frames__valid.value)
        begins = came and not inside
        if came:
            inside = not int(dut.frames__payload.value) >> 9 * FRAME_BYTES


def any_frame(beats, keep):
    """Beats of a frame of any length, well-formed but for that if it were one beat and ``keep`` whole; what it is."""
    frame = [random_fields() for _ in range(beats)]
    fault = DropReason.LONG if beats > 1 else DropReason.RUNT if keep != KEEP else None
    items = [beat(to_bytes(fields), last=0) for fields in frame[:-1]]
    return [*items, beat(to_bytes(frame[-1]), keep=keep)], (fault, frame[0])


def one_beat(fields):
    """A frame of one whole beat; what it is by the codec, but for its type, which who takes the packet looks at."""
    fault = None
    try:
        Packet.from_bytes(to_bytes(fields))
    except MalformedPacketError as error:
        fault = error.reason
    return [beat(to_bytes(fields))], (fault, fields)


def frames():
    """Every bit and every field wrong, each number of bytes, holes, frames of several beats; in any order."""
    wrong = [(field.name, 1 << bit) for field in FIELDS for bit in range(field.bits)]
    wrong += [(field.name, random.getrandbits(field.bits)) for field in FIELDS for _ in range(10)]
    found = []
    for name, difference in wrong:
        fields = random_fields()
        found += [one_beat(fields), one_beat(fields | {name: fields[name] ^ difference})]
    found += [one_beat(random_fields(type=random.choice(list(PacketType)))) for _ in range(50)]
    found += [one_beat(random_fields(ethertype=ethertype)) for ethertype in (0xB588, 0x0800, 0, 0xFFFF)]
    found += [one_beat(random_fields(version=version)) for version in range(16)]
    lengths = [(1 << length) - 1 for length in range(FRAME_BYTES)]
    keeps = lengths + [KEEP ^ 1 << byte for byte in range(FRAME_BYTES)] + [KEEP ^ length for length in lengths[1:]]
    found += [any_frame(1, keep) for keep in keeps]
    found += [any_frame(beats, KEEP) for beats in (2, 2, 2, 3, 4, 24, 150)]
    found += [any_frame(random.randint(2, 5), keep) for keep in random.sample(keeps, 60)]
    random.shuffle(found)
    return found


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.2, 0.8])
async def sorts_frames(dut, stall):
    """As the codec does. Without pauses there is a frame a cycle; what the wires show in a pause does not matter."""

    async def give(payload, valid):
        drive(dut, frames__payload=payload, frames__valid=valid)  # always ready: it is taken at once
        await RisingEdge(dut.clk)

    async def idle():
        await give(beat(to_bytes(random_fields()), last=random.getrandbits(1)), 0)

    sent, items, cycles = frames(), [], []
    drive(dut, frames__valid=0)
    await start(dut)
    cocotb.start_soon(watch(dut, items, cycles))
    for beats, _ in sent:
        for item in beats:
            while random.random() < stall:
                await idle()
            await give(item, 1)
    for _ in range(6):
        await idle()
    assert items == [what for _, what in sent]
    if stall == 0.0:
        begins = [0, *itertools.accumulate(len(beats) for beats, _ in sent)]
        assert [cycle - cycles[0] for cycle in cycles] == begins[:-1]


@pytest.mark.rtl
def test_frame_check():
    run_bench(FrameCheck(), __file__)


def test_layout_has_every_field_and_no_other():
    names = [field.name for field in FIELDS]
    assert [*list(PACKET.members)[:-1], *(f"value{i}" for i in range(8))] == names
    assert PACKET.size == 8 * FRAME_BYTES
    m = Module()
    with pytest.raises(KeyError, match="no field color"):
        build(m, color=1)
    Fragment.get(m, None)  # an unused module would warn
    with pytest.raises(ValueError, match="512 bits, not 100"):
        parse(Signal(100))
