"""SimMemory under a master that is not ours."""

import random
from pathlib import Path

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.axi import pulse
from support.bench import run_bench, start
from support.foreign_axi import ID_BITS, axi, memory_master

from p4sgd.hw.kernel.verilog import VendorPorts
from p4sgd.sim.cluster import memory
from p4sgd.sim.cluster.memory import SimMemory, timing_word
from p4sgd.sim.cluster.protocol import MemoryTiming, memory_file

BITS, STEP, ADDRESS_BITS = 64, 8, 14
SIZE = 1 << ADDRESS_BITS


@cocotb.test()
@cocotb.parametrize(stall=[0, 100])
async def writes_and_reads_any_bytes(dut, stall):
    """The master splits at 4 KiB and strobes parts of words; several reads are under way at once."""
    master = memory_master(dut, "s_axi", stall / 256)
    dut.seed.value, dut.stall.value, dut.load.value, dut.save.value = random.getrandbits(32), stall, 0, 0
    dut.timing.value = timing_word(MemoryTiming())
    contents = bytearray(random.randbytes(SIZE))
    (Path.cwd() / memory_file(0, 0)).write_bytes(contents)
    await start(dut)
    await pulse(dut, "load")
    await RisingEdge(dut.clk)
    for _ in range(20):
        address, count = random.randrange(SIZE), random.randint(1, 600)
        data = random.randbytes(count)[: SIZE - address]
        answer = await master.write(address, data, awid=0)
        assert answer.resp == axi.AxiResp.OKAY
        contents[address : address + len(data)] = data
    reads = []
    for _ in range(20):
        address = STEP * random.randrange(SIZE // STEP)
        count = min(STEP * random.randint(1, 80), SIZE - address)
        reads.append((address, count, master.init_read(address, count, arid=0)))
    for address, count, read in reads:
        await read.wait()
        assert read.data.resp == axi.AxiResp.OKAY
        assert bytes(read.data.data) == bytes(contents[address : address + count])


@pytest.mark.rtl
@pytest.mark.slow
def test_foreign_memory_master():
    component = SimMemory(BITS, ADDRESS_BITS, file=memory_file(0, 0), instance=3)
    storage = Path(memory.__file__).with_name("sim_storage.sv")
    run_bench(VendorPorts(component, {"bus": "s_axi"}, id_bits=ID_BITS), __file__, sources=[storage])
