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


def ask_for(dut, word: int) -> None:
    dut.probe_slot.value, dut.probe_number.value, dut.probe_broadcast.value = (
        word & 0xFFFF,
        word >> 16 & 255,
        word >> 24,
    )


def shown(dut) -> dict[str, int]:
    """Fields of ECHO registers, by name."""
    return {name: int(getattr(dut, f"echo_{name}").value) for name in expected(0)}


def expected(answer: int) -> dict[str, int]:
    """What registers show of an answer, as `EchoValue` says."""
    version, source, round_, aggregated = (
        answer >> ECHO[name].offset & (1 << ECHO[name].width) - 1
        for name in ("version", "source", "round", "aggregated")
    )
    number, verdict, port, acknowledged, workers, slots, high, low = (
        answer >> VALUES_AT + 32 * index & 0xFFFFFFFF for index in range(8)
    )
    return {
        "number": number & 255,
        "verdict": verdict & 255,
        "port": port & 255,
        "version": version,
        "job_round": round_,
        "job_workers": workers & 255,
        "aggregated": aggregated,
        "acknowledged": acknowledged,
        "slots": slots,
        "source": source,
        "expected_low": low,
        "expected_high": high & 0xFFFF,
    }


def echo_of(number: int) -> int:
    return random.getrandbits(VALUES_AT) | number << VALUES_AT | random.getrandbits(224) << VALUES_AT + 32


async def begin(dut, stall: float) -> tuple[StreamSink, StreamSource]:
    dut.probe_slot_strobe.value = dut.given_up.value = 0
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
        ask_for(dut, asked[-1])
        await pulse(dut, "probe_slot_strobe")
        ask_for(dut, random.getrandbits(25))
        await probe.receive(len(asked))
        if random.random() < 0.5:
            echo.send([echo_of(number ^ 1)])  # to another question
            await ClockCycles(dut.clk, 5)
        assert not dut.echo_came.value
        waited = random.randint(3, 40)
        await ClockCycles(dut.clk, waited)
        answer = echo_of(number)
        echo.send([answer, echo_of(number)])  # what comes twice counts once
        await ClockCycles(dut.clk, 5)
        assert dut.echo_came.value
        assert shown(dut) == expected(answer)
        assert waited <= int(dut.echo_cycles.value) <= waited + 12
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
        assert dut.echo_came.value
        dut.given_up.value = 0
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)


@cocotb.test()
@cocotb.parametrize(together=[False, True])
async def asks_about_what_is_given_up_after_a_question_that_waits(dut, together):
    """The host asks while nothing is sent, then the endpoint gives up: both probes are sent, the last is answered."""
    probe, echo = await begin(dut, 1.0)
    await ClockCycles(dut.clk, 2)
    dut.given_up_slot.value = 3
    ask_for(dut, question(2, 8, 0))
    dut.given_up.value = together
    await pulse(dut, "probe_slot_strobe")
    dut.given_up.value = 1
    await ClockCycles(dut.clk, 20)
    # No answer is to a probe that has not been sent, and no other question takes its place.
    echo.send([echo_of(8)])
    ask_for(dut, question(1, 9, 0))
    await pulse(dut, "probe_slot_strobe")
    await ClockCycles(dut.clk, 20)
    assert not dut.echo_came.value
    probe.stall = 0.0
    assert list(await probe.receive(2)) == [question(2, 8, 0), question(3, 0, 0)]
    echo.send([echo_of(8), answer := echo_of(0)])
    await ClockCycles(dut.clk, 20)
    assert dut.echo_came.value
    assert shown(dut) == expected(answer)
    assert len(probe.items) == 2


@cocotb.test()
async def asks_about_nothing_after_a_join(dut):
    """What waits to be asked about a slot is of no use when all slots have been forgotten."""
    probe, _ = await begin(dut, 1.0)
    await ClockCycles(dut.clk, 2)
    ask_for(dut, question(2, 8, 0))
    await pulse(dut, "probe_slot_strobe")
    dut.given_up.value = 1
    await ClockCycles(dut.clk, 5)
    dut.given_up.value = 0
    await ClockCycles(dut.clk, 5)
    probe.stall = 0.0
    await ClockCycles(dut.clk, 20)
    assert probe.items == [question(2, 8, 0)]


@pytest.mark.rtl
def test_prober():
    run_bench(Prober(WorkerConfig.tiny()), __file__)
