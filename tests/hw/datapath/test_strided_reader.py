"""StridedReader against the list of addresses that it should read."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.axi import PulseCounter, ReadMemory, pulse
from support.bench import parameters, run_sizes, start
from support.streams import StreamSink

from p4sgd.hw.datapath.strided_reader import StridedReader


def word_at(address: int, bits: int) -> int:
    return random.Random(address).getrandbits(bits)


async def ask(dut, base: int, bursts: int, burst: int, stride: int) -> list[int]:
    """Start a run; returns the addresses of its beats."""
    dut.base.value, dut.bursts.value = base, bursts
    dut.burst_beats.value, dut.stride_beats.value = burst, stride
    await pulse(dut, "start")
    step = parameters()["bits"] // 8
    return [base + (group * stride + beat) * step for group in range(bursts) for beat in range(burst)]


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def reads_in_order(dut, stall):
    bits = parameters()["bits"]
    step = bits // 8
    memory = ReadMemory(dut, "memory", bits, lambda address: word_at(address, bits), stall)
    data = StreamSink(dut, "data", stall)
    errors = PulseCounter(dut, "error")
    dut.stop.value = 0
    await start(dut)
    for case in range(12):
        data.items.clear()
        memory.requests.clear()
        burst = random.randint(1, 8)
        stride = burst if case % 2 else random.randint(burst, 8)
        bursts = random.choice([1, random.randint(1, 120)])
        base = 4096 * random.choice([0, 1, random.getrandbits(30)]) + (random.getrandbits(16) << 48)
        wanted = await ask(dut, base, bursts, burst, stride)
        dut.base.value = 4096 * random.getrandbits(30)  # taken with the start, free afterwards
        await RisingEdge(dut.clk)
        assert dut.busy.value
        got = await data.receive(len(wanted))
        assert list(got) == [word_at(address, bits) for address in wanted]
        for _ in range(6):
            await RisingEdge(dut.clk)
        assert not dut.busy.value
        assert sum(request.beats for request in memory.requests) == len(wanted), "read more than asked for"
        if burst == stride and len(wanted) >= 64:
            longest = max(request.beats for request in memory.requests)
            assert longest == min(parameters()["burst_limit"], 4096 // step), "bursts should be long"
    assert errors.count == 0


@cocotb.test()
async def delivers_a_beat_every_cycle(dut):
    """Whatever the shape of the groups, with a memory that answers at once."""
    bits = parameters()["bits"]
    ReadMemory(dut, "memory", bits, lambda address: word_at(address, bits), 0.0)
    data = StreamSink(dut, "data")
    await start(dut)
    for burst in (1, 2, 3, 8):
        for stride in sorted({burst, burst + 1, 8} & set(range(burst, 9))):
            data.items.clear()
            bursts = 240 // burst
            await ask(dut, 4096, bursts, burst, stride)
            cycles = 0
            while len(data.items) < burst * bursts:
                await RisingEdge(dut.clk)
                cycles += 1
                assert cycles < 2000
            # On the way to the first beat, and where a group is cut by a boundary of 4 KiB.
            spare = 15 + bursts * stride * bits // 8 // 4096
            assert cycles <= burst * bursts + spare, (burst, stride, cycles)


@cocotb.test()
async def never_holds_up_the_memory(dut):
    """A taker that stops for long costs nothing but time; what is under way has its place."""
    bits, fifo_beats, burst_limit = (parameters()[name] for name in ("bits", "fifo_beats", "burst_limit"))
    memory = ReadMemory(dut, "memory", bits, lambda address: word_at(address, bits), 0.0)
    data = StreamSink(dut, "data")
    await start(dut)
    for burst, stride in ((1, 1), (1, 4), (5, 7)):
        data.items.clear()
        memory.requests.clear()
        bursts = (6 * fifo_beats + 100) // burst
        wanted = await ask(dut, 0, bursts, burst, stride)
        for stall in (0.5, 1.0, 0.5, 1.0):
            data.stall = stall
            for _ in range(2 * fifo_beats + 40):
                await RisingEdge(dut.clk)
                assert dut.memory__r__ready.value, "the memory was held up"
            under_way = sum(request.beats for request in memory.requests) - len(data.items)
            assert under_way <= fifo_beats
            assert stall < 1 or under_way > fifo_beats - burst_limit, "room is not used"
        data.stall = 0.0
        got = await data.receive(burst * bursts)
        assert list(got) == [word_at(address, bits) for address in wanted]
        for _ in range(6):
            await RisingEdge(dut.clk)


@cocotb.test()
async def asks_for_as_much_as_may_be_under_way(dut):
    """While memory answers nothing: as many bursts as allowed but for one, or as the FIFO has room for."""
    bits, fifo_beats, outstanding = (parameters()[name] for name in ("bits", "fifo_beats", "outstanding"))
    memory = ReadMemory(dut, "memory", bits, lambda address: word_at(address, bits), 0.0)
    data = StreamSink(dut, "data")
    await start(dut)
    for burst, stride in ((1, 4), (2, 8), (5, 7)):
        data.items.clear()
        memory.requests.clear()
        memory.answers.stall = 1.0
        bursts = 2 * fifo_beats
        await ask(dut, 0, bursts, burst, stride)
        await ClockCycles(dut.clk, 3 * fifo_beats + 40)
        first = len(memory.requests)
        assert first <= outstanding
        if outstanding * burst <= fifo_beats // 2:
            assert first >= outstanding - 1
        memory.answers.stall = 0.5
        assert len(await data.receive(burst * bursts)) == burst * bursts
        await ClockCycles(dut.clk, 6)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def stops_at_any_time(dut, stall):
    """What was requested comes, nothing else; then it is idle, and its next run is right."""
    bits = parameters()["bits"]
    memory = ReadMemory(dut, "memory", bits, lambda address: word_at(address, bits), stall)
    data = StreamSink(dut, "data", stall)
    await start(dut)
    early = 0
    for case in range(30):
        burst = random.randint(1, 8)
        stride = burst if case % 3 == 0 else random.randint(burst, 8)
        for bursts, stops in ((300, True), (random.randint(1, 20), False)):
            data.items.clear()
            memory.requests.clear()
            wanted = await ask(dut, 4096 * random.getrandbits(20), bursts, burst, stride)
            if stops:
                await ClockCycles(dut.clk, random.choice([random.randint(0, 15), random.randint(15, 300)]))
                await pulse(dut, "stop")
            for _ in range(20_000):
                await RisingEdge(dut.clk)
                if not dut.busy.value:
                    break
            assert not dut.busy.value
            under_way = sum(request.beats for request in memory.requests)
            assert len(data.items) == under_way
            assert data.items == [word_at(address, bits) for address in wanted[:under_way]]
            assert stops or under_way == len(wanted)
            early += under_way < len(wanted)
            await ClockCycles(dut.clk, 5)
    assert early > 10


@cocotb.test()
async def tells_errors(dut):
    bits = parameters()["bits"]
    memory = ReadMemory(dut, "memory", bits, lambda address: 0, 0.0)
    data = StreamSink(dut, "data")
    errors = PulseCounter(dut, "error")
    await start(dut)
    memory.bad_beats = {4096 + 3 * bits // 8}
    await ask(dut, 4096, 5, 2, 2)
    assert len(await data.receive(10)) == 10
    await RisingEdge(dut.clk)
    assert errors.count == 1


@pytest.mark.rtl
@pytest.mark.parametrize(
    "sizes",
    [
        [(64, 64, 32, 16)],
        pytest.param([(256, 512, 64, 128), (512, 128, 64, 32), (64, 16, 8, 8)], marks=pytest.mark.slow),
    ],
    ids=["one", "others"],
)
def test_strided_reader(sizes):
    readers = {}
    for bits, fifo_beats, burst_limit, outstanding in sizes:
        depths = {"fifo_beats": fifo_beats, "burst_limit": burst_limit, "outstanding": outstanding}
        readers[f"bits{bits}_fifo{fifo_beats}"] = StridedReader(bits, **depths), {"bits": bits, **depths}
    run_sizes(readers, __file__)
