"""Counters: every cycle of a run has exactly one cause."""

import random
from collections import Counter

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from support.bench import run_bench, start, worker_config
from support.signals import drive, pulse
from support.streams import pack

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import DropReason
from p4sgd.hw.spec.registers import counters
from p4sgd.hw.worker.sequencer import Counters, Phase

PACKETS = ("sent", "resent", "received", "dropped")
VECTORS = ("took_line", "lines_left", "line_waiting")


def cause(phase, took, left, waiting, awaiting):
    if phase is not Phase.TRAIN:
        return "CYCLES_MODEL" if phase is Phase.MODEL else "CYCLES_DRAIN"
    if took:
        return "CYCLES_BUSY"
    if not left:
        return "CYCLES_DRAIN"
    return "CYCLES_MEMORY" if not waiting else "CYCLES_NETWORK" if awaiting else "CYCLES_CHAINING"


@cocotb.test()
async def one_cause_a_cycle(dut):
    config = worker_config()

    def shown():
        return {name: int(getattr(dut, name.lower()).value) for name in counters(config)}

    drive(dut, snapshot_take_strobe=0, clear=0)
    await start(dut)
    for _ in range(5):
        drive(
            dut,
            **dict.fromkeys((*PACKETS, *VECTORS, "awaiting_sums"), 0),
            drop=(drop := random.choice(list(DropReason))),
        )
        drive(dut, phase=Phase.MODEL.value)
        await pulse(dut, "clear")  # in the first cycle, which counts
        drive(dut, phase=Phase.TRAIN.value)  # before the first line is asked for
        await ClockCycles(dut.clk, 2)
        expected, most, begun = Counter(CYCLES=3, CYCLES_MODEL=3), 0, False
        for _ in range(300):
            phase = random.choice([Phase.MODEL, Phase.TRAIN, Phase.FINISH])
            engines = [{name: random.getrandbits(1) for name in VECTORS} for _ in range(config.engines)]
            happened = {name: random.getrandbits(1) for name in PACKETS}
            awaiting, in_flight = random.getrandbits(1), random.randint(0, config.in_flight)
            drive(dut, phase=phase.value, awaiting_sums=awaiting, in_flight_now=in_flight, **happened)
            drive(dut, **{name: pack((bits[name] for bits in engines), 1) for name in VECTORS})
            most = max(most, in_flight)
            await RisingEdge(dut.clk)
            begun |= phase is Phase.TRAIN and bool(engines[0]["lines_left"])
            training = phase is Phase.TRAIN and begun
            preparing = phase is Phase.TRAIN and not begun
            expected["CYCLES"] += 1
            expected["CYCLES_MODEL" if preparing else cause(phase, *engines[0].values(), awaiting)] += 1
            expected.update({f"PACKETS_{name.upper()}": bit for name, bit in happened.items()})
            expected[f"DROPPED_{drop.name}"] += happened["dropped"]
            for engine, bits in enumerate(engines):
                expected[f"ENGINE{engine}_LINES"] += training and bits["took_line"]
                expected[f"ENGINE{engine}_STARVED"] += training and bits["lines_left"] and not bits["line_waiting"]
        # A snapshot of the middle of the run: whole, and the same until the next.
        drive(dut, phase=Phase.TRAIN.value, took_line=1, lines_left=0, **dict.fromkeys(PACKETS, 0))
        await pulse(dut, "snapshot_take_strobe")
        await ClockCycles(dut.clk, 3)
        once = shown()
        causes = [count for name, count in once.items() if name.startswith("CYCLES_")]
        assert expected["CYCLES"] <= once["CYCLES"] == sum(causes) <= expected["CYCLES"] + 1
        await ClockCycles(dut.clk, 5)
        assert shown() == once
        # At rest they show the whole run, and frames that come late do not count.
        drive(dut, phase=Phase.IDLE.value, **dict.fromkeys(PACKETS, 1))
        await ClockCycles(dut.clk, 4)
        expected.update(CYCLES=9, CYCLES_BUSY=9, ENGINE0_LINES=9)
        assert shown() == {name: expected[name] for name in counters(config)}
        assert dut.in_flight_most.value == most


@pytest.mark.rtl
def test_counters():
    config = WorkerConfig(engines=2, lanes=8, chunks=16, line_fifo_depth=128, slots=8, table_segments=64)
    run_bench(Counters(config), __file__, scrambled=True, config=config)
