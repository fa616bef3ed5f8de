"""FrameBuffer, FrameMerge and FrameSplit: every frame that is kept is whole, once, and in order."""

import random

import cocotb
import pytest
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge
from support.bench import parameters, run_sizes, start
from support.frames import LAST, frames_of, random_frame
from support.signals import check_registered, drive
from support.streams import StreamSink, StreamSource

from p4sgd.hw.kernel.frames import FrameBuffer, FrameMerge, FrameSplit

BEAT_BITS = 577


@cocotb.test()
async def buffer_behaves_like_its_model(dut):
    """The model knows frames; when there is room it tells from what has gone in and come out."""
    depth, waits = parameters()["depth"], parameters()["waits"]
    drive(dut, i__valid=0, o__ready=0, cut=0)
    await start(dut)

    def next_frame():
        """Beats of a frame up to twice as long as there is room for, and whether it is bad."""
        beats = random.choice([1, 1, 2, random.randint(1, depth), random.randint(1, 2 * depth)])
        return random_frame(beats), random.random() < 0.2

    frame, bad = next_frame()
    whole: list[int] = []  # beats of whole frames that have not left
    coming: list[int] = []  # of the frame that is coming
    lost = offered = inside = o_valid = False
    seen = dict.fromkeys(("kept", "dropped_bad", "dropped_full"), 0)
    for sends, takes in ((0.5, 0.5), (1.0, 1.0), (0.9, 0.2), (0.3, 0.9), (1.0, 0.0), (0.0, 1.0), (1.0, 0.7)):
        for _ in range(12 * depth + 20):
            cut = random.random() < 0.02
            valid = not cut and (offered or random.random() < sends)
            ready = random.random() < takes
            drive(dut, i__valid=valid, i__payload=frame[0], bad=bad, cut=cut, o__ready=ready)
            await ReadOnly()

            assert bool(dut.o__valid.value) == o_valid
            stored = len(whole) - o_valid  # beats of whole frames, but for the one on o
            fits = stored + len(coming) < depth and not lost
            i_ready = fits or lost or stored == 0 if waits else True
            assert dut.i__ready.value == i_ready
            took = valid and i_ready
            ends = took and len(frame) == 1
            expected = {
                "kept": ends and fits and not bad,
                "dropped_bad": (ends and fits and bad) or (cut and bool(coming or lost)),
                "dropped_full": ends and not fits,
            }
            assert {name: bool(getattr(dut, name).value) for name in expected} == expected
            seen = {name: seen[name] + value for name, value in expected.items()}
            assert dut.o__payload.value == whole[0] if o_valid else not inside, "a gap within a frame"
            fetched = stored and (not o_valid or ready)

            await RisingEdge(dut.clk)
            if o_valid and ready:
                inside = not whole.pop(0) & LAST
            if took:
                coming += [frame.pop(0)] if fits else []
                frame = frame if fits else frame[1:]
                lost = not fits and not ends
                if ends:
                    whole += coming if expected["kept"] else []
                    coming = []
            if cut:
                coming, lost = [], False
            if cut or ends:
                frame, bad = next_frame()
            offered = valid and not took
            o_valid = bool(fetched or (o_valid and not ready))
    assert all(seen.values()), seen


def streams(dut, kind, name, *stalls):
    """The ends of an array of streams; random ones stall up to the first of the given chances."""
    return [kind(dut, f"{name}__{port}", stall) for port, stall in enumerate(stalls)]


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def merge_keeps_frames_whole(dut, stall):
    ports = parameters()["ports"]
    sources = streams(dut, StreamSource, "rx", *(stall * random.random() for _ in range(ports)))
    sink = StreamSink(dut, "frames", stall)
    await start(dut)
    sent = [[random_frame(random.choice([1, 1, 2, 5])) for _ in range(60)] for _ in range(ports)]
    for source, frames in zip(sources, sent, strict=True):
        source.send(beat for frame in frames for beat in frame)
    items = await sink.receive(sum(len(frame) for frames in sent for frame in frames))
    got = [[] for _ in range(ports)]
    for frame in frames_of(items):
        (port,) = {beat >> BEAT_BITS for beat in frame}
        got[port].append([beat & (1 << BEAT_BITS) - 1 for beat in frame])
    assert got == sent
    await ClockCycles(dut.clk, 50)
    assert len(sink.items) == len(items), "a frame came twice"


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.3, 0.5])
async def split_gives_every_port_its_own(dut, stall):
    ports = parameters()["ports"]
    source = StreamSource(dut, "frames", stall)
    # Every other port is slower than the source, and fills its FIFO.
    sinks = streams(dut, StreamSink, "tx", *(stall and 0.9 * (port % 2) for port in range(ports)))
    await start(dut)
    sent = [(random.getrandbits(BEAT_BITS), random.getrandbits(ports)) for _ in range(400)]
    source.send(beat | bitmap << BEAT_BITS for beat, bitmap in sent)
    await source.drained()
    await ClockCycles(dut.clk, 1000)
    for port, sink in enumerate(sinks):
        assert sink.items == [beat for beat, bitmap in sent if bitmap >> port & 1]


@cocotb.test()
async def split_waits_for_a_port_at_its_own_frames_only(dut):
    ports = parameters()["ports"]
    source = StreamSource(dut, "frames")
    blocked, *others = streams(dut, StreamSink, "tx", 1.0, *[0.0] * (ports - 1))
    await start(dut)
    source.send(random.getrandbits(BEAT_BITS) | (1 << ports) - 2 << BEAT_BITS for _ in range(100))
    for sink in others:
        await sink.receive(100, timeout_cycles=400)
    sent = [random.getrandbits(BEAT_BITS) for _ in range(60)]
    source.send(beat | (1 << ports) - 1 << BEAT_BITS for beat in sent)
    await ClockCycles(dut.clk, 300)
    assert all(len(sink.items) < 160 for sink in others), "nothing waited for the port that is not ready"
    blocked.stall = 0.0
    assert list(await blocked.receive(60)) == sent
    for sink in others:
        assert list(await sink.receive(160))[100:] == sent


@cocotb.test()
async def both_sides_are_registered(dut):
    """What one side of a FrameMerge or FrameSplit does shows at the other no earlier than in the next cycle."""
    many, ports = parameters()["many"], range(parameters()["ports"])
    valids, readies = ([getattr(dut, f"{many}__{port}__{name}") for port in ports] for name in ("valid", "ready"))
    await start(dut)
    if many == "rx":
        await check_registered(dut, [dut.frames__ready, *valids], [dut.frames__valid, *readies])
    else:
        drive(dut, frames__payload=(1 << len(ports)) - 1 << BEAT_BITS)
        await check_registered(dut, [dut.frames__valid, *readies], [dut.frames__ready, *valids])


@pytest.mark.rtl
def test_frame_buffer():
    sizes = [{"depth": depth, "waits": waits} for depth in (2, 8) for waits in (True, False)]
    run_sizes(
        {f"size{number}": (FrameBuffer(**size), size) for number, size in enumerate(sizes)}, __file__, only="buffer"
    )


@pytest.mark.rtl
def test_frame_merge():
    sizes = {f"ports{n}": (FrameMerge(n, 2), {"ports": n, "many": "rx"}) for n in (1, 2, 3)}
    run_sizes(sizes, __file__, only="merge|registered")


@pytest.mark.rtl
def test_frame_split():
    sizes = {f"ports{n}": (FrameSplit(n), {"ports": n, "many": "tx"}) for n in (2, 3)}
    run_sizes(sizes, __file__, only="split|registered")
