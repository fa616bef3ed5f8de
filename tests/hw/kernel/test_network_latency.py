"""Terms of the time that sums take between boards, as far as they are simulated (hw/net/README.md)."""

import math
from pathlib import Path

import pytest
from amaranth.hdl import ClockDomain, ClockSignal, Module, Signal, Value
from amaranth.sim import Simulator

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.kernel.cmac import CmacAdapter
from p4sgd.hw.kernel.frames import FrameMerge, FrameSplit
from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.spec.config import CLOCK_NS
from p4sgd.hw.spec.timing import BOARDS_NETWORK, MAC_CLOCK_NS, NETWORK_NS

FRAMES = 40
PERIODS = {"kernel": CLOCK_NS, "line": MAC_CLOCK_NS}  # ns


@pytest.fixture(scope="module")
def times():
    """Nanoseconds from a frame of one beat at an input to the same at the output, at many phases of the clocks."""
    m = Module()
    m.submodules.dut = dut = CmacAdapter()
    edges = {}
    for name, clock in (("kernel", dut.ap_clk), ("line", dut.mac.clk)):
        m.domains += ClockDomain(name, reset_less=True)
        edges[name] = Signal(16, name=f"{name}_edges")
        m.d.comb += clock.eq(ClockSignal(name))
        m.d[name] += edges[name].eq(edges[name] + 1)
    simulator = Simulator(m)
    for name, period in PERIODS.items():
        simulator.add_clock(period * 1e-9, domain=name)
    times = {"out": [], "in": []}

    def time(ctx, domain):
        """Time of the clock's last edge. The first one is half a period after the beginning."""
        return (ctx.get(edges[domain]) - 0.5) * PERIODS[domain]

    async def send(ctx, domain, stream, received, found):
        ctx.set(dut.ap_rst_n, 1)
        ctx.set(dut.mac.aligned, 1)
        ctx.set(dut.mac.tx.ready, 1)
        ctx.set(dut.axis_rx.ready, 1)
        await ctx.tick("line").until(dut.mac.tx_enable)
        beat = stream.payload.beat if domain == "line" else stream.payload
        ctx.set(beat.last, 1)
        for frame in range(FRAMES):
            await ctx.tick(domain)
            begin = time(ctx, domain)
            ctx.set(stream.valid, 1)
            await ctx.tick(domain)
            ctx.set(stream.valid, 0)
            while not ctx.get(received.valid):
                await ctx.changed(received.valid)
            found.append(time(ctx, "kernel" if domain == "line" else "line") - begin)
            await ctx.tick(domain).repeat(8 + frame % 13)

    async def out(ctx):
        await send(ctx, "kernel", dut.axis_tx, dut.mac.tx, times["out"])

    async def into(ctx):
        await send(ctx, "line", dut.mac.rx, dut.axis_rx, times["in"])

    simulator.add_testbench(out)
    simulator.add_testbench(into)
    simulator.run()
    return times


def test_adapters(times):
    """Two frames go out and two come in."""
    least, most = (2 * sum(limit(each) for each in times.values()) for limit in (min, max))
    assert (math.floor(least), math.ceil(most)) == NETWORK_NS["adapters"]


def passing(part, source, sink):
    """Cycles from a beat at a stream of a component to the same at another."""
    simulator = Simulator(part)
    simulator.add_clock(CLOCK_NS * 1e-9)
    found = []

    async def count(ctx):
        ctx.set(Value.cast(source.payload), -1)
        ctx.set(source.valid, 1)
        cycles = 0
        while not ctx.get(sink.valid):
            await ctx.tick()
            ctx.set(source.valid, 0)
            cycles += 1
        found.append(cycles)

    simulator.add_testbench(count)
    simulator.run()
    return found[0]


def test_merge_and_split():
    """A beat waits for its turn in a register, which is counted with the aggregator."""
    merge, split = FrameMerge(8, 3), FrameSplit(8)
    cycles = passing(merge, merge.rx[5], merge.frames) - 1 + passing(split, split.frames, split.tx[5])
    assert NETWORK_NS["merge and split"] == (cycles * CLOCK_NS, cycles * CLOCK_NS)


def test_aggregator():
    assert NETWORK_NS["aggregator"] == tuple((turn + Aggregator.LATENCY) * CLOCK_NS for turn in (1, 8))


def test_the_page_has_the_terms_and_their_sums():
    text = (Path(__file__).parents[3] / "hw/net/README.md").read_text()
    worker = (Endpoint.TX_LATENCY + Endpoint.RX_LATENCY) * CLOCK_NS
    least, most = (worker + sum(term[limit] for term in NETWORK_NS.values()) for limit in (0, 1))
    for low, high in NETWORK_NS.values():
        assert f"| {low} |" in text if low == high else f"| {low} to {high} |" in text
    fec, _ = NETWORK_NS["RS-FEC"]
    for sums in (f"{least - fec} to {most - fec}", f"{least} to {most}"):
        assert f"| **{sums}** |" in text
    assert most - worker == BOARDS_NETWORK * CLOCK_NS
