"""Memory masters, registers and frames, on AXI ends that are not ours."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import RisingEdge
from support.axi import PulseCounter, pulse
from support.bench import parameters, run_bench, start
from support.foreign_axi import ID_BITS, axi, frame_sink, frame_source, read_ram, register_master, write_ram
from support.model_memory import serve_weights
from support.streams import StreamSink, pack

from p4sgd.hw.bus.axi import FRAME_BEAT_BYTES, FrameBeat
from p4sgd.hw.bus.register_file import RegisterFile, member_name
from p4sgd.hw.bus.stream import RegisterSlice
from p4sgd.hw.datapath.model_mover import ModelStorer
from p4sgd.hw.datapath.strided_reader import StridedReader
from p4sgd.hw.kernel.verilog import VendorPorts
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access
from p4sgd.hw.spec.registers import worker_map

CONFIG = WorkerConfig.tiny()
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


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def frames_pass(dut, stall):
    source, sink = frame_source(dut, "axis_in", stall), frame_sink(dut, "axis_out", stall)
    await start(dut)
    frames = [random.randbytes(random.choice([1, FRAME_BEAT_BYTES, random.randint(1, 300)])) for _ in range(50)]
    for frame in frames:
        source.send_nowait(axi.AxiStreamFrame(frame))
    for frame in frames:
        got = await sink.recv()
        assert bytes(got.tdata) == frame


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def registers_are_bytes_of_memory(dut, stall):
    """The read-write registers, seen by a master that writes any bytes and has several requests under way."""
    registers = list(worker_map(CONFIG))
    bus = register_master(dut, "s_axi_control", stall)
    await start(dut)
    held = [r for r in registers if all(field.access is Access.RW for field in r.fields)]
    assert len(held) > 10
    word = {register.offset: register.reset for register in held}
    masks = {register.offset: sum(field.mask for field in register.fields) for register in held}
    for _ in range(120):
        offset = random.choice(list(word))
        first = random.randrange(4)
        data = random.randbytes(random.randint(1, 4 - first))
        answer = await bus.write(offset + first, data)
        assert answer.resp == axi.AxiResp.OKAY
        new = bytearray(word[offset].to_bytes(4, "little"))
        new[first : first + len(data)] = data
        word[offset] = int.from_bytes(new, "little") & masks[offset]
    reads = [(offset, bus.init_read(offset, 4)) for offset in random.choices(list(word), k=60)]
    for offset, read in reads:
        await read.wait()
        assert read.data.resp == axi.AxiResp.OKAY
        assert int.from_bytes(read.data.data, "little") == word[offset], hex(offset)
    for register in held:
        for field in register.fields:
            got = int(getattr(dut, member_name(register, field)).value)
            assert got == (word[register.offset] & field.mask) >> field.low
    # Writes and reads under way at once, of different registers: neither may stop the other.
    writes = [bus.init_write(offset, (masks[offset] & 0x5A5A5A5A).to_bytes(4, "little")) for offset in word]
    for offset in word:
        assert (await bus.read(offset, 4)).resp == axi.AxiResp.OKAY
    for write in writes:
        await write.wait()
    await RisingEdge(dut.clk)
    for offset in word:
        assert await bus.read_dword(offset) == masks[offset] & 0x5A5A5A5A


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


@pytest.mark.rtl
@pytest.mark.slow
def test_frames():
    ports = VendorPorts(RegisterSlice(FrameBeat), {"i": "axis_in", "o": "axis_out"})
    run_bench(ports, __file__, only="frames_pass")


@pytest.mark.rtl
def test_registers():
    ports = VendorPorts(RegisterFile(worker_map(CONFIG)), {"bus": "s_axi_control"})
    run_bench(ports, __file__, only="registers_are_bytes_of_memory")
