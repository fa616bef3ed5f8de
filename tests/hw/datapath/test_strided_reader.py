"""StridedReader against the list of addresses that it should read; how much is under way is proved (tests/formal)."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.axi import ReadMemory
from support.bench import parameters, run_sizes, start
from support.signals import Cycles, cycles_until, drive, pulse
from support.streams import StreamSink

from p4sgd.hw.datapath.strided_reader import SHORT_BEATS, StridedReader


def words_at(addresses: list[int]) -> list[int]:
    """What memory has there."""
    return [random.Random(address).getrandbits(parameters()["bits"]) for address in addresses]


async def begin(dut, stall: float = 0.0) -> tuple[ReadMemory, StreamSink]:
    """A memory, and the sink of what is read."""
    memory = ReadMemory(dut, "memory", parameters()["bits"], lambda address: words_at([address])[0], stall)
    drive(dut, stop=0)
    data = StreamSink(dut, "data", stall)
    await start(dut)
    return memory, data


async def ask(dut, memory, data, base: int, bursts: int, burst: int, stride: int, short: int = 0) -> list[int]:
    """Start a run; returns the addresses of its beats."""
    data.items.clear()
    memory.requests.clear()
    drive(dut, base=base, bursts=bursts, burst_beats=burst, stride_beats=stride, short=short)
    await pulse(dut, "start")
    step = parameters()["bits"] // 8
    return [base + (group * stride + beat) * step for group in range(bursts) for beat in range(burst)]


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def reads_in_order(dut, stall):
    memory, data = await begin(dut, stall)
    errors, step = Cycles(dut, "error"), parameters()["bits"] // 8
    for case in range(12):
        burst = random.randint(1, 8)
        stride = burst if case % 2 else random.randint(burst, 8)
        bursts = random.choice([1, random.randint(1, 120)])
        base = 4096 * random.choice([0, 1, random.getrandbits(30)]) + (random.getrandbits(16) << 48)
        short = random.randint(0, 1)
        wanted = await ask(dut, memory, data, base, bursts, burst, stride, short)
        drive(dut, base=4096 * random.getrandbits(30))  # taken with the start, free afterwards
        await RisingEdge(dut.clk)
        assert dut.busy.value
        assert list(await data.receive(len(wanted))) == words_at(wanted)
        await ClockCycles(dut.clk, 6)
        assert not dut.busy.value
        assert sum(request.beats for request in memory.requests) == len(wanted), "read more than asked for"
        if burst == stride and len(wanted) >= 64:
            longest = max(request.beats for request in memory.requests)
            limit = min(parameters()["burst_limit"], SHORT_BEATS) if short else parameters()["burst_limit"]
            assert longest == min(limit, 4096 // step), "bursts should be long"
    assert not errors
    memory.bad_beats = {4096 + 3 * step}
    await data.receive(len(await ask(dut, memory, data, 4096, 5, 2, 2)))
    await RisingEdge(dut.clk)
    assert len(errors) == 1


@cocotb.test()
async def delivers_a_beat_every_cycle(dut):
    """Whatever the shape of the groups, with a memory that answers at once."""
    memory, data = await begin(dut)
    for burst in (1, 2, 3, 8):
        for stride in sorted({burst, burst + 1, 8} & set(range(burst, 9))):
            beats = 240 // burst * burst
            await ask(dut, memory, data, 4096, 240 // burst, burst, stride)
            cycles = await cycles_until(dut, lambda beats=beats: len(data.items) == beats, 2000)
            # On the way to the first beat, and where a group is cut by a boundary of 4 KiB.
            spare = 15 + 240 // burst * stride * parameters()["bits"] // 8 // 4096
            assert cycles <= beats + spare, (burst, stride, cycles)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def stops_at_any_time(dut, stall):
    """What was requested comes, nothing else; then it is idle, and its next run is right."""
    memory, data = await begin(dut, stall)
    early = 0
    for case in range(30):
        burst = random.randint(1, 8)
        stride = burst if case % 3 == 0 else random.randint(burst, 8)
        for bursts, stops in ((300, True), (random.randint(1, 20), False)):
            wanted = await ask(dut, memory, data, 4096 * random.getrandbits(20), bursts, burst, stride)
            if stops:
                await ClockCycles(dut.clk, random.choice([random.randint(0, 15), random.randint(15, 300)]))
                await pulse(dut, "stop")
            await cycles_until(dut, lambda: not dut.busy.value)
            under_way = sum(request.beats for request in memory.requests)
            assert data.items == words_at(wanted[:under_way])
            assert stops or under_way == len(wanted)
            early += under_way < len(wanted)
            await ClockCycles(dut.clk, 5)
    assert early > 10


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
