"""CmacAdapter: frames to and from a MAC with a clock of its own, and its link, which comes and goes."""

import random

import cocotb
import pytest
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge, Timer
from support.axi import LiteMaster
from support.bench import parameters, run_bench
from support.cmac import Host
from support.frames import LAST, frames_of, random_frame
from support.signals import drive
from support.streams import StreamSink, StreamSource

from p4sgd.hw.kernel.cmac import CmacAdapter
from p4sgd.hw.spec import cmac

BUILD_ID = 77
BAD = 1 << 577


def random_frames(count, longest=5):
    return [random_frame(random.choice([1, 1, 2, random.randint(1, longest)])) for _ in range(count)]


class Mac:
    """A MAC as PG203 describes it, seen from its user; checks what it wants of its user.

    Its clock rests while it is in reset, and both of its sides stay in reset for a while after that. Lanes are aligned
    some cycles later if there is a ``cable``. It is never ready on ``tx`` unless it ``takes``. With ``cut_next`` the
    next frame of several beats on ``rx`` ends within, as the receiving side is reset. ``received`` are the frames put
    on ``rx``, and whether each was good.
    """

    def __init__(self, dut, period_ps, stall):
        self.dut, self.clock = dut, dut.mac__clk
        self.sent, self.received = [], []
        self.cable, self.remote_fault, self.takes, self.cut_next = True, False, True, False
        self._cutting = False
        self._cycles = 0  # since the reset
        self._locked = 0  # cycles since lanes are received
        self._stall = stall
        self._queue = []
        quiet = "tx__ready rx__valid tx_fault aligned local_fault remote_fault power_good hi_ber block_lock fec_lock"
        quiet += " fec_aligned fec_corrected fec_uncorrected bad_fcs clk"
        drive(dut, **{f"mac__{name}": 0 for name in quiet.split()}, mac__tx_reset=1, mac__rx_reset=1)
        for loop in (self._tick(period_ps // 2), self._link(), self._take(), self._give()):
            cocotb.start_soon(loop)

    async def _tick(self, half_ps):
        while True:
            if self.dut.mac__reset.value:
                self._cycles = self._locked = 0
                self.dut.mac__tx_reset.value = self.dut.mac__rx_reset.value = 1
                await FallingEdge(self.dut.mac__reset)
                await Timer(random.randint(1, 10 * half_ps), unit="ps")
            self.clock.value = 1
            await Timer(half_ps, unit="ps")
            self.clock.value = 0
            await Timer(half_ps, unit="ps")

    async def _link(self):
        dut = self.dut
        while True:
            await RisingEdge(self.clock)
            self._cycles += 1
            in_reset = self._cycles < 30
            no_receiver = in_reset or bool(dut.mac__rx_datapath_reset.value)
            self._locked = self._locked + 1 if self.cable and not no_receiver else 0
            aligned = self._locked > 40
            drive(dut, mac__tx_reset=in_reset, mac__rx_reset=no_receiver or self._cutting)
            drive(dut, mac__aligned=aligned, mac__local_fault=not aligned, mac__remote_fault=self.remote_fault)
            drive(dut, mac__block_lock=(1 << min(20, self._locked)) - 1, mac__power_good=0 if in_reset else 0xF)
            self._cutting = False

    async def _take(self):
        dut = self.dut
        frame = []
        while True:
            ready = self.takes and random.random() >= self._stall
            dut.mac__tx__ready.value = int(ready)
            await RisingEdge(self.clock)
            if dut.mac__tx_reset.value:
                frame = []
                continue
            if frame:
                assert dut.mac__tx__valid.value, "too slow within a frame"
            if dut.mac__tx__valid.value and ready:
                beat = int(dut.mac__tx__payload.value)
                assert frame or dut.mac__tx_enable.value, "a frame without a link"
                frame.append(beat)
                if beat & LAST:
                    self.sent.append(frame)
                    frame = []

    async def _give(self):
        dut = self.dut
        while True:
            dut.mac__rx__valid.value = 0
            while not self._queue or not dut.mac__rx_enable.value or dut.mac__rx_reset.value:
                await RisingEdge(self.clock)
            frame, bad = self._queue.pop(0)
            taken = 0
            for beat in frame:
                while random.random() < self._stall:
                    dut.mac__rx__valid.value = 0
                    await RisingEdge(self.clock)
                if taken and self.cut_next:
                    self.cut_next, self._cutting = False, True
                    dut.mac__rx__valid.value = 0
                    await ClockCycles(self.clock, 3)
                    break
                dut.mac__rx__valid.value = 1
                dut.mac__rx__payload.value = beat | (BAD if bad and beat & LAST else 0)
                await RisingEdge(self.clock)
                if dut.mac__rx_reset.value:
                    break
                taken += 1
            if taken:
                self.received.append((frame, not bad and taken == len(frame)))

    def give(self, frames, bad=0.0):
        """Put frames on ``rx``; ``bad`` is the chance of an error in each."""
        self._queue += [(frame, random.random() < bad) for frame in frames]

    async def given(self):
        while self._queue:
            await RisingEdge(self.clock)
        await ClockCycles(self.clock, 60)


async def reset(dut):
    dut.ap_rst_n.value = 0
    await ClockCycles(dut.ap_clk, 5)
    dut.ap_rst_n.value = 1
    await ClockCycles(dut.ap_clk, 5)


async def begin(dut, stall):
    """Clocks of both sides, and a reset; returns host, MAC and source."""
    Clock(dut.ap_clk, parameters()["kernel_ps"], unit="ps").start()
    dut.ap_rst_n.value = dut.axis_rx__ready.value = 0
    mac = Mac(dut, parameters()["mac_ps"], stall)
    host = Host(LiteMaster(dut, "control", stall, clock=dut.ap_clk))
    source = StreamSource(dut, "axis_tx", stall, clock=dut.ap_clk)
    await reset(dut)
    return host, mac, source


def receive(dut, stall):
    """Take what has been received, from now on."""
    return StreamSink(dut, "axis_rx", stall, clock=dut.ap_clk)


def send(source, frames):
    source.send(beat for frame in frames for beat in frame)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.4])
