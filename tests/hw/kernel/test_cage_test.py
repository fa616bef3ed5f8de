"""CageTest: it counts what it sends, and what of it is lost, spoilt, repeated or swapped on the way back."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.axi import pulse
from support.bench import run_bench, start
from support.streams import StreamSink, StreamSource

from p4sgd.hw.kernel.loopback import CageTest
from p4sgd.hw.spec.selftest import cage_registers


def results(dut):
    word = int(dut.results.value)
    return {name: word >> 32 * index & 0xFFFF_FFFF for index, name in enumerate(cage_registers(0))}


async def send(dut, count):
    """Send frames; returns the results and the cycles that it took."""
    dut.count.value = count
    await pulse(dut, "send")
    dut.count.value = 0
    await RisingEdge(dut.clk)
    cycles = 1
    while results(dut)["sending"]:
        await RisingEdge(dut.clk)
        cycles += 1
    return cycles


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def what_happens_on_the_way_is_counted(dut, stall):
    back = StreamSource(dut, "axis_rx", stall)
    sink = StreamSink(dut, "axis_tx", stall)
    await start(dut)
    for case in range(20):
        sink.items.clear()
        count = random.choice([0, 1, 2, random.randint(10, 80)])
        cycles = await send(dut, count)
        frames = list(sink.items)
        sent = [frame.to_bytes(73, "little") for frame in frames]
        assert [frame[:14] for frame in sent] == [bytes.fromhex("02000000000202000000000188b6")] * count
        assert [int.from_bytes(frame[14:18], "little") for frame in sent] == list(range(count))
        assert {frame[64:] for frame in sent} <= {b"\xff" * 8 + b"\1"}, "whole, and in one beat"
        wanted = {"received": count, "wrong": 0, "missing": 0}
        if case % 2 and count > 9:
            lost, several = random.randint(1, count - 5), random.randint(1, 3)
            frames[0] ^= 1 << random.randrange(8 * 64)
            del frames[lost : lost + several]
            frames = [*frames, frames[-1] ^ 1 << random.randrange(8 * 64, 8 * 64 + 65)]
            wanted = {"received": count - several - 1, "wrong": 2, "missing": several + 1}
        back.send(frames)
        await back.drained()
        await ClockCycles(dut.clk, 8)
        found = results(dut)
        assert {name: found[name] for name in wanted} == wanted
        assert (found["sent"], found["sending"]) == (count, 0)
        assert abs(found["cycles"] - cycles) <= 1


@cocotb.test()
async def it_sends_a_frame_a_cycle(dut):
    dut.axis_rx__valid.value, dut.axis_tx__ready.value = 0, 1
    await start(dut)
    assert await send(dut, 100) <= 103
    assert results(dut)["sent"] == 100


@cocotb.test()
async def to_send_while_sending_changes_nothing(dut):
    dut.axis_rx__valid.value = 0
    sink = StreamSink(dut, "axis_tx", 0.5)
    await start(dut)
    dut.count.value = 30
    await pulse(dut, "send")
    await ClockCycles(dut.clk, 20)
    dut.count.value = 5
    await pulse(dut, "send")
    await ClockCycles(dut.clk, 200)
    assert len(set(sink.items)) == len(sink.items) == 30


@pytest.mark.rtl
def test_cage_test():
    run_bench(CageTest(), __file__)
