"""ModelLoader and ModelStorer: the layout of weights in memory."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ClockCycles
from support.axi import WriteMemory
from support.bench import parameters, run_sizes, start
from support.model_memory import serve_weights
from support.signals import Cycles, cycles_until, drive, pulse
from support.streams import StreamSink, StreamSource, pack

from p4sgd.hw.datapath.model_mover import ModelLoader, ModelStorer
from p4sgd.hw.spec.config import WorkerConfig


def random_weights():
    """Weights of 32 chunks; as words, and as bytes of memory."""
    w = np.random.default_rng(random.getrandbits(32)).integers(-(1 << 31), 1 << 31, (32, parameters()["lanes"]))
    return [pack(chunk, 32) for chunk in w.tolist()], w.astype("<i4").tobytes()


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def loads(dut, stall):
    lanes, (chunks, memory) = parameters()["lanes"], random_weights()
    beats, sink = StreamSource(dut, "beats", stall), StreamSink(dut, "chunks", stall)
    await start(dut)
    beats.send(int.from_bytes(memory[at : at + lanes], "little") for at in range(0, len(memory), lanes))
    assert list(await sink.receive(32)) == chunks


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def stores(dut, stall):
    lanes, (words, content) = parameters()["lanes"], random_weights()
    memory = WriteMemory(dut, "memory", 8 * lanes, stall)
    errors, done = Cycles(dut, "error"), Cycles(dut, "done")
    await start(dut)
    cocotb.start_soon(serve_weights(dut, words))
    for chunks, response in ((1, 0), (7, 0), (32, 0), (32, 0b10)):
        memory.contents.clear()
        memory.response = response
        base = 4096 * random.getrandbits(40)
        drive(dut, base=base, chunks=chunks)
        done.clear()
        await pulse(dut, "start")
        await cycles_until(dut, lambda: done)
        await ClockCycles(dut.clk, 5)
        assert memory.contents == dict(enumerate(content[: 4 * lanes * chunks], base))
        assert (len(done), len(errors)) == (1, chunks if response else 0)


@pytest.mark.rtl
@pytest.mark.parametrize(("component", "only"), [(ModelLoader, "loads"), (ModelStorer, "stores")])
def test_model_mover(component, only):
    configs = [WorkerConfig(lanes=lanes, chunks=32, line_fifo_depth=128, slots=4) for lanes in (8, 64)]
    sizes = {f"lanes{each.lanes}": (component(each), {"lanes": each.lanes}) for each in configs}
    run_sizes(sizes, __file__, only=only)
