"""StridedReader and ModelStorer on a memory that is not ours."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import RisingEdge
from support.axi import PulseCounter, pulse
from support.bench import parameters, run_bench, start
from support.foreign_axi import ID_BITS, read_ram, write_ram
from support.model_memory import serve_weights
from support.streams import StreamSink, pack

from p4sgd.hw.datapath.model_mover import ModelStorer
from p4sgd.hw.datapath.strided_reader import StridedReader
from p4sgd.hw.kernel.verilog import VendorPorts
from p4sgd.hw.spec.config import WorkerConfig

SIZE = 1 << 16


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def reads(dut, stall):
    bits = parameters()["bits"]
    step = bits // 8
    ram = read_ram(dut, "m_axi", stall, SIZE)
    contents = random.randbytes(SIZE)
    ram.write(0, contents)
    data = StreamSink(dut, "data", stall)
    errors = PulseCounter(dut, "error")
    await start(dut)
    for case in range(8):
        data.items.clear()
        burst = random.randint(1, 8)
        stride = burst if case % 2 else random.randint(burst, 8)
        bursts = random.randint(1, 80)
        base = 4096 * random.randrange((SIZE - bursts * stride * step) // 4096)
        dut.base.value, dut.bursts.value = base, bursts
        dut.burst_beats.value, dut.stride_beats.value = burst, stride
        await pulse(dut, "start")
        wanted = [base + (group * stride + beat) * step for group in range(bursts) for beat in range(burst)]
        got = await data.receive(len(wanted))
        assert list(got) == [int.from_bytes(contents[at : at + step], "little") for at in wanted]
        await RisingEdge(dut.clk)
        await RisingEdge(dut.clk)
        assert not dut.busy.value
    assert errors.count == 0


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def stores(dut, stall):
    lanes, chunks = parameters()["lanes"], 32
    ram = write_ram(dut, "m_axi", stall, SIZE)
    before = random.randbytes(SIZE)
    ram.write(0, before)
    done = PulseCounter(dut, "done")
    errors = PulseCounter(dut, "error")
    rng = np.random.default_rng(random.getrandbits(32))
    w = rng.integers(-(1 << 31), 1 << 31, (chunks, lanes))

    await start(dut)
    cocotb.start_soon(serve_weights(dut, [pack(chunk, 32) for chunk in w.tolist()]))
    base = 4096 * random.randrange(4)
    dut.base.value, dut.chunks.value = base, chunks
    await pulse(dut, "start")
    while not done.count:
        await RisingEdge(dut.clk)
    stored = w.astype("<i4").tobytes()
    assert ram.read(0, SIZE) == before[:base] + stored + before[base + len(stored) :]
    assert errors.count == 0


@pytest.mark.rtl
@pytest.mark.parametrize("bits", [64, pytest.param(512, marks=pytest.mark.slow)])
def test_reads(bits):
    run_bench(VendorPorts(StridedReader(bits), {"memory": "m_axi"}, id_bits=ID_BITS), __file__, only="reads", bits=bits)


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize("lanes", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_stores(lanes):
    config = WorkerConfig(engines=1, lanes=lanes, chunks=32, line_fifo_depth=128, slots=4, table_segments=64)
    ports = VendorPorts(ModelStorer(config), {"memory": "m_axi"}, id_bits=ID_BITS)
    run_bench(ports, __file__, only="stores", lanes=lanes)
