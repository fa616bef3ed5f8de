"""FrameCheck against the codec in Python, frame by frame."""

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


class Bench:
    """Sends frames, each a list of beats, and checks what becomes of them; ``stall`` is the chance of an idle cycle."""

    def __init__(self, dut, stall):
        self._dut = dut
        self._stall = stall
        self._beats = []
        self._expected = []

    def add(self, fields):
        """A frame of one whole beat."""
        self._beats.append(beat(fields))
        self._expected.append((fault_of(fields), fields))

    def add_frame(self, beats, keep):
        """A frame of any length, well-formed but for that if it were one beat and ``keep`` whole."""
        frame = [random_fields() for _ in range(beats)]
        self._beats += [beat(fields, last=0) for fields in frame[:-1]]
        self._beats.append(beat(frame[-1], keep=keep))
        fault = DropReason.LONG if beats > 1 else DropReason.RUNT if keep != KEEP else None
        self._expected.append((fault, frame[0]))

    async def run(self):
        """Send all and check; returns the cycles in which frames were received."""
        dut = self._dut
        dut.frames__valid.value = 0
        await start(dut)
        watch = Watch(dut)
        for item in self._beats:
            while random.random() < self._stall:
                await self._idle()
            dut.frames__payload.value, dut.frames__valid.value = item, 1  # always ready: it is taken at once
            await RisingEdge(dut.clk)
        for _ in range(LATENCY + 5):
            await self._idle()
        assert watch.items == self._expected
        assert len({fault for fault, _ in self._expected}) > 1
        return watch.cycles

    async def _idle(self):
        """A cycle without a beat; what the wires show then must not matter."""
        self._dut.frames__payload.value = beat(random_fields(), last=random.getrandbits(1))
        self._dut.frames__valid.value = 0
        await RisingEdge(self._dut.clk)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def looks_at_every_bit(dut, stall):
    bench = Bench(dut, stall)
    wrong = [(field.name, 1 << bit) for field in FIELDS for bit in range(field.bits)]
    wrong += [(field.name, random.getrandbits(field.bits)) for field in FIELDS for _ in range(10)]
    random.shuffle(wrong)
    for name, difference in wrong:
        fields = random_fields()
        bench.add(fields)
        bench.add(fields | {name: fields[name] ^ difference})
        if random.random() < 0.1:
            bench.add(random_fields(type=random.choice(list(PacketType))))
    for ethertype in (0xB588, 0x0800, 0, 0xFFFF):
        bench.add(random_fields(ethertype=ethertype))
    for version in range(16):
        bench.add(random_fields(version=version))
    await bench.run()


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def takes_64_bytes_only(dut, stall):
    bench = Bench(dut, stall)
    lengths = [(1 << length) - 1 for length in range(FRAME_BYTES)]
    holes = [KEEP ^ 1 << byte for byte in range(FRAME_BYTES)]
    keeps = lengths + holes + [KEEP ^ length for length in lengths[1:]]
    # Beats of a frame and which bytes of the last one are there.
    cases = [(1, keep) for keep in keeps] + [(1, KEEP)] * 150
    cases += [(beats, KEEP) for beats in (2, 2, 2, 3, 4, 24, 150)]
    cases += [(random.randint(2, 5), keep) for keep in random.sample(keeps, 60)]
    random.shuffle(cases)
    for beats, keep in cases:
        bench.add_frame(beats, keep)
    await bench.run()


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.2, 0.8])
async def sorts_any_mix(dut, stall):
    bench = Bench(dut, stall)
    for _ in range(600):
        if random.random() < 0.2:
            field = random.choice(FIELDS)
            bench.add(random_fields(**{field.name: random.getrandbits(field.bits)}))
        else:
            keep = random.choice([KEEP, KEEP, random.getrandbits(FRAME_BYTES)])
            bench.add_frame(random.choice([1, 1, 1, random.randint(2, 6)]), keep)
    await bench.run()


@cocotb.test()
async def takes_a_frame_a_cycle(dut):
    bench = Bench(dut, 0.0)
    for index in range(100):
        bench.add(random_fields(version=VERSION + index % 2))
    cycles = await bench.run()
    first = cycles[0]
    assert cycles == list(range(first, first + 100))


@pytest.mark.rtl
def test_frame_check():
    run_bench(FrameCheck(), __file__)
