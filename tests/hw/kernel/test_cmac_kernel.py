"""The MAC's kernel around a model of the vendor's MAC: frames go out and come back by the transceivers' loopback."""

import random
import re
from pathlib import Path
from types import SimpleNamespace

import cocotb
import pytest
from amaranth.hdl import Cat, Mux, Signal
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from support.bench import parameters, run_verilog_bench, start
from support.cmac import Host
from support.foreign_axi import RegisterWords, frame_sink, frame_source, send
from support.verilog_ports import ports_of

from p4sgd.hw.bus.ports import FlatPorts, kernel_names
from p4sgd.hw.kernel.cmac import CmacKernel
from p4sgd.hw.kernel.verilog import CMAC_IP, CMAC_KERNEL, cmac_kernel
from p4sgd.hw.spec import cmac
from p4sgd.hw.ultrascale import UltraScalePlus
from p4sgd.hw.verilog import to_verilog

MODEL = Path(__file__).with_name(f"{CMAC_IP}.sv")
BUILD_ID = 77
BAD_BYTE = 0xBD
CORRECTED_BYTE = 0xC0
FAULT = 0xFA17_FA17.to_bytes(4, "little")


class LateSynchronizers(UltraScalePlus):
    """Synchronizers take a cycle more or not, at random, as real ones do with what changes while they sample it.

    Of several bits all are late together, as the bits of a Gray code may be.
    """

    def __init__(self):
        super().__init__()
        self._count = 0

    def get_ff_sync(self, synchronizer):
        self._count += 1
        settings = {"init": synchronizer._init, "reset_less": synchronizer._reset_less}
        before = Signal(synchronizer.i.shape(), name="before", **settings)
        sampled = Signal.like(before, name="sampled")
        noise = Signal(16, init=self._count * 0x9E37 & 0xFFFF, reset_less=True)  # x^16 + x^14 + x^13 + x^11 + 1
        names = ("o", "_init", "_reset_less", "_stages", "_o_domain")
        m = super().get_ff_sync(
            SimpleNamespace(i=sampled, **{name: getattr(synchronizer, name) for name in names}),
        )
        m.d.comb += sampled.eq(Mux(noise[0], before, synchronizer.i))
        m.d[synchronizer._o_domain] += [
            before.eq(synchronizer.i),
            noise.eq(Cat(noise[1:], noise[0] ^ noise[2] ^ noise[3] ^ noise[5])),
        ]
        return m


async def begin(dut, stall):
    """The kernel's registers, and its ends of frames."""
    Clock(dut.gt_refclk_p, parameters()["mac_ps"], unit="ps").start()  # the model makes the user's clock of it
    Clock(dut.clk_gt_freerun, 10, unit="ns").start()
    dut.gt_refclk_n.value = dut.gt_rxp.value = dut.gt_rxn.value = 0
    host = Host(RegisterWords(dut, "s_axi_control", stall))
    source, sink = frame_source(dut, "axis_tx", stall), frame_sink(dut, "axis_rx", stall)
    await start(dut)
    for register in cmac.after_reset(BUILD_ID):
        if register not in (cmac.STATUS, cmac.LANES):
            assert await host.read(register) == register.decode(register.reset), register.name
    return host, source, sink


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def frames_come_back(dut, stall):
    host, source, sink = await begin(dut, stall)
    await ClockCycles(dut.ap_clk, 1000)
    assert not (await host.read(cmac.STATUS))["up"], "there is no cable"
    send(source, bytes(64))  # goes nowhere, and stops nothing
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
    send(source, *frames)
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


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def the_link_goes_away_and_comes_back(dut, stall):
    """Frames that are to be sent meanwhile are dropped; those that come back are whole, in order, and counted."""
    host, source, sink = await begin(dut, stall)
    await host.write(cmac.CONTROL, loopback=1)
    await host.until(up=1)
    sent, losses = [], 0
    for ways in ({"loopback": 0}, {"loopback": 1, "rx_reset": 1}, {"loopback": 0}):
        frames = [random.randbytes(random.choice([60, 64, random.randint(60, 400)])) for _ in range(60)]
        sent += frames
        send(source, *frames)
        await ClockCycles(dut.ap_clk, random.randint(20, 60))
        await host.write(cmac.CONTROL, **ways)
        await host.until(up=0, aligned=0, local_fault=1, tx_reset=0, rx_reset=ways.get("rx_reset", 0))
        await source.wait()
        await host.write(cmac.CONTROL, loopback=1)
        await host.until(up=1)
        losses += 1
    sent.append(FAULT + bytes(60))
    send(source, sent[-1])
    await host.until(up=0, remote_fault=1, aligned=1)
    await host.until(up=1, remote_fault=0)
    losses += 1
    await ClockCycles(dut.ap_clk, 2000)
    left, got = iter(sent), [bytes(sink.recv_nowait().tdata) for _ in range(sink.count())]
    assert all(frame in left for frame in got), "each once, in order"
    counters = await host.counters()
    assert counters["RX_FRAMES"] == len(got)
    assert counters["TX_FRAMES"] + counters["TX_DROPPED"] == len(sent)
    assert 0 < counters["TX_DROPPED"] < len(sent)
    assert (counters["LINK_LOSSES"], counters["RX_OVERFLOWS"]) == (losses, 0)
    send(source, sent[0])
    dut.ap_rst_n.value = 0
    await ClockCycles(dut.ap_clk, 8)
    dut.ap_rst_n.value = 1
    await ClockCycles(dut.ap_clk, 1000)
    await host.until(up=0)
    assert set((await host.counters()).values()) == {0}, "a reset forgets what was counted"


@pytest.mark.rtl
@pytest.mark.parametrize("mac_ps", [3104, 4966])
def test_cmac_kernel(mac_ps):
    """With the MAC's 322 MHz beside 250 MHz; and in their ratio to 400 MHz, the slower one, which has frames wait."""
    kernel = CmacKernel(build_id=BUILD_ID, mac=CMAC_IP)
    text = to_verilog(FlatPorts(kernel, kernel_names(kernel)), CMAC_KERNEL, platform=LateSynchronizers())
    run_verilog_bench(text, CMAC_KERNEL, __file__, sources=[MODEL], scrambled=True, mac_ps=mac_ps)


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
