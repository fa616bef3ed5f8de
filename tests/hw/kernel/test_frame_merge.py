"""FrameMerge: every frame of every port once, whole, in the order of its port; ports take turns."""

import random

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import parameters, run_sizes, start
from support.streams import StreamSink, StreamSource, check_registered

from p4sgd.hw.kernel.frames import FrameMerge

LAST_BIT = 576
PORT_LOW = 577


def random_frame(beats):
    """Beats of a frame."""
    return [random.getrandbits(576) | int(beat == beats - 1) << LAST_BIT for beat in range(beats)]


def frames_of(beats):
    """Beats as a list of frames."""
    frames, frame = [], []
    for beat in beats:
        frame.append(beat)
        if beat >> LAST_BIT & 1:
            frames.append(frame)
            frame = []
    assert not frame, "the last frame has no end"
    return frames


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def merges(dut, stall):
    ports = parameters()["ports"]
    sources = [StreamSource(dut, f"rx__{port}", stall * random.random()) for port in range(ports)]
    sink = StreamSink(dut, "frames", stall)
    await start(dut)
    sent = [[random_frame(random.choice([1, 1, 2, 5])) for _ in range(60)] for _ in range(ports)]
    for source, frames in zip(sources, sent, strict=True):
        source.send(beat for frame in frames for beat in frame)
    items = await sink.receive(sum(len(frame) for frames in sent for frame in frames))
    got = [[] for _ in range(ports)]
    port_mask = (1 << PORT_LOW) - 1
    for frame in frames_of([item & port_mask | item >> PORT_LOW << 1000 for item in items]):
        numbers = {beat >> 1000 for beat in frame}
        assert len(numbers) == 1, "beats of several ports in one frame"
        got[numbers.pop()].append([beat & port_mask for beat in frame])
    assert got == sent
    for _ in range(50):
        await RisingEdge(dut.clk)
    assert len(sink.items) == len(items), "a frame came twice"


@cocotb.test()
async def ports_take_turns(dut):
    """As long as all have frames none has two before the others had one, and a beat leaves in every cycle."""
    ports = parameters()["ports"]
    sources = [StreamSource(dut, f"rx__{port}") for port in range(ports)]
    sink = StreamSink(dut, "frames")
    await start(dut)
    for source in sources:
        source.send(beat for _ in range(100) for beat in random_frame(2))
    await sink.receive(40)
    first = len(sink.items)
    for _ in range(100):
        await RisingEdge(dut.clk)
    assert len(sink.items) - first >= 99, "idle cycles"
    turns = [frame[0] >> PORT_LOW for frame in frames_of(sink.items[:100])]
    assert all(len(set(turns[at : at + ports])) == ports for at in range(ports, len(turns) - ports))


@cocotb.test()
async def ready_is_registered(dut):
    """Neither side's ready or valid shows in the same cycle what the other side does."""
    await start(dut)
    valids, readies = (
        [getattr(dut, f"rx__{port}__{name}") for port in range(parameters()["ports"])] for name in ("valid", "ready")
    )
    await check_registered(dut, [dut.frames__ready, *valids], [dut.frames__valid, *readies])


@pytest.mark.rtl
def test_frame_merge():
    run_sizes({f"ports{n}": (FrameMerge(n, 2), {"ports": n}) for n in (1, 2, 3)}, __file__)
