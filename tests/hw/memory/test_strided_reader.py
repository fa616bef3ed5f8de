"""StridedReader against the list of addresses that it should read."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.axi import PulseCounter, ReadMemory, pulse
from support.bench import parameters, run_bench, start
from support.streams import StreamSink

from p4sgd.hw.memory.strided_reader import StridedReader


def word_at(address: int, bits: int) -> int:
    return random.Random(address).getrandbits(bits)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def reads_in_order(dut, stall):
    bits = parameters()["bits"]
    step = bits // 8
    memory = ReadMemory(dut, "memory", bits, lambda address: word_at(address, bits), stall)
    data = StreamSink(dut, "data", stall)
    errors = PulseCounter(dut, "error")
    await start(dut)
    for case in range(12):
        data.items.clear()
        memory.requests.clear()
        burst = random.randint(1, 8)
        stride = burst if case % 2 else random.randint(burst, 8)
        bursts = random.choice([1, random.randint(1, 120)])
        base = 4096 * random.choice([0, 1, random.getrandbits(30)])
        dut.base.value, dut.bursts.value = base, bursts
        dut.burst_beats.value, dut.stride_beats.value = burst, stride
        await pulse(dut, "start")
        dut.base.value = 4096 * random.getrandbits(30)  # taken with the start, free afterwards
        await RisingEdge(dut.clk)
        assert dut.busy.value
        wanted = [base + (group * stride + beat) * step for group in range(bursts) for beat in range(burst)]
        got = await data.receive(len(wanted))
        assert list(got) == [word_at(address, bits) for address in wanted]
        for _ in range(6):
            await RisingEdge(dut.clk)
        assert not dut.busy.value
        assert sum(request.beats for request in memory.requests) == len(wanted), "read more than asked for"
        if burst == stride and len(wanted) >= 64:
            longest = max(request.beats for request in memory.requests)
            assert longest == min(64, 4096 // step), "bursts should be long"
    assert errors.count == 0


@cocotb.test()
async def tells_errors(dut):
    bits = parameters()["bits"]
    memory = ReadMemory(dut, "memory", bits, lambda address: 0, 0.0)
    data = StreamSink(dut, "data")
    errors = PulseCounter(dut, "error")
    await start(dut)
    memory.bad_beats = {4096 + 3 * bits // 8}
    dut.base.value, dut.bursts.value, dut.burst_beats.value, dut.stride_beats.value = 4096, 5, 2, 2
    await pulse(dut, "start")
    assert len(await data.receive(10)) == 10
    await RisingEdge(dut.clk)
    assert errors.count == 1


@pytest.mark.rtl
@pytest.mark.parametrize("bits", [64, 512])
def test_strided_reader(bits):
    run_bench(StridedReader(bits), __file__, bits=bits)
