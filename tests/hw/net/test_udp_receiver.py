"""UdpReceiver against the codec in Python, frame by frame."""

import random
from itertools import pairwise

import cocotb
import pytest
from cocotb.triggers import ClockCycles, RisingEdge
from cocotb.utils import get_sim_time
from support.aggregator import KEEP, beat
from support.bench import parameters, run_sizes, start
from support.streams import StreamSink, StreamSource
from support.udp import IP, beats, frames, random_core_frame, with_checksum, with_field

from p4sgd.hw.net.udp import UdpReceiver
from p4sgd.hw.spec.udp import FRAME_BYTES, HEADER, REQUIRED, decapsulate, encapsulate

ANYTHING = ("ip_tos", "ip_id", "ip_dont_fragment", "ip_ttl", "udp_source")
"""Fields that routers may change, or that do not matter."""


def good() -> bytes:
    """A frame as it may come through a network."""
    frame = encapsulate(random_core_frame(random), ethernet_source=random.getrandbits(48), next_hop=0)
    for field in HEADER:
        if field.name in ANYTHING and random.random() < 0.5:
            frame = with_field(frame, field.name, random.getrandbits(field.bits))
    frame = random.randbytes(12) + frame[12:]
    return with_checksum(frame)


class Bench:
    """Sends frames and knows what must come of them."""

    def __init__(self) -> None:
        self.payloads: list[int] = []
        self.expected: list[tuple[bytes | None, int]] = []

    def add(self, frame: bytes) -> None:
        tag = random.getrandbits(parameters()["tag_bits"])
        self.payloads += beats(frame, tag)
        self.expected.append((decapsulate(frame), tag))

    def add_bad(self, payloads: list[int]) -> None:
        """Beats that make up no right frame, without tags."""
        self.payloads += payloads
        self.expected.append((None, 0))

    async def run(self, dut, stall: float) -> tuple[list[int], list[int]]:
        """Send all and check; returns the cycles of the last beats, and those in which frames came."""
        source, sink = StreamSource(dut, "rx", stall), StreamSink(dut, "frames", flow=True)
        await start(dut)
        sent, came = [], []

        async def watch():
            while True:
                await RisingEdge(dut.clk)
                now = get_sim_time("ns") // 4
                assert dut.rx__ready.value, "always ready"
                if dut.rx__valid.value and int(dut.rx__payload.value) >> 576 & 1:
                    sent.append(now)
                if dut.frames__valid.value:
                    came.append(now)

        cocotb.start_soon(watch())
        source.send(self.payloads)
        await source.drained()
        await ClockCycles(dut.clk, 10)
        got = frames(sink.items)
        assert len(got) == len(self.expected)
        for (frame, tag), (expected, expected_tag) in zip(got, self.expected, strict=True):
            assert tag == expected_tag
            assert len(frame) == 64
            assert frame == expected if expected else frame[12:14] == bytes(2)
        return sent, came


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def checks_every_field(dut, stall):
    """Each wrong in turn, in every bit, with the right checksum: so nothing but the field's own check can find it."""
    bench = Bench()
    for field in HEADER:
        if field.name in REQUIRED:
            for wrong in [1 << bit for bit in range(field.bits)] + [random.randrange(1, 1 << field.bits)]:
                bench.add(with_checksum(with_field(good(), field.name, REQUIRED[field.name] ^ wrong)))
                bench.add(good())
    for source in (224 << 24, (1 << 32) - 1, random.randrange(224 << 24, 1 << 32)):
        bench.add(with_checksum(with_field(good(), "ip_source", source)))
    for _ in range(20):
        bench.add(with_checksum(with_field(good(), "ip_source", (224 << 24) - 1)))
    refused = sum(frame is None for frame, _ in bench.expected)
    assert refused == sum(field.bits + 1 for field in HEADER if field.name in REQUIRED) + 3
    await bench.run(dut, stall)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def checks_the_checksum(dut, stall):
    bench = Bench()
    for byte in range(IP.start, IP.stop):
        for bit in range(8):
            frame = bytearray(good())
            frame[byte] ^= 1 << bit
            bench.add(bytes(frame))
    for checksum in (0, 0xFFFF):
        bench.add(with_field(good(), "ip_checksum", checksum))
    for _ in range(500):  # sums near every multiple
        frame = good()
        wrong = int.from_bytes(frame[24:26], "big") + random.choice((-2, -1, 0, 1, 2, 0x100, 0x8000))
        bench.add(with_field(frame, "ip_checksum", wrong % 0x10000))
    assert 100 < sum(frame is None for frame, _ in bench.expected) < 660
    await bench.run(dut, stall)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def takes_92_bytes_only(dut, stall):
    bench = Bench()
    lengths = [*range(1, FRAME_BYTES), *range(FRAME_BYTES + 1, 200), 1500]
    random.shuffle(lengths)
    for length in lengths:
        bench.add((good() + random.randbytes(1500))[:length])
        if random.random() < 0.5:
            bench.add(good())
    for hole in range(FRAME_BYTES):
        first, second = beats(good())
        lacks = 1 << 512 + hole % 64
        bench.add_bad([first & ~lacks, second] if hole < 64 else [first, second & ~lacks])
        bench.add(good())
    first, second = beats(good())
    bench.add_bad([first, second | KEEP << 512])
    bench.add_bad([second])
    bench.add_bad([first | 1 << 576])
    bench.add_bad([second])
    bench.add(good())
    await bench.run(dut, stall)


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3, 0.8])
async def sorts_any_mix(dut, stall):
    bench = Bench()
    for _ in range(1500):
        kind = random.random()
        if kind < 0.5:
            bench.add(good())
        elif kind < 0.6:
            bench.add(random.randbytes(random.choice((1, 63, 64, 65, 92, 92, 92, 128, 129, 200))))
        elif kind < 0.7:  # a frame of the core is none of these
            bench.add_bad([beat(random_core_frame(random), 0)])
        else:
            frame = bytearray(good())
            for _ in range(random.choice((1, 1, 2, 8))):
                frame[random.randrange(FRAME_BYTES)] ^= 1 << random.randrange(8)
            bench.add(bytes(frame))
    await bench.run(dut, stall)


@cocotb.test()
async def a_beat_a_cycle(dut):
    count = 10_000
    bench = Bench()
    for _ in range(count):
        bench.add(good())
    sent, came = await bench.run(dut, 0.0)
    assert {later - earlier for earlier, later in pairwise(sent)} == {2}
    assert {later - earlier for earlier, later in zip(sent, came, strict=True)} == {UdpReceiver.LATENCY} == {2}


@pytest.mark.rtl
@pytest.mark.slow
def test_udp_receiver():
    run_sizes({f"tag{bits}": (UdpReceiver(bits), {"tag_bits": bits}) for bits in (0, 5)}, __file__)