async def the_link_goes_away_and_comes_back(dut, stall):
    """Frames that are to be sent meanwhile are taken and dropped; those sent are whole, in order, and counted."""
    host, mac, source = await begin(dut, stall)
    sink = receive(dut, stall)
    for register in cmac.after_reset(BUILD_ID):
        if register not in (cmac.STATUS, cmac.LANES):
            assert await host.read(register) == register.decode(register.reset), register.name
    await host.until(up=1, aligned=1, local_fault=0, remote_fault=0, tx_reset=0, rx_reset=0, power_good=0xF)
    given, losses = [], 0
    for way in ("cable", "remote_fault", "receiver", "reset", "cut", "cable"):
        frames = random_frames(60)
        given += frames
        send(source, frames)
        mac.give(random_frames(30), bad=0.1)
        await ClockCycles(dut.ap_clk, random.randint(20, 60))
        match way:
            case "cable":
                mac.cable = False
                await host.until(up=0, local_fault=1, aligned=0)
                assert dut.mac__send_remote_fault.value == 1
            case "remote_fault":
                mac.remote_fault = True
                await host.until(up=0, remote_fault=1, aligned=1)
                assert dut.mac__send_remote_fault.value == 0
            case "receiver":
                assert await host.read(cmac.LANES) == {"block_lock": 0xFFFFF, "fec_lock": 0}
                await host.write(cmac.CONTROL, rx_reset=1)
                await host.until(up=0, aligned=0, rx_reset=1, tx_reset=0)
                assert await host.read(cmac.LANES) == {"block_lock": 0, "fec_lock": 0}
                await host.write(cmac.CONTROL)
            case "reset":
                await host.write(cmac.CONTROL, reset=1, rs_fec=0, loopback=1)
                await ClockCycles(dut.ap_clk, 50)
                assert dut.mac__reset.value == 1
                assert dut.mac__loopback.value == 1
            case "cut":
                mac.cut_next = True
                mac.give([[random.getrandbits(576), random.getrandbits(576), LAST]])
        if way != "reset":  # without a clock nothing is taken
            await source.drained()
        mac.cable, mac.remote_fault = True, False
        if way == "reset":
            await host.write(cmac.CONTROL, rs_fec=0)
        losses += way != "cut"
        await host.until(up=1)
        assert dut.mac__rs_fec.value == int(losses < 4)
        await source.drained()
        await mac.given()
    await ClockCycles(dut.ap_clk, 1500)

    counters = await host.counters()
    left = iter(given)
    assert all(frame in left for frame in mac.sent), "each once, in order"
    good = [frame for frame, is_good in mac.received if is_good]
    assert frames_of(sink.items) == good
    assert 0 < counters["TX_DROPPED"] < len(given)
    assert counters == dict.fromkeys(cmac.COUNTERS, 0) | {
        "TX_FRAMES": len(mac.sent),
        "TX_DROPPED": len(given) - len(mac.sent),
        "RX_FRAMES": len(good),
        "RX_BAD": len(mac.received) - len(good),
        "LINK_LOSSES": 6,
    }


@cocotb.test()
async def a_reset_forgets_all_frames(dut):
    """Those that wait at both ends of both ways, and what was counted, are gone; then all is as it was at first."""
    host, mac, source = await begin(dut, 0.0)
    await host.until(up=1)
    mac.takes = False
    send(source, random_frames(20, longest=2))
    mac.give(random_frames(60))
    await source.drained()
    await mac.given()
    await ClockCycles(dut.ap_clk, 100)
    assert dut.mac__tx__valid.value == dut.axis_rx__valid.value == 1
    await reset(dut)
    mac.takes = True
    send(source, [[random.getrandbits(576) for _ in range(5)]])  # the rest of this frame comes when all is up
    await host.until(up=0)
    await host.until(up=1)
    send(source, [[LAST]])
    sink = receive(dut, 0.0)
    await ClockCycles(dut.ap_clk, 300)
    assert sink.items == []
    assert mac.sent == []
    assert set((await host.counters()).values()) == {0}
    out, back = random_frames(20), random_frames(20)
    send(source, out)
    mac.give(back)
    await source.drained()
    await mac.given()
    await ClockCycles(dut.ap_clk, 100)
    assert mac.sent == out
    assert frames_of(sink.items) == back


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize("kernel_ps", [4000, 3332, 2500])
def test_cmac_adapter(kernel_ps):
    """At 250 MHz, at 300 MHz, which v++ aims at, and at 400 MHz; the MAC has 322 MHz."""
    run_bench(CmacAdapter(build_id=BUILD_ID), __file__, kernel_ps=kernel_ps, mac_ps=3104)
