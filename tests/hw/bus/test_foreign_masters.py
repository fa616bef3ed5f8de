"""Registers and frames, driven by AXI ends that are not ours."""

import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from cocotb.triggers import RisingEdge
from support.bench import run_bench, start
from support.foreign_axi import axi, frame_sink, frame_source, register_master

from p4sgd.hw.bus.axi import FRAME_BEAT_BYTES, FrameBeat
from p4sgd.hw.bus.register_file import RegisterFile, member_name
from p4sgd.hw.kernel.verilog import VendorPorts
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.register_map import Access
from p4sgd.hw.spec.registers import worker_map

CONFIG = WorkerConfig.tiny()


class FrameBuffer(wiring.Component):
    """Frames in, frames out."""

    i: In(stream.Signature(FrameBeat))
    o: Out(stream.Signature(FrameBeat))

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=self.i.payload.shape().size, depth=4)
        m.d.comb += [
            fifo.w_data.eq(self.i.payload),
            fifo.w_en.eq(self.i.valid),
            self.i.ready.eq(fifo.w_rdy),
            self.o.payload.eq(fifo.r_data),
            self.o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(self.o.ready),
        ]
        return m


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
@pytest.mark.slow
def test_frames():
    ports = VendorPorts(FrameBuffer(), {"i": "axis_in", "o": "axis_out"})
    run_bench(ports, __file__, only="frames_pass")


@pytest.mark.rtl
def test_registers():
    ports = VendorPorts(RegisterFile(worker_map(CONFIG)), {"bus": "s_axi_control"})
    run_bench(ports, __file__, only="registers_are_bytes_of_memory")
