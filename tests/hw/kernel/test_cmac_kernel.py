"""The MAC's kernel around a model of the vendor's MAC: frames go out and come back by the transceivers' loopback."""

import random
import re
from pathlib import Path

import cocotb
import pytest
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from support.bench import run_verilog_bench, start
from support.cmac import Host
from support.foreign_axi import RegisterWords, axi, frame_sink, frame_source
from support.verilog_ports import ports_of

from p4sgd.hw.kernel.verilog import CMAC_IP, CMAC_KERNEL, cmac_kernel
from p4sgd.hw.spec import cmac

MODEL = Path(__file__).with_name(f"{CMAC_IP}.sv")
BAD_BYTE = 0xBD
CORRECTED_BYTE = 0xC0


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def frames_come_back(dut, stall):
    Clock(dut.gt_refclk_p, 3104, unit="ps").start()  # the model makes the user's clock of it
    Clock(dut.clk_gt_freerun, 10, unit="ns").start()
    dut.gt_refclk_n.value = dut.gt_rxp.value = dut.gt_rxn.value = 0
    host = Host(RegisterWords(dut, "s_axi_control", stall))
    source, sink = frame_source(dut, "axis_tx", stall), frame_sink(dut, "axis_rx", stall)
    await start(dut)
    await ClockCycles(dut.ap_clk, 1000)
    assert not (await host.read(cmac.STATUS))["up"], "there is no cable"
    source.send_nowait(axi.AxiStreamFrame(bytes(64)))  # goes nowhere, and stops nothing
    await source.wait()
    for rs_fec in (0, 1):
        await host.write(cmac.CONTROL, reset=1, loopback=1, rs_fec=rs_fec)
        await host.write(cmac.CONTROL, loopback=1, rs_fec=rs_fec)
        await host.until(up=1, aligned=1, fec_aligned=rs_fec, hi_ber=0)
        assert await host.read(cmac.LANES) == {"block_lock": 0xFFFFF, "fec_lock": 0xF * rs_fec}
    await host.write(cmac.CONTROL, loopback=1, rx_reset=1)
    await host.until(up=0, aligned=0, fec_aligned=0, rx_reset=1, tx_reset=0)
    assert await host.read(cmac.LANES) == {"block_lock": 0, "fec_lock": 0}
    await host.write(cmac.CONTROL, loopback=1)
    await host.until(up=1, rx_reset=0)
    lengths = [random.choice([60, 64, 106, random.randint(60, 1514)]) for _ in range(100)]
    frames = [random.randbytes(length) for length in lengths]
    for at, byte in zip(random.sample(range(100), 35), [BAD_BYTE] * 20 + [CORRECTED_BYTE] * 15, strict=True):
        frames[at] = bytes([byte]) + frames[at][1:]
    good = [frame for frame in frames if frame[0] != BAD_BYTE]
    for frame in frames:
        source.send_nowait(axi.AxiStreamFrame(frame))
    for frame in good:
        assert bytes((await sink.recv()).tdata) == frame
    await ClockCycles(dut.ap_clk, 500)
    assert sink.empty()
    assert await host.counters() == {
        "TX_FRAMES": 100,
        "TX_DROPPED": 1,
        "RX_FRAMES": len(good),
        "RX_BAD": 100 - len(good),
        "RX_OVERFLOWS": 0,
        "LINK_LOSSES": 2,  # by resets of the MAC and of its receivers
        "TX_FAULTS": 0,
        "RX_BAD_FCS": 100 - len(good),
        "FEC_CORRECTED": sum(frame[0] == CORRECTED_BYTE for frame in frames),
        "FEC_UNCORRECTED": 100 - len(good),
    }


@pytest.mark.rtl
def test_cmac_kernel():
    kernel = cmac_kernel()
    run_verilog_bench(kernel.text, kernel.top, __file__, sources=[MODEL])


def test_names_ports_and_marks_are_as_asked():
    """Two MACs in one design are two IPs, and so two kernels. What takes a value of another clock bears a mark."""
    kernel = cmac_kernel(top="other_kernel", mac="other_mac")
    assert kernel.top == "other_kernel"
    assert "  other_mac mac (" in kernel.text
    assert CMAC_IP not in kernel.text
    assert CMAC_KERNEL not in kernel.text
    ports = ports_of(kernel.text, kernel.top)
    board = ("clk_gt_freerun", "gt_refclk_p", "gt_refclk_n")
    assert {name: port for name, port in ports.items() if name.startswith(("gt_", "clk_", "ap_"))} == {
        **dict.fromkeys(("ap_clk", "ap_rst_n", *board), ("input", 1)),
        **dict.fromkeys(("gt_rxp", "gt_rxn"), ("input", 4)),
        **dict.fromkeys(("gt_txp", "gt_txn"), ("output", 4)),
    }
    marks = re.findall(r"^((?:  (?:\(\*|output ).*\n)*)  reg (?:\[\d+:0\] )?stage\d ", kernel.text, re.MULTILINE)
    assert len(marks) > 10
    assert all("ASYNC_REG" in mark for mark in marks)
