"""Link: delay, loss, repetition, order and holding; Pause: how often and how long; Merge: fairness and origin."""

import random
from itertools import groupby, pairwise

import cocotb
import pytest
from cocotb.triggers import RisingEdge
from support.bench import parameters, run_bench, start
from support.streams import StreamSink, StreamSource

from p4sgd.sim.cluster.cluster import Merge
from p4sgd.sim.cluster.link import PAUSE_BITS, Link, Pause
from p4sgd.sim.network.faults import LINK_CHANCES

DELAY = 20
LATEST = DELAY + 1024 + 100
"""Cycles until a frame has come by the detour, which gives way to those that go straight on."""


async def configure(dut, **inputs):
    known = dict.fromkeys((*LINK_CHANCES, "stall", "hold"), 0)
    assert inputs.keys() <= known.keys()
    for name, value in (known | inputs | {"seed": random.getrandbits(32)}).items():
        getattr(dut, name).value = value
    await start(dut)


@cocotb.test()
async def delays(dut):
    dut.i__valid.value, dut.o__ready.value = 0, 1
    await configure(dut)
    dut.i__payload.value, dut.i__valid.value = 7, 1
    await RisingEdge(dut.clk)
    dut.i__valid.value = 0
    cycles = 0
    while not cycles or not dut.o__valid.value:
        await RisingEdge(dut.clk)
        cycles += 1
    assert cycles == DELAY


