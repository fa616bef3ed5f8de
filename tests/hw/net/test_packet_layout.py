"""The layout of packets in hardware; benches of FrameCheck, endpoint and aggregator compare their bits."""

import pytest
from amaranth.hdl import Fragment, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from p4sgd.hw.net.packet import PACKET, build, parse, shard_mask
from p4sgd.hw.spec.packet import FIELDS, FRAME_BYTES, VALUES


class Mask(wiring.Component):
    workers: In(6)
    mask: Out(32)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.mask.eq(shard_mask(self.workers))
        return m


def test_shard_mask():
    dut = Mask()

    async def bench(ctx):
        for workers in range(64):
            ctx.set(dut.workers, workers)
            assert ctx.get(dut.mask) == (1 << min(workers, 32)) - 1, workers

    simulator = Simulator(dut)
    simulator.add_testbench(bench)
    simulator.run()


def test_layout_has_every_field():
    values = [field for field in FIELDS if field.name.startswith("value")]
    assert list(PACKET.members) == [field.name for field in FIELDS if field not in values] + ["values"]
    assert PACKET.size == 8 * FRAME_BYTES
    assert len(values) == VALUES


def test_misuse_is_refused():
    m = Module()
    with pytest.raises(KeyError, match="no field color"):
        build(m, color=1)
    Fragment.get(m, None)  # an unused module would warn
    with pytest.raises(ValueError, match="512 bits, not 100"):
        parse(Signal(100))
