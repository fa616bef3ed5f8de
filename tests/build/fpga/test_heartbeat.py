"""The heartbeat: its lines, its folder, and its Verilog from the pins on with stand-ins for the FPGA's cells."""

import json
import re

import cocotb
import pytest
from amaranth.sim import Simulator
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer, with_timeout
from support.bench import FPGA_CELLS, run_verilog_bench
from support.command_line import p4sgd, run
from support.yosys import run_yosys

from p4sgd.build.fpga.alveo_u280 import AlveoU280Platform
from p4sgd.build.fpga.heartbeat import PROGRAM, Heartbeat, HeartbeatDesign

COMMAND = "p4sgd build demo heartbeat --out heartbeat"
"""That of three READMEs."""

CLOCK_NS = 10


def text_of(line, bit_cycles):
    """Bytes on a line, each with the cycle in which its start bit begins; every bit is read in its middle."""
    found, cycle = [], 0
    while 0 in line[cycle:]:
        cycle = line.index(0, cycle)
        bits = line[cycle + bit_cycles // 2 : cycle + 10 * bit_cycles : bit_cycles]
        if len(bits) < 10:
            break  # the record ends within a character
        assert (bits[0], bits[9]) == (0, 1), f"start and stop bit of the character at cycle {cycle}"
        found.append((cycle, chr(sum(bit << index for index, bit in enumerate(bits[1:9])))))
        cycle += 9 * bit_cycles + bit_cycles // 2
    return found


@pytest.mark.parametrize("bit_cycles", [1, 7, 10])
def test_a_line_every_second_with_the_seconds(bit_cycles):
    """A second is 500 bits."""
    heartbeat, line, second = Heartbeat(500 * bit_cycles, 500), [], 500 * bit_cycles

    async def record(ctx):
        for _ in range(11 * second + 350 * bit_cycles):
            line.append(ctx.get(heartbeat.line))
            await ctx.tick()

    simulator = Simulator(heartbeat)
    simulator.add_clock(1e-6)
    simulator.add_testbench(record)
    simulator.run()
    found = text_of(line, bit_cycles)
    lines = [f"p4sgd heartbeat {number:08x}\r\n" for number in range(12)]
    assert "".join(character for _, character in found) == "".join(lines)
    begins = [cycle for cycle, _ in found[:: len(lines[0])]]
    assert [cycle - begins[0] for cycle in begins] == [number * second for number in range(12)]


def test_the_folder_is_whole(tmp_path):
    """Scripts name files that are there, all name the command, and cells without a module are those of the FPGA."""
    folder = tmp_path / "out"
    document = json.loads(run("build", "demo", "heartbeat", "--out", folder, "--json").stdout)
    assert sorted(document["files"]) == sorted(path.name for path in folder.iterdir())
    assert document["next"][0] == "sh build_heartbeat.sh"
    assert "-source heartbeat.tcl" in (folder / "build_heartbeat.sh").read_text()
    script = (folder / "heartbeat.tcl").read_text()
    read = re.findall(r'^(?:add_files|read_xdc) "?([\w.]+)"?$', script, re.MULTILINE)
    others = {"build_heartbeat.bat", "build_heartbeat.json", "build_heartbeat.sh", "heartbeat.tcl", PROGRAM}
    assert {path.name for path in folder.iterdir()} == {*read, *others, "manifest.json"}
    assert "write_bitstream -force -bin_file heartbeat.bit" in script
    assert "PROGRAM.FILE {heartbeat.bit}" in (folder / PROGRAM).read_text()
    for path in folder.iterdir():
        assert "p4sgd build demo heartbeat --out DIR" in "".join(path.read_text().splitlines(True)[:3]), path.name
    run_yosys("read_verilog heartbeat.v; hierarchy -top heartbeat", folder)
    verilog = (folder / "heartbeat.v").read_text()
    defined = set(re.findall(r"^module ([^\s(]+)", verilog, re.MULTILINE))
    used = set(re.findall(r"^  (\\\S+|[A-Za-z_]\w*) (?:#\($|\\?\S+ +\($)", verilog, re.MULTILINE))
    assert used - defined == {"IBUF", "IBUFDS", "OBUFT", "BUFG", "FDPE"}


def test_nothing_depends_on_place_or_time(demo_folder, tmp_path, own_folder):
    done = p4sgd(*COMMAND.split()[1:], PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    for path in demo_folder.iterdir():
        assert path.read_bytes() == (tmp_path / "heartbeat" / path.name).read_bytes(), path.name


@cocotb.test()
async def tells_seconds_by_the_serial_port(dut):
    dut.rst_0__io.value = 1  # the button, which pulls low
    Clock(dut.clk100_0__p, CLOCK_NS, unit="ns").start()
    await Timer(1, unit="ns")
    assert dut.hbm_cattrip_0__io.value == 0
    line, bit_ns, text = dut.uart_0__tx__io, 868 * CLOCK_NS, ""  # the nearest to 115,200 baud
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
    assert text == "p4sgd heartbeat 00000000\r\n"


@pytest.mark.rtl
@pytest.mark.slow
def test_verilog(monkeypatch):
    monkeypatch.setenv("AMARANTH_USE_YOSYS", "builtin")
    plan = AlveoU280Platform().build(HeartbeatDesign(), "top", do_build=False, emit_src=False)
    run_verilog_bench(plan.files["top.v"], "top", __file__, sources=[FPGA_CELLS])
