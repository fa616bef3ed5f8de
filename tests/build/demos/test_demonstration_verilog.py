"""The Verilog of a demonstration, from its pins on, run with stand-ins for the FPGA's cells and the vendor's IP."""

import tempfile
from pathlib import Path

import cocotb
import pytest
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer, with_timeout
from support import bench

from p4sgd.build.demos.demonstrations import HeartbeatDemonstration
from p4sgd.build.demos.loopback import LoopbackDemonstration
from p4sgd.build.fpga.alveo_u280 import AlveoU280Platform
from p4sgd.hw.kernel.verilog import cmac_kernel
from p4sgd.hw.spec.cmac import STATUS
from p4sgd.sim import verilator

TESTS = Path(bench.__file__).parents[1]
CELLS = TESTS / "support" / "fpga_cells.v"
MAC = TESTS / "hw" / "kernel" / "p4sgd_cmac_usplus.sv"
CLOCK_NS = 10
FAST_HZ = 120_000
"""What the loop-back takes its clock for, so that a second is 120,000 cycles, and a bit is one."""


async def power_up(dut):
    dut.rst_0__io.value = 1  # the button, which pulls low
    Clock(dut.clk100_0__p, CLOCK_NS, unit="ns").start()
    await Timer(1, unit="ns")


async def read_line(line, bit_ns):
    """A line of text from the serial port: each bit as it is in its middle."""
    text = ""
    while not text.endswith("\n"):
        if line.value == 1:
            await with_timeout(FallingEdge(line), 2, "ms")
        await Timer(bit_ns // 2, unit="ns")
        bits = [int(line.value)]
        for _ in range(9):
            await Timer(bit_ns, unit="ns")
            bits.append(int(line.value))
        assert (bits[0], bits[9]) == (0, 1)
        text += chr(sum(bit << index for index, bit in enumerate(bits[1:9])))
    return text


@cocotb.test()
async def tells_seconds_by_the_serial_port(dut):
    await power_up(dut)
    assert dut.hbm_cattrip_0__io.value == 0
    text = await read_line(dut.uart_0__tx__io, 868 * CLOCK_NS)  # the nearest to 115,200 baud
    assert text == "p4sgd heartbeat 00000000\r\n"


@cocotb.test()
async def frames_come_back_through_the_mac(dut):
    dut.qsfp28_refclk_0__p.value = 0
    await power_up(dut)
    Clock(dut.qsfp28_refclk_0__p, 3, unit="ns").start()  # the stand-in's clock for its user, near that of the MAC
    found = []
    for _ in range(2):
        words = (await read_line(dut.uart_0__tx__io, CLOCK_NS)).split()
        assert words[:2] == ["p4sgd", "loopback"]
        found.append({name: int(value, 16) for name, value in zip(words[2::2], words[3::2], strict=True)})
    begin, later = found
    assert set(begin.values()) == {0}
    status = STATUS.decode(later["status"])
    assert (status["up"], status["aligned"], status["power_good"]) == (1, 1, 0xF)
    assert (later["wrong"], later["missing"]) == (0, 0)
    assert later["sent"] > FAST_HZ // 2
    assert 0 < later["sent"] - later["received"] < 500, "but for those on their way"
    assert dut.hbm_cattrip_0__io.value == 0


def run(design, case, sources, kernel=""):
    plan = AlveoU280Platform().build(design, "top", do_build=False, emit_src=False)
    model = verilator.build(f"{plan.files['top.v']}\n{kernel}", "top", sources=[CELLS, *sources])
    path = Path(__file__)
    with tempfile.TemporaryDirectory() as work:
        model.run(path.stem, Path(work), python_path=[path.parent, TESTS], only=case.name)


@pytest.fixture(autouse=True)
def _yosys(monkeypatch):
    monkeypatch.setenv("AMARANTH_USE_YOSYS", "builtin")


@pytest.mark.rtl
@pytest.mark.slow
def test_heartbeat():
    run(HeartbeatDemonstration(), tells_seconds_by_the_serial_port, [])


@pytest.mark.rtl
@pytest.mark.slow
def test_loopback():
    run(LoopbackDemonstration(clock_hz=FAST_HZ), frames_come_back_through_the_mac, [MAC], cmac_kernel().text)
