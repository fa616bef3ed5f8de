"""Memory masters, registers and frames, on AXI ends that are not ours."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.axi import PulseCounter, pulse
from support.bench import parameters, run_bench, start
from support.foreign_axi import ID_BITS, axi, read_ram, register_master
from support.streams import StreamSink

from p4sgd.hw.bus.register_file import RegisterFile, member_name
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


@pytest.mark.rtl
def test_registers():
    ports = VendorPorts(RegisterFile(worker_map(CONFIG)), {"bus": "s_axi_control"})
    run_bench(ports, __file__, only="registers_are_bytes_of_memory")
