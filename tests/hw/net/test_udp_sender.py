"""UdpSender against the codec in Python, frame by frame."""

import random
from itertools import pairwise

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from cocotb.utils import get_sim_time
from support.aggregator import beat
from support.bench import parameters, run_sizes, start
from support.streams import StreamSink, StreamSource
from support.udp import frames, random_address, random_core_frame

from p4sgd.hw.net.udp import UdpSender
from p4sgd.hw.spec.udp import encapsulate


class Bench:
    """Sends frames and knows what must come of them."""

    def __init__(self, dut) -> None:
        self._dut = dut
        self.source = random_address(random, host=True)
        self.settings = {"ethernet_source": random.getrandbits(48), "next_hop": random.getrandbits(48)}
        self.expected: list[tuple[bytes, int]] = []

    async def begin(self, stall_in: float, stall_out: float) -> tuple[StreamSource, StreamSink]:
        dut = self._dut
        dut.ipv4.value = self.source & 0xFFFFFFFF
        dut.ethernet_mac.value = self.settings["ethernet_source"]
        dut.next_hop_mac.value = self.settings["next_hop"]
        source, sink = StreamSource(dut, "frames", stall_in), StreamSink(dut, "tx", stall_out)
        await start(dut)
        await ClockCycles(dut.clk, 2)
        return source, sink

    def frame(self, to: int | None = None) -> int:
        """A payload of ``frames``; what it becomes is expected."""
        frame, tag = random_core_frame(random), random.getrandbits(parameters()["tag_bits"])
        destination = frame[:6] if to is None else to.to_bytes(6, "big")
        frame = destination + self.source.to_bytes(6, "big") + frame[12:]
        self.expected.append((encapsulate(frame, **self.settings), tag))
        return beat(frame, tag)


@cocotb.test()
@cocotb.parametrize(stall_in=[0.0, 0.6], stall_out=[0.0, 0.2, 0.7])
async def sends_what_the_codec_says(dut, stall_in, stall_out):
    bench = Bench(dut)
    source, sink = await bench.begin(stall_in, stall_out)
    source.send(bench.frame() for _ in range(1000))
    assert frames(await sink.receive(2000)) == bench.expected
    await ClockCycles(dut.clk, 20)
    assert len(sink.items) == 2000


@cocotb.test()
async def every_checksum(dut):
    """Destinations for which the header's sum is a multiple of 2^16 - 1, or near one, so that all carries occur."""
    bench = Bench(dut)
    source, sink = await bench.begin(0.0, 0.0)
    # Without checksum and destination: two words with version and length, one with DF, one with TTL and protocol.
    others = 0x4500 + 78 + 0x4000 + 0x4011 + (bench.source >> 16 & 0xFFFF) + (bench.source & 0xFFFF)
    payloads = []
    for distance in range(-6, 7):
        for _ in range(20):
            high = random.randrange(0xE000)
            low = (distance - others - high) % 0xFFFF
            payloads += [bench.frame(0x0200 << 32 | high << 16 | low)]
    source.send(payloads)
    assert frames(await sink.receive(2 * len(payloads))) == bench.expected
    checksums = {int.from_bytes(frame[24:26], "big") for frame, _ in bench.expected}
    assert checksums == {-distance % 0xFFFF for distance in range(-6, 7)}


@cocotb.test()
async def a_frame_in_two_cycles(dut):
    count = 10_000
    bench = Bench(dut)
    source, sink = await bench.begin(0.0, 0.0)
    taken, came = [], []

    async def watch():
        while True:
            await RisingEdge(dut.clk)
            now = get_sim_time("ns") // 4
            if dut.frames__valid.value and dut.frames__ready.value:
                taken.append(now)
            if dut.tx__valid.value:
                came.append(now)

    cocotb.start_soon(watch())
    source.send(bench.frame() for _ in range(count))
    assert frames(await sink.receive(2 * count)) == bench.expected
    assert came[0] - taken[0] == UdpSender.LATENCY == 3
    assert {later - earlier for earlier, later in pairwise(came[: 2 * count])} == {1}
    assert {later - earlier for earlier, later in pairwise(taken[3:])} == {2}


@pytest.mark.rtl
@pytest.mark.slow
def test_udp_sender():
    run_sizes({f"tag{bits}": (UdpSender(bits), {"tag_bits": bits}) for bits in (0, 5)}, __file__)
