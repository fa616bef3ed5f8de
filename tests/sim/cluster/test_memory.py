"""SimMemory: AXI4 reads and writes, files in and out."""

import random
from itertools import pairwise
from pathlib import Path

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import run_bench, start
from support.signals import pulse
from support.streams import StreamSink, StreamSource

from p4sgd.hw.bus.axi import BURST_INCR, RESPONSE_OKAY
from p4sgd.sim.cluster import memory
from p4sgd.sim.cluster.memory import MEMORY_TIMING, SimMemory
from p4sgd.sim.cluster.protocol import MemoryTiming, memory_file, read_saved

BITS, STEP, SIZE = 64, 8, 1 << 14
LATENCY = MemoryTiming().latency


def begin(dut, *, seed=1, stall=0, gap=0, **timing):
    """Give all inputs but the bus their values, before the reset."""
    dut.seed.value, dut.stall.value, dut.gap.value, dut.load.value, dut.save.value = seed, stall, gap, 0, 0
    given = MemoryTiming(**timing)
    dut.timing.value = sum(int(getattr(given, str(name))) << field.offset for name, field in MEMORY_TIMING)


def request(address, beats, size=3, burst=BURST_INCR):
    return address | beats - 1 << 64 | size << 72 | burst << 75


def random_burst():
    """Address and beats of a burst within 4 KiB, often one that ends at the boundary."""
    beats = random.choice([1, 256, random.randint(1, 16)])
    page = 4096 * random.randrange(SIZE // 4096)
    last = 4096 - STEP * beats
    return page + random.choice([last, STEP * random.randrange(last // STEP + 1)]), beats


class Master:
    def __init__(self, dut, stall):
        self.aw, self.w = StreamSource(dut, "bus__aw", stall), StreamSource(dut, "bus__w", stall)
        self.ar = StreamSource(dut, "bus__ar", stall)
        self.b, self.r = StreamSink(dut, "bus__b", stall), StreamSink(dut, "bus__r", stall)

    async def write(self, address, words, strobes=0xFF, requested=None):
        count = len(self.b.items) + 1
        self.aw.send([request(address, requested or len(words))])
        last = len(words) - 1
        self.w.send(word | strobes << BITS | int(i == last) << (BITS + STEP) for i, word in enumerate(words))
        return (await self.b.receive(count))[-1]

    async def read(self, bursts):
        """Data, responses and last flags of several reads that are under way at once."""
        first = len(self.r.items)
        self.ar.send(request(address, beats) for address, beats in bursts)
        items = (await self.r.receive(first + sum(beats for _, beats in bursts)))[first:]
        return [(item & (1 << BITS) - 1, item >> BITS & 3, item >> BITS + 2) for item in items]


async def read_singles(dut, master, count):
    """Cycles in which single beats are asked for, and in which they come."""
    master.ar.send([request(STEP * index, 1) for index in range(count)])
    asked, answered, cycle = [], [], 0
    while len(answered) < count:
        await RisingEdge(dut.clk)
        if dut.bus__ar__valid.value and dut.bus__ar__ready.value:
            asked.append(cycle)
        if dut.bus__r__valid.value and dut.bus__r__ready.value:
            answered.append(cycle)
        cycle += 1
        assert cycle < 100 * count
    return asked, answered


@cocotb.test()
@cocotb.parametrize(stall=[0, 100])
async def reads_what_was_written(dut, stall):
    master = Master(dut, stall / 256)
    begin(dut, seed=random.getrandbits(32), stall=stall)
    await start(dut)
    folder = Path.cwd()
    contents = bytearray(random.randbytes(SIZE))
    restored = bytearray(contents)
    (folder / memory_file(0, 0)).write_bytes(contents)
    await pulse(dut, "load")
    await RisingEdge(dut.clk)
    for _ in range(20):
        address, beats = random_burst()
        words = [random.getrandbits(BITS) for _ in range(beats)]
        strobes = random.choice([0xFF, random.getrandbits(STEP)])
        assert await master.write(address, words, strobes) == RESPONSE_OKAY
        for i, word in enumerate(words):
            for byte in range(STEP):
                if strobes >> byte & 1:
                    contents[address + STEP * i + byte] = word >> 8 * byte & 0xFF
    bursts = [random_burst() for _ in range(100)]
    got = await master.read(bursts)
    expected = [
        (int.from_bytes(contents[at : at + STEP], "little"), RESPONSE_OKAY, int(beat == beats - 1))
        for address, beats in bursts
        for beat, at in enumerate(range(address, address + STEP * beats, STEP))
    ]
    assert got == expected
    await pulse(dut, "save")
    await RisingEdge(dut.clk)
    for address, word in read_saved(folder, 0, 0):
        restored[address : address + STEP] = word.tobytes()
    assert restored == contents, "all that was written since it was loaded is saved"


@cocotb.test()
async def answers_what_is_beyond_its_end_and_broken_rules_with_an_error(dut):
    master = Master(dut, 0.0)
    begin(dut)
    await start(dut)
    edge = 4096 - STEP
    master.ar.send([request(edge, 2), request(0, 2, size=2), request(0, 2, burst=0), request(0, 2, burst=2)])
    assert [item >> BITS & 3 for item in await master.r.receive(8)] == [2] * 8
    assert [resp for _, resp, _ in await master.read([(0, 2)])] == [0, 0]
    assert await master.write(edge, [1, 2]) == 2
    assert await master.write(0, [1, 2]) == RESPONSE_OKAY
    for requested, sent in ((2, 1), (1, 2), (3, 2)):  # `last` too early or too late
        assert await master.write(0, [0] * sent, requested=requested) == 2, (requested, sent)
    assert await master.write(0, [1, 2]) == RESPONSE_OKAY
    assert [resp for _, resp, _ in await master.read([(SIZE, 2)])] == [3, 3]
    assert await master.write(SIZE, [1]) == 3


@cocotb.test()
@cocotb.parametrize(latency=[5, LATENCY], outstanding=[1, 16, 200])
async def takes_as_many_reads_as_it_may(dut, latency, outstanding):
    master = Master(dut, 0.0)
    begin(dut, latency=latency, outstanding=outstanding)
    await start(dut)
    asked, answered = await read_singles(dut, master, 400)
    under_way = [sum(at < cycle for at in asked) - sum(at < cycle for at in answered) for cycle in asked]
    assert max(under_way) == min(outstanding, latency + 1) - 1, "besides the one that is being taken"
    assert answered[0] - asked[0] == latency
    if outstanding > latency + 1:
        assert answered[-1] - answered[0] == 399, "single beats come every cycle"


@cocotb.test()
async def pauses_to_refresh(dut):
    """65 of 975 cycles: AMD's controller does so for 260 ns of 3.9 µs."""
    master = Master(dut, 0.0)
    begin(dut, refresh=True)
    await start(dut)
    _, answered = await read_singles(dut, master, 3000)
    gaps = {after: after - before - 1 for before, after in pairwise(answered) if after > before + 1}
    assert set(gaps.values()) == {65}
    assert {after - before for before, after in pairwise(gaps)} == {975}


@cocotb.test()
async def answers_in_bunches_after_gaps(dut):
    master = Master(dut, 0.0)
    begin(dut, seed=random.getrandbits(32), gap=1 << 10)
    await start(dut)
    asked, answered = await read_singles(dut, master, 2000)
    gaps = [after - before - 1 for before, after in pairwise(answered) if after > before + 1]
    assert 64 < max(gaps) <= 257
    assert len(gaps) > 10
    assert asked[-1] - asked[0] > 2000, "no more are asked for than may be under way"


@cocotb.test()
async def keeps_an_answer_for_as_long_as_it_takes(dut):
    """Longer than the memory's clock of 16 bits goes without wrapping."""
    master = Master(dut, 0.0)
    begin(dut)
    await start(dut)
    master.r.stall = 1.0
    master.ar.send([request(0, 200)])
    await ClockCycles(dut.clk, 45_000)
    master.r.stall = 0.0
    await master.r.receive(200, timeout_cycles=400)


@pytest.mark.rtl
def test_memory():
    storage = Path(memory.__file__).with_name("sim_storage.sv")
    component = SimMemory(BITS, SIZE.bit_length() - 1, file=memory_file(0, 0), instance=1)
    run_bench(component, __file__, sources=[storage])
