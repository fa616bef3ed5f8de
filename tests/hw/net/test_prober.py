"""Prober: one question at a time, and the answer to that one."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from support.bench import run_bench, start
from support.signals import drive, pulse
from support.streams import StreamSink, StreamSource, unpack

from p4sgd.hw.net.endpoint import Prober
from p4sgd.hw.net.reception import ECHO
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import EchoValue

VALUES_AT = ECHO["values"].offset


def question(slot, number, broadcast=0):
    return slot | number << 16 | broadcast << 24


async def ask(dut, word):
    """Have the host ask for a probe."""
    drive(dut, probe_slot=word & 0xFFFF, probe_number=word >> 16 & 255, probe_broadcast=word >> 24)
    await pulse(dut, "probe_slot_strobe")
    drive(dut, probe_slot=random.getrandbits(16), probe_number=random.getrandbits(8))


def echo_of(number):
    return random.getrandbits(VALUES_AT) | number << VALUES_AT | random.getrandbits(224) << VALUES_AT + 32


def assert_shown(dut, answer):
    """The registers show an answer, as `EchoValue` says."""
    fields = {name: answer >> ECHO[name].offset & (1 << ECHO[name].width) - 1 for name in ECHO.members}
    values = unpack(fields["values"], 32, 8, signed=False)
    assert dut.echo_came.value
    expected = {
        "number": values[EchoValue.NUMBER] & 255,
        "verdict": values[EchoValue.VERDICT] & 255,
        "port": values[EchoValue.PORT] & 255,
        "version": fields["version"],
        "job_round": fields["round"],
        "job_workers": values[EchoValue.WORKERS] & 255,
        "aggregated": fields["aggregated"],
        "acknowledged": values[EchoValue.ACKNOWLEDGED],
        "slots": values[EchoValue.SLOTS],
        "source": fields["source"],
        "expected_low": values[EchoValue.MAC_LOW],
        "expected_high": values[EchoValue.MAC_HIGH] & 0xFFFF,
    }
    assert {name: int(getattr(dut, f"echo_{name}").value) for name in expected} == expected


async def begin(dut, stall):
    drive(dut, probe_slot_strobe=0, given_up=0)
    streams = StreamSink(dut, "probe", stall), StreamSource(dut, "echo", flow=True)
    await start(dut)
    await ClockCycles(dut.clk, 2)
    return streams


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.7])
async def answers_the_last_question(dut, stall):
    probe, echo = await begin(dut, stall)
    asked = []
    for number in range(40):
        asked.append(question(random.getrandbits(16), number, random.getrandbits(1)))
        await ask(dut, asked[-1])
        await probe.receive(len(asked))
        if random.random() < 0.5:
            echo.send([echo_of(number ^ 1)])  # to another question
            await ClockCycles(dut.clk, 5)
        assert not dut.echo_came.value
        waited = random.randint(3, 40)
        await ClockCycles(dut.clk, waited)
        echo.send([answer := echo_of(number), echo_of(number)])  # what comes twice counts once
        await ClockCycles(dut.clk, 5)
        assert_shown(dut, answer)
        assert waited <= int(dut.echo_cycles.value) <= waited + 12
    assert probe.items == asked


@cocotb.test()
async def asks_about_what_is_given_up(dut):
    probe, echo = await begin(dut, 0.0)
    for count, slot in enumerate((3, 0), 1):
        drive(dut, given_up_slot=slot, given_up=1)
        assert list(await probe.receive(count))[-1] == question(slot, 0)
        await ClockCycles(dut.clk, 20)
        assert len(probe.items) == count, "once"
        echo.send([answer := echo_of(0)])
        await ClockCycles(dut.clk, 5)
        assert_shown(dut, answer)
        drive(dut, given_up=0)
        await ClockCycles(dut.clk, 2)


@cocotb.test()
@cocotb.parametrize(together=[False, True], joins=[False, True])
async def asks_about_what_is_given_up_after_a_question_that_waits(dut, together, joins):
    """The host asks while nothing is sent, then the endpoint gives up: both probes are sent, the last is answered.

    After a join all slots have been forgotten, so nothing is asked about one.
    """
    probe, echo = await begin(dut, 1.0)
    drive(dut, given_up_slot=3, given_up=together)
    await ask(dut, question(2, 8))
    drive(dut, given_up=1)
    await ClockCycles(dut.clk, 20)
    # No answer is to a probe that has not been sent, and no other question takes its place.
    echo.send([echo_of(8)])
    await ask(dut, question(1, 9))
    await ClockCycles(dut.clk, 20)
    assert not dut.echo_came.value
    drive(dut, given_up=not joins)
    await ClockCycles(dut.clk, 5)
    probe.stall = 0.0
    await ClockCycles(dut.clk, 20)
    assert probe.items == [question(2, 8), *([] if joins else [question(3, 0)])]
    echo.send([answer := echo_of(8), other := echo_of(0)])
    await ClockCycles(dut.clk, 20)
    assert_shown(dut, answer if joins else other)
    assert len(probe.items) == 2 - joins


@pytest.mark.rtl
def test_prober():
    run_bench(Prober(WorkerConfig.tiny()), __file__, scrambled=True)
