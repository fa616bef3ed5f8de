"""FrameSource and FrameChecker: frames that all differ, and what is made of those that come."""

import random

import pytest
from amaranth.lib import data
from amaranth.sim import Simulator

from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.kernel.selftest import FrameChecker, FrameSource

ALL = (1 << 64) - 1


@pytest.fixture(scope="module")
def frames():
    """The first frames of a source that is enabled and disabled, and whose sink stops and goes on."""
    source = FrameSource()
    taken = []

    async def take(ctx):
        for _ in range(3):
            assert not ctx.get(source.frames.valid), "nothing before it is enabled"
            await ctx.tick()
        stalls = random.Random(7)
        while len(taken) < 300:
            ctx.set(source.enable, stalls.random() < 0.8)
            ready = stalls.random() < 0.6
            ctx.set(source.frames.ready, ready)
            valid = ctx.get(source.frames.valid)
            beat = ctx.get(source.frames.payload)
            await ctx.tick()
            if ready and valid:
                taken.append(beat)
            elif valid:
                waits = ctx.get(source.frames.valid), ctx.get(source.frames.payload)
                assert waits == (1, beat), "a frame waits as it is"
            assert ctx.get(source.sent) == len(taken)

    simulator = Simulator(source)
    simulator.add_clock(1e-6)
    simulator.add_testbench(take)
    simulator.run()
    return [{"data": beat.data, "keep": beat.keep, "last": beat.last} for beat in taken]


def test_frames_are_whole_and_all_differ(frames):
    texts = [beat["data"].to_bytes(64, "little") for beat in frames]
    assert len(set(texts)) == len(frames)
    assert {text[:14] for text in texts} == {bytes.fromhex("02000000000202000000000188b6")}
    assert [int.from_bytes(text[14:18], "little") for text in texts] == list(range(len(frames)))
    assert all((beat["keep"], beat["last"]) == (ALL, 1) for beat in frames)


def check(beats):
    """Counters of a checker that has got some beats: received, wrong, missing."""
    checker = FrameChecker()
    found = []

    async def give(ctx):
        for beat in beats:
            assert ctx.get(checker.frames.ready)
            ctx.set(checker.frames.payload, data.Const(FrameBeat, beat) if isinstance(beat, int) else beat)
            ctx.set(checker.frames.valid, 1)
            await ctx.tick()
        ctx.set(checker.frames.valid, 0)
        await ctx.tick().repeat(5)
        found.extend(ctx.get(counter) for counter in (checker.received, checker.wrong, checker.missing))

    simulator = Simulator(checker)
    simulator.add_clock(1e-6)
    simulator.add_testbench(give)
    simulator.run()
    return tuple(found)


def test_all_in_order(frames):
    assert check(frames) == (300, 0, 0)


def test_lost_frames_are_missing(frames):
    assert check([*frames[:5], *frames[8:100], *frames[101:]]) == (296, 0, 4)


@pytest.mark.parametrize("bit", [0, 8 * 14, 8 * 18 + 3, 511])
def test_any_bit_may_be_wrong(frames, bit):
    spoilt = {**frames[2], "data": frames[2]["data"] ^ 1 << bit}
    assert check([*frames[:2], spoilt, *frames[3:10]]) == (9, 1, 1)


@pytest.mark.parametrize("change", [{"keep": ALL >> 1}, {"last": 0}])
def test_a_frame_of_another_length_is_wrong(frames, change):
    assert check([*frames[:2], {**frames[2], **change}, *frames[3:10]]) == (9, 1, 1)
