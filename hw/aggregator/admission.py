"""From frames to packets of jobs: everything that is checked before a packet's slot."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.ports import JOB, MAC_BITS, Kind, admitted, member, own_item, slot_item
from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.hw.bus.stream import FlowSignature
from p4sgd.hw.delay import delayed
from p4sgd.hw.net.packet import parse
from p4sgd.hw.net.receive import FrameCheck
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.drop import VERDICT, Drop
from p4sgd.hw.spec.packet import BROADCAST, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["Admission"]

_SHARD_BITS = (MAX_WORKERS - 1).bit_length()


class Admission(wiring.Component):
    """Checks frames, one a cycle, and finds their job and their slot::

        rx ─▶ FrameCheck ─▶ which job? ─▶ its settings, and who its shard is ─▶ as it should be? ─▶ admitted
         0                  1                 2          3                       4                     5
                                              └▶ item

    In a cycle without a frame the aggregator's own items have their turn.

    Members
    -------
    rx : In(stream of {beat: FrameBeat, port})
        Always ready.
    own : In(stream of own_item(config))
    mac : In(48), jobs : In(ArrayLayout(JOB, config.jobs))
        The aggregator's address, and its jobs.
    members : In(flow of {address: {shard, place}, member})
        A worker to note.
    look : In({shard, place}), shown : Out(member(config))
        A worker that was noted, a cycle later.
    item : Out(slot_item(config))
        `ITEM_LATENCY` cycles after a frame, or the own item: one in every cycle.
    admitted : Out(admitted(config))
        `LATENCY` cycles after a frame.
    """

    ITEM_LATENCY = 2
    LATENCY = 5

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        table_bits = _SHARD_BITS + config.job_bits
        super().__init__(
            {
                "rx": In(stream.Signature(data.StructLayout({"beat": FrameBeat, "port": config.port_bits}))),
                "own": In(stream.Signature(own_item(config))),
                "mac": In(MAC_BITS),
                "jobs": In(data.ArrayLayout(JOB, config.jobs)),
                "members": In(FlowSignature(data.StructLayout({"address": table_bits, "member": member(config)}))),
                "look": In(table_bits),
                "shown": Out(member(config)),
                "item": Out(slot_item(config)),
                "admitted": Out(admitted(config)),
            }
        )

    rx: stream.Interface
    own: stream.Interface
    mac: Signal
    jobs: Any
    members: Any
    look: Signal
    shown: Any
    item: Any
    admitted: Any

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()

        # 0: what needs no more than the bits on the bus.
        m.submodules.check = check = FrameCheck()
        heading = parse(self.rx.payload.beat.data)
        for_here = Signal(reset_less=True)
        for_all = Signal(reset_less=True)
        hits = Signal(config.jobs, reset_less=True)
        port = Signal(config.port_bits, reset_less=True)
        m.d.comb += [
            check.frames.payload.eq(self.rx.payload.beat),
            check.frames.valid.eq(self.rx.valid),
            self.rx.ready.eq(1),
        ]
        m.d.sync += [
            for_here.eq(heading.destination == self.mac),
            for_all.eq(heading.destination == BROADCAST),
            hits.eq(Cat(job.serving & (job.number == heading.job) for job in self.jobs)),
            port.eq(self.rx.payload.port),
        ]

        # 1: which job, and whether it is worth the rest.
        found: Any = Signal(admitted(config), reset_less=True)  # as far as it is known, from here on
        packet = check.packet
        is_probe = packet.type == PacketType.PROBE
        is_work = (packet.type == PacketType.PARTIAL) | (packet.type == PacketType.ACK)
        addressed = for_here | (for_all & is_probe)
        place = Signal(config.job_bits)
        m.d.comb += place.eq(_first(hits))
        passes = check.received & check.good & addressed
        m.d.sync += [
            found.arrived.eq(check.received),
            found.ours.eq(passes & is_work & hits.any()),
            found.probe.eq(passes & is_probe),
            found.drop.eq(
                Mux(~check.good, check.drop, Mux(~addressed, Drop.ADDRESS, Mux(~is_work, Drop.TYPE, Drop.JOB)))
            ),
            found.has_job.eq(passes & (is_work | is_probe) & hits.any()),
            found.place.eq(place),
            found.job.eq(Array(Value.cast(job) for job in self.jobs)[place]),
            found.port.eq(port),
            found.packet.eq(packet),
        ]
        own_turn = ~check.received
        m.d.comb += self.own.ready.eq(own_turn)
        frame_kind = Mux(
            packet.type == PacketType.PARTIAL, Kind.PARTIAL, Mux(packet.type == PacketType.ACK, Kind.ACK, Kind.LOOK)
        )
        own_kind = Mux(self.own.valid, self.own.payload.kind, Kind.LOOK)
        m.d.sync += [
            self.item.kind.eq(Mux(own_turn, own_kind, frame_kind)),
            self.item.address.eq(Mux(own_turn, self.own.payload.address, Cat(packet.slot[: config.slot_bits], place))),
            self.item.round.eq(Mux(own_turn, self.own.payload.round, packet.round)),
            self.item.shard.eq(packet.shard),
        ]
        m.d.comb += self.item.workers.eq(found.job.workers)

        # 2: its settings are known; its worker is looked up.
        table: Memory = Memory(shape=member(config), depth=config.jobs * MAX_WORKERS, init=[])
        m.submodules.members = table
        write, read, look = table.write_port(), table.read_port(), table.read_port()
        stages = delayed(m, found, 3, "found", reset_less=True)
        wrong_workers = Signal(reset_less=True)
        wrong_shard = Signal(reset_less=True)
        wrong_slot = Signal(reset_less=True)
        bit = Signal(MAX_WORKERS)
        shard = found.packet.shard
        m.d.comb += [
            write.addr.eq(self.members.payload.address),
            write.data.eq(self.members.payload.member),
            write.en.eq(self.members.valid),
            read.addr.eq(Cat(shard[:_SHARD_BITS], found.place)),
            look.addr.eq(self.look),
            self.shown.eq(look.data),
            bit.eq(Const(1) << shard[:_SHARD_BITS]),
        ]
        m.d.sync += [
            wrong_workers.eq(found.packet.workers != found.job.workers),
            wrong_shard.eq((shard >= found.job.workers) | (found.packet.bitmap != bit)),
            wrong_slot.eq(found.packet.slot[config.slot_bits :].any()),
        ]

        # 3: is it from where it should be?
        wrong_source = Signal(reset_less=True)
        known: Any = Signal(member(config), reset_less=True)
        wrong_mac = Signal(reset_less=True)
        m.d.sync += [
            wrong_mac.eq(read.data.mac != stages[1].packet.source),
            wrong_source.eq(read.data.port != stages[1].port),
            known.eq(read.data),
        ]

        # 4: all that is wrong with it.
        before = stages[2]
        late = [
            delayed(m, wrong, 1, wrong.name, reset_less=True)[1] for wrong in (wrong_workers, wrong_shard, wrong_slot)
        ]
        wrong = dict(zip((Drop.WORKERS, Drop.SHARD, Drop.SLOT), late, strict=True))
        wrong[Drop.SOURCE] = (wrong_mac | wrong_source) & ~wrong[Drop.SHARD]
        failed = {Drop.JOB: ~before.has_job} | {check: before.has_job & bit for check, bit in wrong.items()}
        m.d.sync += [
            self.admitted.eq(before),
            self.admitted.member.eq(known),
            self.admitted.verdict.eq(Cat(failed[check] for check in VERDICT)),
            self.admitted.ours.eq(before.ours & ~Cat(wrong.values()).any()),
        ]
        with m.If(before.ours):
            for check_failed in reversed(VERDICT[1:]):
                with m.If(wrong[check_failed]):
                    m.d.sync += self.admitted.drop.eq(check_failed)
        return m


def _first(bits: Signal) -> Value:
    """Number of the first bit that is set; of the last if none is."""
    number: Value = Const(len(bits) - 1)
    for index in reversed(range(len(bits) - 1)):
        number = Mux(bits[index], index, number)
    return number
