"""ModelLoader and ModelStorer: the layout of weights in memory."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import RisingEdge
from support.axi import PulseCounter, WriteMemory, pulse
from support.bench import parameters, run_sizes, start
from support.model_memory import serve_weights
from support.streams import StreamSink, StreamSource, pack

from p4sgd.hw.datapath.model_mover import ModelLoader, ModelStorer
from p4sgd.hw.spec.config import WorkerConfig


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def loads(dut, stall):
    lanes = parameters()["lanes"]
    beats = StreamSource(dut, "beats", stall)
    chunks = StreamSink(dut, "chunks", stall)
    await start(dut)
    rng = np.random.default_rng(random.getrandbits(32))
    w = rng.integers(-(1 << 31), 1 << 31, (20, lanes))
    memory = w.astype("<i4").tobytes()
    beats.send(int.from_bytes(memory[at : at + lanes], "little") for at in range(0, len(memory), lanes))
    assert list(await chunks.receive(20)) == [pack(chunk.tolist(), 32) for chunk in w]


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def stores(dut, stall):
    lanes = parameters()["lanes"]
    memory = WriteMemory(dut, "memory", 8 * lanes, stall)
    errors = PulseCounter(dut, "error")
    done = PulseCounter(dut, "done")
    rng = np.random.default_rng(random.getrandbits(32))
    w = rng.integers(-(1 << 31), 1 << 31, (32, lanes))

    await start(dut)
    cocotb.start_soon(serve_weights(dut, [pack(chunk, 32) for chunk in w.tolist()]))
    for chunks in (1, 7, 32):
        memory.contents.clear()
        base = 4096 * random.getrandbits(40)
        dut.base.value, dut.chunks.value = base, chunks
        before = done.count
        await pulse(dut, "start")
        for _ in range(5000):
            await RisingEdge(dut.clk)
            if done.count > before:
                break
        expected = w[:chunks].astype("<i4").tobytes()
        assert memory.contents == {base + at: byte for at, byte in enumerate(expected)}
        assert done.count == before + 1
    assert errors.count == 0
    memory.response = 0b10
    await pulse(dut, "start")
    for _ in range(2000):
        await RisingEdge(dut.clk)
    assert errors.count == 32


def config(lanes):
    return WorkerConfig(engines=1, lanes=lanes, chunks=32, line_fifo_depth=128, slots=4, table_segments=64)


@pytest.mark.rtl
@pytest.mark.parametrize(("component", "only"), [(ModelLoader, "loads"), (ModelStorer, "stores")])
def test_model_mover(component, only):
    run_sizes({f"lanes{n}": (component(config(n)), {"lanes": n}) for n in (8, 64)}, __file__, only=only)
