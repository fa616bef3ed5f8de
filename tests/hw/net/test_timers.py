"""The timer of resends at the ends of its range. Benches of the endpoint have waits of some hundred cycles."""

import pytest
from amaranth.sim import Simulator

from p4sgd.hw.net.timers import ResendTimer
from p4sgd.hw.spec.config import PRESETS


@pytest.mark.parametrize("wait", [(1 << 30) - 1, 1 << 30, (1 << 31) - 1])
def test_an_offer_stands_for_long_if_waits_are_long(wait):
    """A slot that has never sent is overdue at once, as time begins just before it wraps."""
    timer = ResendTimer(PRESETS["tiny"]())
    simulator = Simulator(timer)
    simulator.add_clock(1e-6)

    async def offer(ctx):
        ctx.set(timer.waits_for_full, 1)
        ctx.set(timer.first_wait, wait)
        await ctx.tick().until(timer.offered)
        for _ in range(100):
            assert ctx.get(timer.offered)
            await ctx.tick()

    simulator.add_testbench(offer)
    simulator.run()
