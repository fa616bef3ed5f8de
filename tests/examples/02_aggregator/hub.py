"""A hub of two ports around an `Aggregator`: two machines send it packets, both receive the sums."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.spec import aggregator as registers
from p4sgd.hw.spec.packet import FRAME_BYTES, Packet, PacketType

CONFIG = registers.AggregatorConfig(slots=4, jobs=1, ports=2)
MAC, GROUP_MAC, MACS = 0x02_00_00_00_00_FF, 0x03_00_00_00_00_01, (0x02_00_00_00_00_01, 0x02_00_00_00_00_02)


class Hub(wiring.Component):
    """``rx_0`` and ``rx_1`` take turns, a frame each; a copy of an answer waits at each port that it is for."""

    control: In(Axi4LiteSignature())
    rx_0: In(stream.Signature(FrameBeat))
    rx_1: In(stream.Signature(FrameBeat))
    tx_0: Out(stream.Signature(FrameBeat))
    tx_1: Out(stream.Signature(FrameBeat))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.aggregator = aggregator = Aggregator(CONFIG)
        wiring.connect(m, wiring.flipped(self.control), aggregator.control)
        rx, tx = aggregator.rx, aggregator.tx
        turn = Signal()
        m.d.comb += [
            rx.valid.eq(Mux(turn, self.rx_1.valid, self.rx_0.valid)),
            rx.payload.beat.eq(Mux(turn, self.rx_1.payload.as_value(), self.rx_0.payload.as_value())),
            rx.payload.port.eq(turn),
            self.rx_0.ready.eq(rx.ready & ~turn),
            self.rx_1.ready.eq(rx.ready & turn),
        ]
        with m.If(~rx.valid | (rx.ready & rx.payload.beat.last)):
            m.d.sync += turn.eq(~turn)
        queues = []
        for number, port in enumerate((self.tx_0, self.tx_1)):
            m.submodules[f"queue_{number}"] = queue = SyncFIFOBuffered(width=FrameBeat.size, depth=8)
            m.d.comb += [
                queue.w_data.eq(tx.payload.beat),
                queue.w_en.eq(tx.valid & tx.ready & tx.payload.ports[number]),
                port.payload.eq(queue.r_data),
                port.valid.eq(queue.r_rdy),
                queue.r_en.eq(port.ready),
            ]
            queues.append(queue)
        m.d.comb += tx.ready.eq(queues[0].w_rdy & queues[1].w_rdy)
        return m


def main() -> None:
    """Simulate a job of two workers: each sends eight integers and receives the eight sums."""
    hub, values = Hub(), ([1, 2, 3, 4, 5, 6, 7, 8], [10, 20, 30, 40, 50, 60, 70, -80])
    received: list[Packet] = []

    async def write(ctx, register, **fields):
        bus = hub.control
        ctx.set(bus.b.ready, 1)
        ctx.set(bus.aw.payload.addr, register.offset)
        ctx.set(bus.w.payload, {"data": register.encode(**fields), "strb": 15})
        for channel in (bus.aw, bus.w):
            ctx.set(channel.valid, 1)
            await ctx.tick().until(channel.ready)
            ctx.set(channel.valid, 0)
        await ctx.tick().until(bus.b.valid)

    async def write_mac(ctx, pair, mac):
        for register, word in zip(pair, (mac & 0xFFFF_FFFF, mac >> 32), strict=True):
            await write(ctx, register, value=word)

    async def work(ctx):
        job, *group_mac, ports = registers.job_registers(0)
        await write_mac(ctx, registers.MAC, MAC)
        for shard, mac in enumerate(MACS):
            await write_mac(ctx, registers.MEMBER_MAC, mac)
            await write(ctx, registers.MEMBER, place=0, shard=shard, port=shard)
        await write(ctx, job, number=7, workers=2)
        await write(ctx, ports, value=0b11)
        await write_mac(ctx, group_mac, GROUP_MAC)
        await write(ctx, registers.BEGIN, place=0, round=1)
        await ctx.tick().repeat(CONFIG.slots + 10)  # in which all slots are reset
        for shard, (port, mac) in enumerate(zip((hub.rx_0, hub.rx_1), MACS, strict=True)):
            packet = Packet(PacketType.PARTIAL, 7, 0, 1, shard, 2, 1 << shard, tuple(values[shard]), MAC, mac)
            word = int.from_bytes(packet.to_bytes(), "little")
            ctx.set(port.payload, {"data": word, "keep": (1 << FRAME_BYTES) - 1, "last": 1})
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
            ctx.set(port.valid, 0)
        for port in (hub.tx_0, hub.tx_1):
            ctx.set(port.ready, 1)
            (beat,) = await ctx.tick().sample(port.payload.data).until(port.valid)
            received.append(Packet.from_bytes(beat.to_bytes(FRAME_BYTES, "little")))

    simulator = Simulator(hub)
    simulator.add_clock(4e-9)
    simulator.add_testbench(work)
    simulator.run_until(4e-9 * 1000)
    sums = tuple(a + b for a, b in zip(*values, strict=True))
    assert [(packet.type, packet.values) for packet in received] == [(PacketType.FULL, sums)] * 2
    print(f"both ports received {received[0].type.name} with the sums {' '.join(map(str, sums))}")


if __name__ == "__main__":
    main()
