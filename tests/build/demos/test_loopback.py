"""The loop-back demonstration: its frames, what it makes of those that come, and how it brings the link up."""

import random

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from support.serial import characters, levels

from p4sgd.build.demos.loopback import FrameChecker, FrameSource, Loopback
from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.bus.register_file import RegisterFile
from p4sgd.hw.spec.cmac import STATUS, cmac_map

ALL = (1 << 64) - 1


class Kernel(wiring.Component):
    """In place of a MAC's kernel: its registers, and frames that come back once it is out of reset in loopback."""

    def __init__(self):
        super().__init__({"line": Out(1), "corrupt": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.user = user = Loopback(2_000, 2_000)  # a bit is a cycle
        m.submodules.registers = registers = RegisterFile(cmac_map())
        m.d.comb += self.line.eq(user.line)
        wiring.connect(m, user.control, registers.bus)
        has_been_reset, up = Signal(), Signal()
        was_loopback = Signal()
        with m.If(registers.control_reset):
            m.d.sync += [has_been_reset.eq(1), was_loopback.eq(registers.control_loopback)]
        m.d.comb += [
            up.eq(has_been_reset & was_loopback & registers.control_loopback & ~registers.control_reset),
            registers.status_up.eq(up),
            registers.status_aligned.eq(up),
            registers.status_power_good.eq(0xF),
            user.axis_tx.ready.eq(1),
            user.axis_rx.valid.eq(user.axis_tx.valid & up),
            user.axis_rx.payload.data.eq(user.axis_tx.payload.data ^ self.corrupt),
            user.axis_rx.payload.keep.eq(user.axis_tx.payload.keep),
            user.axis_rx.payload.last.eq(user.axis_tx.payload.last),
        ]
        return m


def test_a_line_tells_how_frames_come_back():
    """While nothing is wrong all that is sent has come, and one frame that is spoilt is counted."""
    kernel = Kernel()

    async def spoil(ctx):
        await ctx.tick().repeat(2_400)
        ctx.set(kernel.corrupt, 1)
        await ctx.tick()
        ctx.set(kernel.corrupt, 0)
        await ctx.tick()

    text = "".join(character for _, character in characters(levels(kernel, 6_000, spoil), 1))
    lines = [dict(zip(*[iter(line.split()[2:])] * 2, strict=True)) for line in text.splitlines()]
    lines = [{name: int(value, 16) for name, value in line.items()} for line in lines]
    begin, whole, spoilt = lines[:3]
    assert begin == dict.fromkeys(("status", "sent", "received", "wrong", "missing"), 0)
    for line in (whole, spoilt):
        assert STATUS.decode(line["status"])["up"] == 1
        assert STATUS.decode(line["status"])["power_good"] == 0xF
    assert whole["sent"] == whole["received"] > 1_900
    assert (whole["wrong"], whole["missing"]) == (0, 0)
    assert spoilt["sent"] - whole["sent"] == 2_000
    assert (spoilt["wrong"], spoilt["missing"]) == (1, 1)
    assert spoilt["received"] == spoilt["sent"] - 1


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
                assert (ctx.get(source.frames.valid), ctx.get(source.frames.payload)) == (1, beat), (
                    "a frame waits as it is"
                )
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
        await ctx.tick()
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
