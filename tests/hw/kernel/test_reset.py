"""A kernel's registers answer the first requests after a reset, however early they come."""

import random

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge, with_timeout
from support.axi import LiteMaster
from support.bench import run_bench

from p4sgd.hw.bus.register_file import RegisterFile
from p4sgd.hw.kernel.clocking import PORTS, connect_control, kernel_clock
from p4sgd.hw.spec import cmac
from p4sgd.hw.spec.timing import RESET_CYCLES

BUILD_ID = 77


class Registers(wiring.Component):
    """The registers of the MAC's kernel without the MAC."""

    def __init__(self):
        super().__init__(PORTS)

    def elaborate(self, platform):
        m = Module()
        kernel_clock(m, self.ap_clk, self.ap_rst_n)
        m.submodules.registers = registers = RegisterFile(cmac.cmac_map())
        connect_control(m, self.control, registers.bus)
        m.d.comb += registers.show(cmac.identity(BUILD_ID))
        return m


@cocotb.test()
async def answers_the_first_requests(dut):
    """And takes nothing in reset, nor in the cycles on the reset's way."""
    offsets = {register.name: register.offset for register in cmac.cmac_map()}
    words = cmac.identity(BUILD_ID)
    dut.ap_rst_n.value = 0
    master = LiteMaster(dut, "control", 0.0, clock=dut.ap_clk)
    Clock(dut.ap_clk, 4, unit="ns").start()
    await ClockCycles(dut.ap_clk, 3)
    dut.ap_rst_n.value = 1
    for cycle in range(RESET_CYCLES + 4):
        await ReadOnly()
        ready = {int(getattr(dut, f"control__{channel}__ready").value) for channel in ("aw", "w", "ar")}
        assert ready == {int(cycle > RESET_CYCLES)}, cycle
        await RisingEdge(dut.ap_clk)

    async def requests():
        for name in random.choices(["BUILD_ID", "ABI_VERSION", "CONTROL"], k=4):
            if name == "CONTROL":
                await master.write(offsets[name], 0)
            else:
                assert await master.read(offsets[name]) == words[name]

    for _ in range(100):
        dut.ap_rst_n.value = 0
        await ClockCycles(dut.ap_clk, random.randint(1, 6))
        dut.ap_rst_n.value = 1
        for _ in range(random.choice([0, 0, 0, 1, 2, 3, 4])):
            await RisingEdge(dut.ap_clk)
        await with_timeout(requests(), 1, "us")
        await ClockCycles(dut.ap_clk, random.randint(1, 6))


@pytest.mark.rtl
def test_reset():
    run_bench(Registers(), __file__)
