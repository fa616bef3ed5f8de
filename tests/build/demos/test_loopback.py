"""The loop-back demonstration: how it brings the link up, and what it tells of frames."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from support.serial import characters, levels

from p4sgd.build.demos.loopback import Loopback
from p4sgd.hw.bus.register_file import RegisterFile
from p4sgd.hw.spec.cmac import STATUS, cmac_map

COMPARED = 3
"""Frames that have come and are being compared."""


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
    assert whole["received"] > 1_900
    assert whole["sent"] - whole["received"] == COMPARED
    assert (whole["wrong"], whole["missing"]) == (0, 0)
    assert spoilt["sent"] - whole["sent"] == 2_000
    assert (spoilt["wrong"], spoilt["missing"]) == (1, 1)
    assert spoilt["received"] == spoilt["sent"] - COMPARED - 1
