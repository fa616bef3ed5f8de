"""Prober: one question at a time, and the answer to that one."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.axi import pulse
from support.bench import run_bench, start
from support.streams import StreamSink, StreamSource

from p4sgd.hw.net.prober import Prober
from p4sgd.hw.net.reception import ECHO
from p4sgd.hw.spec.config import WorkerConfig

VALUES_AT = ECHO["values"].offset


def question(slot: int, number: int, broadcast: int) -> int:
    return slot | number << 16 | broadcast << 24


def echo_of(number: int) -> int:
    return random.getrandbits(VALUES_AT) | number << VALUES_AT | random.getrandbits(224) << VALUES_AT + 32


async def begin(dut, stall: float) -> tuple[StreamSink, StreamSource]:
    dut.ask.value = dut.given_up.value = 0
    streams = StreamSink(dut, "probe", stall), StreamSource(dut, "echo", flow=True)
    await start(dut)
    return streams


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.7])
async def answers_the_last_question(dut, stall):
    probe, echo = await begin(dut, stall)
    asked = []
    for number in range(40):
        asked.append(question(random.getrandbits(16), number, random.getrandbits(1)))
        dut.question.value = asked[-1]
        await pulse(dut, "ask")
        dut.question.value = random.getrandbits(25)
        await probe.receive(len(asked))
        if random.random() < 0.5:
            echo.send([echo_of(number ^ 1)])  # to another question
            await ClockCycles(dut.clk, 5)
        assert not dut.came.value
        waited = random.randint(3, 40)
        await ClockCycles(dut.clk, waited)
        answer = echo_of(number)
        echo.send([answer, echo_of(number)])  # what comes twice counts once
        await ClockCycles(dut.clk, 5)
        assert dut.came.value
        assert int(dut.answer.value) == answer
        assert waited <= int(dut.cycles.value) <= waited + 12
    assert probe.items == asked


@cocotb.test()
async def asks_about_what_is_given_up(dut):
    probe, echo = await begin(dut, 0.0)
    for count, slot in enumerate((3, 0), 1):
        dut.given_up_slot.value = slot
        dut.given_up.value = 1
        assert list(await probe.receive(count))[-1] == question(slot, 0, 0)
        await ClockCycles(dut.clk, 20)
        assert len(probe.items) == count, "once"
        echo.send([echo_of(0)])
        await ClockCycles(dut.clk, 5)
        assert dut.came.value
        dut.given_up.value = 0
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)


@pytest.mark.rtl
def test_prober():
    run_bench(Prober(WorkerConfig.tiny()), __file__)
