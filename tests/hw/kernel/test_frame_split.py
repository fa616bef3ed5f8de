"""FrameSplit: every beat once at each port of its bitmap, in order, whatever the ports do."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import parameters, run_sizes, start
from support.streams import StreamSink, StreamSource, check_registered

from p4sgd.hw.kernel.frames import FrameSplit

BEAT_BITS = 577


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3, 0.5])
async def every_port_gets_what_is_for_it(dut, stall):
    ports = parameters()["ports"]
    source = StreamSource(dut, "frames", stall)
    # Every other port is slower than the source, and fills its FIFO.
    sinks = [StreamSink(dut, f"tx__{port}", stall and 0.9 * (port % 2)) for port in range(ports)]
    await start(dut)
    sent = [(random.getrandbits(BEAT_BITS), random.getrandbits(ports)) for _ in range(400)]
    source.send(beat | bitmap << BEAT_BITS for beat, bitmap in sent)
    await source.drained()
    for _ in range(1000):
        await RisingEdge(dut.clk)
    for port, sink in enumerate(sinks):
        assert sink.items == [beat for beat, bitmap in sent if bitmap >> port & 1]


@cocotb.test()
async def a_port_that_is_not_ready_stops_no_other_before_its_frame(dut):
    ports = parameters()["ports"]
    source = StreamSource(dut, "frames")
    blocked = StreamSink(dut, "tx__0", 1.0)
    others = [StreamSink(dut, f"tx__{port}") for port in range(1, ports)]
    await start(dut)
    others_bitmap = (1 << ports) - 2
    source.send(random.getrandbits(BEAT_BITS) | others_bitmap << BEAT_BITS for _ in range(100))
    for sink in others:
        await sink.receive(100, timeout_cycles=400)
    sent = [random.getrandbits(BEAT_BITS) for _ in range(60)]
    source.send(beat | ((1 << ports) - 1) << BEAT_BITS for beat in sent)
    for _ in range(300):
        await RisingEdge(dut.clk)
    assert all(len(sink.items) < 160 for sink in others), "nothing waited for the port that is not ready"
    blocked.stall = 0.0
    assert list(await blocked.receive(60)) == sent
    for sink in others:
        assert list(await sink.receive(160))[100:] == sent


@cocotb.test()
async def ready_is_registered(dut):
    """What one side does shows at the other no earlier than in the next cycle."""
    ports = parameters()["ports"]
    await start(dut)
    dut.frames__payload.value = ((1 << ports) - 1) << BEAT_BITS
    valids, readies = ([getattr(dut, f"tx__{port}__{name}") for port in range(ports)] for name in ("valid", "ready"))
    await check_registered(dut, [dut.frames__valid, *readies], [dut.frames__ready, *valids])


@pytest.mark.rtl
def test_frame_split():
    run_sizes({f"ports{n}": (FrameSplit(n), {"ports": n}) for n in (2, 3)}, __file__)
