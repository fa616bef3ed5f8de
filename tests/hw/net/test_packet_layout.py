"""The packet in hardware against the codec in Python: the same bits at the same places."""

import random

import pytest
from amaranth.hdl import Fragment, Module, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from p4sgd.hw.net.packet import PACKET, VALUES_LAYOUT, build, parse, shard_mask
from p4sgd.hw.spec.packet import FIELDS, FRAME_BYTES, VALUES, Packet, PacketType

HEADER = [name for name in PACKET.members if name not in ("ethertype", "version", "reserved", "values")]


class Codec(wiring.Component):
    """Both directions side by side."""

    def __init__(self):
        fields = {name: In(unsigned(PACKET[name].width)) for name in HEADER} | {"values": In(VALUES_LAYOUT)}
        super().__init__(
            {"frame": Out(8 * FRAME_BYTES), "received": In(8 * FRAME_BYTES), "packet": Out(PACKET), "mask": Out(32)}
            | fields
        )

    def elaborate(self, platform):
        m = Module()
        named = {name: getattr(self, name) for name in HEADER}
        m.d.comb += [
            self.frame.eq(build(m, **named, values=self.values)),
            self.packet.eq(parse(self.received)),
            self.mask.eq(shard_mask(self.workers)),
        ]
        return m


def random_packet(rng):
    extreme = rng.choice([None, 0, -1])  # all bits random, clear or set
    draw = rng.getrandbits if extreme is None else lambda bits: extreme & ((1 << bits) - 1)
    number = {name: draw(PACKET[name].width) for name in HEADER if name != "type"}
    values = tuple(draw(32) - (1 << 31) for _ in range(VALUES))
    return Packet(type=rng.choice(list(PacketType)), values=values, **number)


def test_hardware_and_codec_agree():
    codec = Codec()
    rng = random.Random(1)

    async def bench(ctx):
        for _ in range(200):
            packet = random_packet(rng)
            frame = int.from_bytes(packet.to_bytes(), "little")  # byte 0 lowest
            for name in HEADER:
                ctx.set(getattr(codec, name), int(getattr(packet, name)))
            for index, value in enumerate(packet.values):
                ctx.set(codec.values[index], value)
            ctx.set(codec.received, frame)
            await ctx.delay(1e-9)
            assert ctx.get(codec.frame) == frame, packet
            parsed = ctx.get(codec.packet)
            for name in HEADER:
                assert parsed[name] == getattr(packet, name), name
            assert (parsed.ethertype, parsed.version, parsed.reserved) == (0x88B5, 1, 0)
            assert tuple(parsed["values"][index] for index in range(VALUES)) == packet.values

    simulator = Simulator(codec)
    simulator.add_testbench(bench)
    simulator.run()


def test_shard_mask():
    codec = Codec()

    async def bench(ctx):
        for workers in range(64):
            ctx.set(codec.workers, workers)
            assert ctx.get(codec.mask) == (1 << min(workers, 32)) - 1, workers

    simulator = Simulator(codec)
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
