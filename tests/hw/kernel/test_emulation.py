"""What stands in for a MAC's kernel in emulation: frames pass it whole, its link comes up, goes down and loops back."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from support.bench import run_verilog_bench, start
from support.cmac import Host
from support.foreign_axi import RegisterWords, frame_sink, frame_source, send

from p4sgd.hw.kernel.verilog import emulated_cmac_kernel
from p4sgd.hw.spec import cmac

UP = {"up": 1, "aligned": 1, "local_fault": 0, "remote_fault": 0, "tx_reset": 0, "rx_reset": 0, "hi_ber": 0}


def random_frames(count, longest=256):
    return [random.randbytes(random.choice([60, 64, 92, random.randint(1, longest)])) for _ in range(count)]


async def begin(dut, stall):
    """The kernel's registers, and its ends: of the host (tx, rx) and of the line."""
    host = Host(RegisterWords(dut, "s_axi_control", stall))
    tx, line_rx = frame_source(dut, "axis_tx", stall), frame_source(dut, "axis_line_rx", stall)
    rx, line_tx = frame_sink(dut, "axis_rx", stall), frame_sink(dut, "axis_line_tx", stall)
    await start(dut)
    await host.until(**UP, fec_aligned=1, power_good=0xF)
    return host, tx, rx, line_tx, line_rx


async def passes(source, sink, frames):
    """Send frames, and expect them at the other end."""
    send(source, *frames)
    for frame in frames:
        assert bytes((await sink.recv()).tdata) == frame


def assert_some_of(sink, frames):
    """All that came was sent, in that order."""
    left = iter(frames)
    assert all(bytes(sink.recv_nowait().tdata) in left for _ in range(sink.count()))


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5, 0.9])
async def frames_pass_both_ways_at_once(dut, stall):
    host, tx, rx, line_tx, line_rx = await begin(dut, stall)
    assert await host.read(cmac.LANES) == {"block_lock": 0xFFFFF, "fec_lock": 0xF}
    sending = cocotb.start_soon(passes(tx, line_tx, random_frames(60)))
    await passes(line_rx, rx, random_frames(60))
    await sending
    assert line_tx.empty()
    assert rx.empty()
    assert await host.counters() == dict.fromkeys(cmac.COUNTERS, 0) | {"TX_FRAMES": 60, "RX_FRAMES": 60}


@cocotb.test()
async def the_line_takes_no_back_pressure(dut):
    """Frames that the host's end does not take are dropped whole and counted, as those of a cable are."""
    host, _, rx, _, line_rx = await begin(dut, 0.0)
    rx.clear_pause_generator()
    rx.pause = True
    frames = random_frames(1000)
    send(line_rx, *frames)
    beats = sum(-(-len(frame) // 64) for frame in frames)
    await ClockCycles(dut.ap_clk, beats + 200)
    assert line_rx.empty(), "the line waited"
    rx.pause = False
    await ClockCycles(dut.ap_clk, beats + 200)
    counted = await host.counters()
    assert counted["RX_OVERFLOWS"] > 0
    assert counted["RX_OVERFLOWS"] + counted["RX_FRAMES"] == len(frames)
    assert rx.count() == counted["RX_FRAMES"]
    assert_some_of(rx, frames)


@cocotb.test()
@cocotb.parametrize(field=["reset", "rx_reset"])
async def a_reset_loses_whole_frames(dut, field):
    """At any time within frames of both ways; what arrives was sent, in order, and all that is sent later arrives."""
    host, tx, rx, line_tx, line_rx = await begin(dut, 0.3)
    out, back = random_frames(200, 2000), random_frames(200, 2000)
    send(tx, *out)
    send(line_rx, *back)
    for _ in range(5):
        await ClockCycles(dut.ap_clk, random.randrange(200))
        await host.write(cmac.CONTROL, rs_fec=1, **{field: 1})
        await host.until(up=0, aligned=0, rx_reset=1, tx_reset=int(field == "reset"))
        await host.write(cmac.CONTROL, rs_fec=1)
        await host.until(**UP)
    await tx.wait()
    await line_rx.wait()
    await ClockCycles(dut.ap_clk, 2000)
    for sink, frames in ((line_tx, out), (rx, back)):
        assert_some_of(sink, frames)
    await passes(tx, line_tx, random_frames(5))
    await passes(line_rx, rx, random_frames(5))
    assert (await host.counters())["LINK_LOSSES"] == 5


@cocotb.test()
async def loopback_and_error_correction_begin_with_a_reset(dut):
    host, tx, rx, line_tx, line_rx = await begin(dut, 0.3)
    await host.write(cmac.CONTROL, reset=1, loopback=1, rs_fec=0)
    await host.write(cmac.CONTROL, loopback=1, rs_fec=0)
    await host.until(**UP, fec_aligned=0)
    assert await host.read(cmac.LANES) == {"block_lock": 0xFFFFF, "fec_lock": 0}
    send(line_rx, bytes(64))
    await passes(tx, rx, random_frames(40))
    await ClockCycles(dut.ap_clk, 500)
    assert rx.empty()
    assert line_tx.empty()


@pytest.mark.rtl
def test_emulated_cmac_kernel():
    kernel = emulated_cmac_kernel()
    run_verilog_bench(kernel.text, kernel.top, __file__)
