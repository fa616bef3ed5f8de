"""Counters: every cycle of a run has exactly one cause."""

import random
from dataclasses import asdict

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import parameters, run_bench, start
from support.streams import pack

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.registers import counters
from p4sgd.hw.worker.counters import Counters
from p4sgd.hw.worker.sequencer import Phase


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


def shown(dut, config):
    return {name: int(getattr(dut, name.lower()).value) for name in counters(config)}


@cocotb.test()
async def one_cause_a_cycle(dut):
    config = WorkerConfig(**parameters()["config"])
    packets = ("sent", "resent", "received", "dropped")
    vectors = ("took_line", "lines_left", "line_waiting")
    state = (*vectors, "awaiting_sums")
    dut.snapshot_take_strobe.value = dut.clear.value = 0
    await start(dut)
    for _ in range(5):
        expected = dict.fromkeys(counters(config), 0)
        most = 0
        for name in (*packets, *state):
            getattr(dut, name).value = 0
        dut.clear.value = 1  # in the first cycle, which counts
        dut.phase.value = Phase.MODEL.value
        await RisingEdge(dut.clk)
        dut.clear.value = 0
        dut.phase.value = Phase.TRAIN.value  # before the first line is asked for
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        expected["CYCLES"] = expected["CYCLES_MODEL"] = 3
        begun = False
        for _ in range(300):
            phase = random.choice([Phase.MODEL, Phase.TRAIN, Phase.FINISH])
            engines = [{name: random.getrandbits(1) for name in state} for _ in range(config.engines)]
            happened = {name: random.getrandbits(1) for name in packets}
            in_flight = random.randint(0, config.in_flight)
            dut.phase.value = phase.value
            for name in vectors:
                getattr(dut, name).value = pack((bits[name] for bits in engines), 1)
            dut.awaiting_sums.value = engines[0]["awaiting_sums"]
            for name, bit in happened.items():
                getattr(dut, name).value = bit
            dut.in_flight_now.value = in_flight
            most = max(most, in_flight)
            await RisingEdge(dut.clk)
            begun |= phase is Phase.TRAIN and bool(engines[0]["lines_left"])
            preparing = phase is Phase.TRAIN and not begun
            found = "model" if preparing else cause(phase, *(engines[0][name] for name in state))
            expected["CYCLES"] += 1
            expected[f"CYCLES_{found.upper()}"] += 1
            for name in packets:
                expected[f"PACKETS_{name.upper()}"] += happened[name]
            for engine, bits in enumerate(engines):
                training = phase is Phase.TRAIN and begun
                expected[f"ENGINE{engine}_LINES"] += training and bits["took_line"]
                expected[f"ENGINE{engine}_STARVED"] += training and bits["lines_left"] and not bits["line_waiting"]
        # A snapshot of the middle of the run: whole, and the same until the next.
        dut.phase.value = Phase.TRAIN.value
        dut.took_line.value = 1
        for name in packets:
            getattr(dut, name).value = 0
        dut.snapshot_take_strobe.value = 1
        await RisingEdge(dut.clk)
        dut.snapshot_take_strobe.value = 0
        for _ in range(3):
            await RisingEdge(dut.clk)
        once = shown(dut, config)
        causes = [count for name, count in once.items() if name.startswith("CYCLES_")]
        assert expected["CYCLES"] <= once["CYCLES"] == sum(causes) <= expected["CYCLES"] + 1
        for _ in range(5):
            await RisingEdge(dut.clk)
        assert shown(dut, config) == once
        # At rest they show the whole run, and frames that come late do not count.
        dut.phase.value = Phase.IDLE.value
        for name in packets:
            getattr(dut, name).value = 1
        for _ in range(4):
            await RisingEdge(dut.clk)
        got = shown(dut, config)
        assert got["CYCLES"] == expected["CYCLES"] + 9
        assert got["CYCLES_BUSY"] == expected["CYCLES_BUSY"] + 9
        unchanged = [name for name in got if name.startswith("PACKETS") or name in {"CYCLES_MEMORY", "CYCLES_NETWORK"}]
        assert [got[name] for name in unchanged] == [expected[name] for name in unchanged]
        assert dut.in_flight_most.value == most


@pytest.mark.rtl
def test_counters():
    config = WorkerConfig(engines=2, lanes=8, chunks=16, line_fifo_depth=128, slots=8, table_segments=64)
    run_bench(Counters(config), __file__, config=asdict(config))
