"""A worker whose packets travel in UDP: a probe and its echo, from register to register."""

import random
from dataclasses import replace

import cocotb
import pytest
from cocotb.triggers import ClockCycles
from support.axi import LiteMaster
from support.bench import run_bench, start
from support.streams import StreamSink, StreamSource
from support.udp import beats, frames, random_address

from p4sgd.hw.spec import registers
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import Packet, PacketType
from p4sgd.hw.spec.udp import encapsulate
from p4sgd.hw.worker.worker import Worker


@cocotb.test()
async def asks_and_hears(dut):
    local, peer = (random_address(random, host=True) for _ in range(2))
    ethernet, next_hop, number = random.getrandbits(48), random.getrandbits(48), random.randrange(1, 256)
    host = LiteMaster(dut, "control", 0.3)
    tx, rx = StreamSink(dut, "tx", 0.3), StreamSource(dut, "rx", 0.3)
    await start(dut)
    settings = {
        registers.LOCAL_MAC: local,
        registers.PEER_MAC: peer,
        registers.ETHERNET_MAC: ethernet,
        registers.NEXT_HOP_MAC: next_hop,
    }
    for (low, high), value in settings.items():
        await host.write(low.offset, value & 0xFFFFFFFF)
        await host.write(high.offset, value >> 32)
    await host.write(registers.PROBE.offset, registers.PROBE.encode(slot=3, number=number))
    probe = Packet(PacketType.PROBE, 0, 3, 0, 0, 1, 1, (number, *[0] * 7), peer, local)
    expected = encapsulate(probe.to_bytes(), ethernet_source=ethernet, next_hop=next_hop)
    assert frames(await tx.receive(2)) == [(expected, 0)]

    echo = replace(probe, type=PacketType.ECHO, round=77, destination=local, source=peer)
    answer = encapsulate(echo.to_bytes(), ethernet_source=next_hop, next_hop=ethernet)
    spoiled = bytearray(answer)
    spoiled[24] ^= 1
    for frame, came in ((bytes(spoiled), 0), (answer, 1)):
        rx.send(beats(frame))
        await rx.drained()
        await ClockCycles(dut.clk, 20)
        shown = registers.ECHO.decode(await host.read(registers.ECHO.offset))
        assert shown["came"] == came
    assert shown["number"] == number
    assert registers.ECHO_JOB.decode(await host.read(registers.ECHO_JOB.offset))["round"] == 77
    assert len(tx.items) == 2


@pytest.mark.rtl
@pytest.mark.slow
def test_worker_udp():
    run_bench(Worker(replace(WorkerConfig.tiny(), udp=True)), __file__)
