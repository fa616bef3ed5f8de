"""FrameCheck against the codec in Python, frame by frame."""

import itertools
import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import run_bench, start

from p4sgd.hw.net.packet import PACKET, FrameCheck
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

KEEP = (1 << FRAME_BYTES) - 1
LATENCY = 1


def random_fields(**known):
    """Every field by name: right where the format says what it is, else random."""
    right = {"ethertype": ETHERTYPE, "version": VERSION, "reserved": 0} | known
    drawn = {field.name: random.choice([0, (1 << field.bits) - 1, random.getrandbits(field.bits)]) for field in FIELDS}
    return drawn | right


def to_bytes(fields):
    number = 0
    for name, _, bits, _ in FIELDS:
        number = number << bits | fields[name]
    return number.to_bytes(FRAME_BYTES, "big")


def fault_of(fields):
    """As the codec sees it, apart from types that it does not know: who takes the packet looks at that."""
    try:
        Packet.from_bytes(to_bytes(fields))
    except MalformedPacketError as error:
        return None if error.reason is DropReason.TYPE else error.reason
    return None


def beat(fields, *, keep=KEEP, last=1):
    return int.from_bytes(to_bytes(fields), "little") | keep << 8 * FRAME_BYTES | last << 9 * FRAME_BYTES


def parsed(word):
    """The fields of the output ``packet``."""
    found, position = {}, 0
    for name, _, bits, _ in FIELDS:  # the layout is that of PACKET, values at its end
        found[name] = word >> position & (1 << bits) - 1
        position += bits
    assert position == PACKET.size
    return found


class Watch:
    """Notes each received frame as ``(fault, fields)``, None being no fault; checks what must hold in every cycle."""

    def __init__(self, dut):
        self.items = []
        self.cycles = []
        self._dut = dut
        cocotb.start_soon(self._run())

    async def _run(self):
        dut = self._dut
        cycle, inside = 0, False
        beats, begins = [False] * LATENCY, [False] * LATENCY  # of the latest cycles
        held = None
        while True:
            await RisingEdge(dut.clk)
            cycle += 1
            assert dut.frames__ready.value, "always ready"
            assert dut.received.value == begins[-LATENCY], f"{LATENCY} cycle after a frame has begun"
            shown = bool(dut.good.value), int(dut.packet.value)
            if dut.received.value:
                fault = None if shown[0] else DropReason(int(dut.drop.value))
                self.items.append((fault, parsed(shown[1])))
                self.cycles.append(cycle)
            elif not beats[-LATENCY]:  # inside of a longer frame, `good` means nothing
                assert shown == held or held is None, "packet and good stay"
            held = shown
            valid = bool(dut.frames__valid.value)
            beats.append(valid)
            begins.append(valid and not inside)
            if valid:
                inside = not int(dut.frames__payload.value) >> 9 * FRAME_BYTES


def any_frame(beats, keep):
    """Beats of a frame of any length, well-formed but for that if it were one beat and ``keep`` whole; what it is."""
    frame = [random_fields() for _ in range(beats)]
    fault = DropReason.LONG if beats > 1 else DropReason.RUNT if keep != KEEP else None
    return [*(beat(fields, last=0) for fields in frame[:-1]), beat(frame[-1], keep=keep)], (fault, frame[0])


def one_beat(fields):
    """A frame of one whole beat; what it is."""
    return [beat(fields)], (fault_of(fields), fields)


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

    async def idle():
        dut.frames__payload.value = beat(random_fields(), last=random.getrandbits(1))
        dut.frames__valid.value = 0
        await RisingEdge(dut.clk)

    sent = frames()
    dut.frames__valid.value = 0
    await start(dut)
    watch = Watch(dut)
    for beats, _ in sent:
        for item in beats:
            while random.random() < stall:
                await idle()
            dut.frames__payload.value, dut.frames__valid.value = item, 1  # always ready: it is taken at once
            await RisingEdge(dut.clk)
    for _ in range(LATENCY + 5):
        await idle()
    assert watch.items == [what for _, what in sent]
    if stall == 0.0:
        begins = [0, *itertools.accumulate(len(beats) for beats, _ in sent)]
        assert [cycle - watch.cycles[0] for cycle in watch.cycles] == begins[:-1]


@pytest.mark.rtl
def test_frame_check():
    run_bench(FrameCheck(), __file__)
