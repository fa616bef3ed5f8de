"""RegisterSlice: every beat once, in order and in every cycle, and no output depends on an input of the same cycle."""

import random
from itertools import pairwise

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from cocotb.triggers import ClockCycles
from support.bench import default_seed, parameters, run_sizes, start
from support.signals import Cycles, check_registered
from support.streams import StreamSink, StreamSource, passes

from p4sgd.hw.bus.stream import RegisterSlice, connect_stream


class Stages(wiring.Component):
    """Slices one after the other."""

    def __init__(self, bits, stages):
        self._slices = [RegisterSlice(bits) for _ in range(stages)]
        super().__init__({"i": In(stream.Signature(bits)), "o": Out(stream.Signature(bits))})

    def elaborate(self, platform):
        m = Module()
        for number, each in enumerate(self._slices):
            m.submodules[f"slice{number}"] = each
        connect_stream(m, wiring.flipped(self.i), self._slices[0].i)
        for before, after in pairwise(self._slices):
            connect_stream(m, before.o, after.i)
        connect_stream(m, self._slices[-1].o, wiring.flipped(self.o))
        return m


def beats(count):
    return [random.getrandbits(parameters()["bits"]) for _ in range(count)]


async def begin(dut, before=0.0, after=0.0):
    """Both ends, and the cycles of transfers at each."""
    source, sink = StreamSource(dut, "i", before), StreamSink(dut, "o", after)
    await start(dut)
    return source, sink, *(Cycles(dut, f"{name}__valid", f"{name}__ready") for name in "io")


@cocotb.test()
@cocotb.parametrize(before=[0.0, 0.3, 0.9], after=[0.0, 0.3, 0.9])
async def every_beat_once(dut, before, after):
    source, sink, *_ = await begin(dut, before, after)
    await passes(source, sink, beats(500))


@cocotb.test()
async def a_beat_in_every_cycle(dut):
    """N beats take N cycles and one for each slice."""
    source, sink, came, went = await begin(dut)
    await passes(source, sink, beats(200))
    assert came == list(range(came[0], came[0] + 200))
    assert went == [cycle + parameters()["stages"] for cycle in came]


@cocotb.test()
async def no_cycle_is_lost_after_a_stall(dut):
    """What waited, and what follows it, leaves in consecutive cycles; each slice keeps two beats."""
    source, sink, came, went = await begin(dut, after=1.0)
    source.send(sent := beats(100))
    await ClockCycles(dut.clk, 30)
    assert len(came) == 2 * parameters()["stages"]
    sink.stall = 0.0
    assert list(await sink.receive(len(sent))) == sent
    assert went == list(range(went[0], went[0] + len(sent)))


@cocotb.test()
async def all_outputs_are_registers(dut):
    await start(dut)
    inputs, outputs = (dut.i__payload, dut.i__valid, dut.o__ready), (dut.i__ready, dut.o__valid, dut.o__payload)
    await check_registered(dut, inputs, outputs, cycles=300)


@pytest.mark.rtl
def test_register_slice(monkeypatch):
    """Of any width, which the seed that a failure names gives again."""
    seed = default_seed()
    monkeypatch.setenv("P4SGD_SEED", str(seed))
    bits = random.Random(seed).randint(1, 600)
    run_sizes({f"stages{n}": (Stages(bits, n), {"bits": bits, "stages": n}) for n in (1, 3)}, __file__)