@cocotb.test()
@cocotb.parametrize(stall=[0, 128])
async def keeps_order(dut, stall):
    source, sink = StreamSource(dut, "i", 0.7), StreamSink(dut, "o", stall / 256)
    await configure(dut, stall=stall // 2)
    items = [random.getrandbits(577) for _ in range(300)]
    source.send(items)
    assert list(await sink.receive(300)) == items


async def arrivals(dut, count, **chances):
    """Send frames 0, 1, …, one every 4 cycles or so; for each when it was sent, and the times at which it came."""
    dut.i__valid.value, dut.o__ready.value = 0, 1
    await configure(dut, **chances)
    sent, came = [], [[] for _ in range(count)]
    for cycle in range(4 * count + LATEST):
        dut.i__valid.value = begins = len(sent) < count and random.random() < 0.3
        dut.i__payload.value = len(sent)
        if begins:
            sent.append(cycle)
        await RisingEdge(dut.clk)
        if dut.o__valid.value:
            came[int(dut.o__payload.value)].append(cycle)
    assert len(sent) == count
    return sent, came


def check_share(count, of, chance):
    """Within 6 standard deviations."""
    assert abs(count - of * chance) <= 6 * (of * chance * (1 - chance)) ** 0.5


@cocotb.test()
async def repeats_and_detours_the_share_it_was_told(dut):
    """A repeated frame comes once as it should; one that is detoured does not."""
    for name in ("duplication", "reordering"):
        sent, came = await arrivals(dut, 2000, **{name: 65536 // 8})
        for begun, (first, *again) in zip(sent, came, strict=True):
            late = again if name == "duplication" else [time for time in (first,) if time > begun + DELAY]
            assert all(begun + DELAY + 4 <= time <= begun + LATEST for time in late)
            assert first == begun + DELAY or (name == "reordering" and late and not again)
        late = sum(len(times) == 2 or times[0] > begun + DELAY for begun, times in zip(sent, came, strict=True))
        check_share(late, 2000, 1 / 8)


@cocotb.test()
async def does_all_at_once(dut):
    sent, came = await arrivals(dut, 2000, loss=65536 // 2, duplication=65536 // 2, reordering=65536 // 2, stall=64)
    for copies, chance in ((0, 1 / 2), (1, 1 / 4), (2, 1 / 4)):
        check_share(sum(len(times) == copies for times in came), 2000, chance)
    for begun, times in zip(sent, came, strict=True):
        assert all(begun + DELAY <= time <= begun + LATEST for time in times)


@cocotb.test()
async def loses_in_bursts(dut):
    """Bursts begin before one frame in 64 and end before one in 8, so a ninth of all frames is in one."""
    _, came = await arrivals(dut, 4000, burst_begin=65536 // 64, burst_end=65536 // 8, burst_loss=65535)
    lost = [not times for times in came]
    # Neighbours are alike, so there are fewer draws than frames, by (1 + r) / (1 − r) where r = 1 − 1/64 − 1/8.
    assert abs(sum(lost) - 4000 / 9) <= 6 * (4000 * 8 / 81 * 13.2) ** 0.5
    after = [now for before, now in pairwise(lost) if before]
    check_share(sum(after), len(after), 7 / 8)
    after = [now for before, now in pairwise(lost) if not before]
    check_share(sum(after), len(after), 1 / 64)
    # One that begins at once and does not end has its own chance, and without any it is that outside.
    for chances in ({"loss": 65535, "burst_begin": 65535, "burst_loss": 65536 // 4}, {"loss": 65536 // 4}):
        _, came = await arrivals(dut, 2000, **chances)
        check_share(sum(not times for times in came), 2000, 1 / 4)


@cocotb.test()
async def holds_what_is_on_it(dut):
    source, sink = StreamSource(dut, "i", 0.9), StreamSink(dut, "o")  # so few that none finds the link full
    await configure(dut)
    items = [random.getrandbits(577) for _ in range(600)]
    source.send(items)
    for _ in range(5):
        dut.hold.value = 0
        for _ in range(random.randint(50, 200)):
            await RisingEdge(dut.clk)
        dut.hold.value = 1
        for _ in range(3):
            await RisingEdge(dut.clk)
        begun = len(sink.items)
        for _ in range(random.randint(100, 500)):
            await RisingEdge(dut.clk)
        assert len(sink.items) == begun < 600
    dut.hold.value = 0
    assert list(await sink.receive(600)) == items


LONGEST = 1 << PAUSE_BITS


@cocotb.test()
async def pauses_as_often_and_as_long_as_told(dut):
    for chance, cycles in ((0, 5000), (1 / 256, 400_000)):
        dut.seed.value, dut.chance.value = random.getrandbits(32), round(65536 * chance)
        await start(dut)
        paused = []
        for _ in range(cycles):
            await RisingEdge(dut.clk)
            paused.append(bool(dut.paused.value))
        phases = [(kind, len(list(run))) for kind, run in groupby(paused)]
        if not chance:
            assert [kind for kind, _ in phases] == [False]
    pauses, between = ([length for kind, length in phases[1:-1] if kind == wanted] for wanted in (True, False))
    assert len(pauses) > 100
    assert max(pauses) <= LONGEST
    assert abs(sum(pauses) / len(pauses) - (LONGEST + 1) / 2) < 6 * LONGEST / (12 * len(pauses)) ** 0.5
    # At least one cycle lies between pauses, and the deviation of such times is their mean.
    assert abs(sum(between) / len(between) - 1 / chance) < 6 / chance / len(between) ** 0.5


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def merges(dut, stall):
    count = parameters()["count"]
    sources = [StreamSource(dut, f"i__{port}", stall) for port in range(count)]
    sink = StreamSink(dut, "o", stall)
    await start(dut)
    items = [[random.getrandbits(16) for _ in range(100)] for _ in range(count)]
    for source, own in zip(sources, items, strict=True):
        source.send(own)
    got = await sink.receive(100 * count)
    for port, own in enumerate(items):
        assert [item & 0xFFFF for item in got if item >> 16 == port] == own


@pytest.mark.rtl
def test_link():
    run_bench(Link(DELAY, 3), __file__, only="delays|keeps_order|loses|repeats|does_all|holds")


@pytest.mark.rtl
def test_merge():
    run_bench(Merge(16, 3), __file__, only="merges", count=3)


@pytest.mark.rtl
@pytest.mark.slow
def test_pause():
    run_bench(Pause(5000), __file__, only="pauses")
