"""Counters: every cycle of a run has exactly one cause."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import run_bench, start

from p4sgd.hw.spec.registers import COUNTERS
from p4sgd.hw.worker.counters import Counters
from p4sgd.hw.worker.sequencer import Phase

CAUSES = ("busy", "memory", "network", "chaining", "drain", "model")


def cause(phase: Phase, took: int, left: int, waiting: int, awaiting: int) -> str | None:
    if phase is Phase.IDLE:
        return None
    if phase is Phase.MODEL:
        return "model"
    if phase is Phase.FINISH:
        return "drain"
    if took:
        return "busy"
    if not left:
        return "drain"
    if not waiting:
        return "memory"
    return "network" if awaiting else "chaining"


@cocotb.test()
async def one_cause_a_cycle(dut):
    packets = ("sent", "resent", "received", "dropped")
    state = ("took_line", "lines_left", "line_waiting", "awaiting_sums")
    await start(dut)
    for _ in range(5):
        expected = dict.fromkeys((name for name, _ in COUNTERS), 0)
        dut.phase.value = Phase.IDLE.value
        dut.clear.value = 1
        await RisingEdge(dut.clk)
        dut.clear.value = 0
        for _ in range(300):
            phase = random.choice(list(Phase))
            bits = {name: random.getrandbits(1) for name in state + packets}
            dut.phase.value = phase.value
            for name, bit in bits.items():
                getattr(dut, name).value = bit
            await RisingEdge(dut.clk)
            found = cause(phase, *(bits[name] for name in state))
            expected["CYCLES"] += found is not None
            if found:
                expected[f"CYCLES_{found.upper()}"] += 1
            for name in packets:
                expected[f"PACKETS_{name.upper()}"] += bits[name]
        dut.phase.value = Phase.IDLE.value
        for name in packets:
            getattr(dut, name).value = 0
        for _ in range(3):
            await RisingEdge(dut.clk)
        got = {name: int(getattr(dut, name.lower()).value) for name, _ in COUNTERS}
        assert got == expected
        assert got["CYCLES"] == sum(got[f"CYCLES_{name.upper()}"] for name in CAUSES)


@pytest.mark.rtl
def test_counters():
    run_bench(Counters(), __file__)
