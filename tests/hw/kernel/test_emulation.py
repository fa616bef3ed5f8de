"""What stands in for a MAC's kernel in emulation: frames pass it whole, its link comes up, goes down and loops back."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from support.bench import run_verilog_bench, start
from support.cmac import Host
from support.foreign_axi import RegisterWords, axi, frame_sink, frame_source

from p4sgd.hw.kernel.verilog import emulated_cmac_kernel
from p4sgd.hw.spec import cmac

UP = {"up": 1, "aligned": 1, "local_fault": 0, "remote_fault": 0, "tx_reset": 0, "rx_reset": 0, "hi_ber": 0}


def random_frames(count, longest=256):
    return [random.randbytes(random.choice([60, 64, 92, random.randint(1, longest)])) for _ in range(count)]


class Ends:
    """The kernel's two ends, of host and line, and its registers."""

    def __init__(self, dut, stall):
        self.host = Host(RegisterWords(dut, "s_axi_control", stall))
        self.tx, self.rx = frame_source(dut, "axis_tx", stall), frame_sink(dut, "axis_rx", stall)
        self.line_tx, self.line_rx = frame_sink(dut, "axis_line_tx", stall), frame_source(dut, "axis_line_rx", stall)

    async def passes(self, source, sink, frames):
        """Send frames, and expect them, all and no other, at the other end."""
        for frame in frames:
            source.send_nowait(axi.AxiStreamFrame(frame))
        for frame in frames:
            assert bytes((await sink.recv()).tdata) == frame


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5, 0.9])
async def frames_pass_both_ways_at_once(dut, stall):
    ends = Ends(dut, stall)
    await start(dut)
    await ends.host.until(**UP, fec_aligned=1, power_good=0xF)
    assert await ends.host.read(cmac.LANES) == {"block_lock": 0xFFFFF, "fec_lock": 0xF}
    out, back = random_frames(60), random_frames(60)
    sending = cocotb.start_soon(ends.passes(ends.tx, ends.line_tx, out))
    await ends.passes(ends.line_rx, ends.rx, back)
    await sending
    assert ends.line_tx.empty()
    assert ends.rx.empty()
    counted = await ends.host.counters()
    assert counted == dict.fromkeys(cmac.COUNTERS, 0) | {"TX_FRAMES": 60, "RX_FRAMES": 60}


@cocotb.test()
async def the_line_takes_no_back_pressure(dut):
    """Frames that the host's end does not take are dropped by the adapter and counted, as those of a cable are."""
    ends = Ends(dut, 0.0)
    await start(dut)
    await ends.host.until(up=1)
    ends.rx.clear_pause_generator()
    ends.rx.pause = True
    frames = random_frames(1000)
    for frame in frames:
        ends.line_rx.send_nowait(axi.AxiStreamFrame(frame))
    beats = sum(-(-len(frame) // 64) for frame in frames)
    await ClockCycles(dut.ap_clk, beats + 200)
    assert ends.line_rx.empty(), "the line waited"
    ends.rx.pause = False
    await ClockCycles(dut.ap_clk, beats + 200)
    counted = await ends.host.counters()
    assert counted["RX_OVERFLOWS"] > 0
    assert counted["RX_OVERFLOWS"] + counted["RX_FRAMES"] == len(frames)
    assert ends.rx.count() == counted["RX_FRAMES"]


@cocotb.test()
@cocotb.parametrize(field=["reset", "rx_reset"])
async def a_reset_loses_whole_frames(dut, field):
    """At any time within frames of both ways; what arrives was sent, in order, and all that is sent later arrives."""
    ends = Ends(dut, 0.3)
    await start(dut)
    await ends.host.until(up=1)
    out, back = random_frames(200, 2000), random_frames(200, 2000)
    for source, frames in ((ends.tx, out), (ends.line_rx, back)):
        for frame in frames:
            source.send_nowait(axi.AxiStreamFrame(frame))
    for _ in range(5):
        await ClockCycles(dut.ap_clk, random.randrange(200))
        await ends.host.write(cmac.CONTROL, rs_fec=1, **{field: 1})
        await ends.host.until(up=0, aligned=0, rx_reset=1, tx_reset=int(field == "reset"))
        await ends.host.write(cmac.CONTROL, rs_fec=1)
        await ends.host.until(**UP)
    await ends.tx.wait()
    await ends.line_rx.wait()
    await ClockCycles(dut.ap_clk, 2000)
    for sink, frames in ((ends.line_tx, out), (ends.rx, back)):
        left = iter(frames)
        came = [bytes(sink.recv_nowait().tdata) for _ in range(sink.count())]
        assert all(frame in left for frame in came), "a frame that was not sent, or out of order"
    await ends.passes(ends.tx, ends.line_tx, random_frames(5))
    await ends.passes(ends.line_rx, ends.rx, random_frames(5))
    assert (await ends.host.counters())["LINK_LOSSES"] == 5


@cocotb.test()
async def loopback_and_error_correction_begin_with_a_reset(dut):
    ends = Ends(dut, 0.3)
    await start(dut)
    await ends.host.until(up=1, fec_aligned=1)
    await ends.host.write(cmac.CONTROL, reset=1, loopback=1, rs_fec=0)
    await ends.host.write(cmac.CONTROL, loopback=1, rs_fec=0)
    await ends.host.until(**UP, fec_aligned=0)
    assert await ends.host.read(cmac.LANES) == {"block_lock": 0xFFFFF, "fec_lock": 0}
    ends.line_rx.send_nowait(axi.AxiStreamFrame(bytes(64)))
    await ends.passes(ends.tx, ends.rx, random_frames(40))
    await ClockCycles(dut.ap_clk, 500)
    assert ends.rx.empty()
    assert ends.line_tx.empty()


@pytest.mark.rtl
def test_emulated_cmac_kernel():
    kernel = emulated_cmac_kernel()
    run_verilog_bench(kernel.text, kernel.top, __file__)
