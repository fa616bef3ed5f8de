"""From frames to packets of jobs: everything that is checked before a packet's slot.

What the parts of the aggregator hand to each other.

From frames to packets of jobs: everything that is checked before a packet's slot.
"""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.net.packet import PACKET, FrameCheck, parse
from p4sgd.hw.primitives import pipeline
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import MAX_PORTS
from p4sgd.hw.spec.packet import BROADCAST, ROUND_BITS, VERDICT, DropReason, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["JOB", "MAC_BITS", "OUTCOME", "STATE", "Admission", "SlotOp", "admitted", "member", "own_item", "slot_item"]


MAC_BITS = 48


class SlotOp(enum.Enum, shape=unsigned(2)):
    """What is to be done with a slot."""

    LOOK = 0
    """Nothing: its state is shown."""
    PARTIAL = 1
    ACK = 2
    RESET = 3
    """Make it fresh; its round is that of the item."""


JOB = data.StructLayout(
    {"serving": 1, "number": 8, "workers": MAX_WORKERS.bit_length(), "group_mac": MAC_BITS, "ports": MAX_PORTS}
)
"""Settings of a job; stable while it is served."""


def member(config: AggregatorConfig) -> data.StructLayout:
    """A worker of a job."""
    return data.StructLayout({"mac": MAC_BITS, "port": config.port_bits})


def own_item(config: AggregatorConfig) -> data.StructLayout:
    """What the aggregator itself does with a slot, LOOK or RESET."""
    return data.StructLayout({"kind": SlotOp, "address": config.job_bits + config.slot_bits, "round": ROUND_BITS})


def admitted(config: AggregatorConfig) -> data.StructLayout:
    """A frame after all checks but those of its slot.

    ``arrived``: there is one. ``ours``: it is a PARTIAL or an ACK of a job here; ``probe``: it is a PROBE; else
    ``drop`` says why it is neither. ``place`` is where its job is, if ``has_job``. ``verdict`` is that of
    :data:`p4sgd.hw.spec.packet.VERDICT`; ``member`` is the worker that its shard should be. ``port`` is the one that it
    came in through.
    """
    return data.StructLayout(
        {
            "arrived": 1,
            "ours": 1,
            "probe": 1,
            "drop": DropReason,
            "has_job": 1,
            "place": config.job_bits,
            "job": JOB,
            "verdict": len(VERDICT),
            "member": member(config),
            "port": config.port_bits,
            "packet": PACKET,
        }
    )


def slot_item(config: AggregatorConfig) -> data.StructLayout:
    """What comes to the slots, one a cycle.

    ``address`` says which slot of which job: the slot is the lower part. The rest is of the packet and its job.
    """
    return data.StructLayout(
        {
            "kind": SlotOp,
            "address": config.job_bits + config.slot_bits,
            "round": ROUND_BITS,
            "shard": (MAX_WORKERS - 1).bit_length(),
            "workers": MAX_WORKERS.bit_length(),
        }
    )


STATE = data.StructLayout({"round": ROUND_BITS, "aggregated": MAX_WORKERS, "acknowledged": MAX_WORKERS})
"""A slot as others see it; as :class:`p4sgd.sim.network.aggregator.SlotState`."""

OUTCOME = data.StructLayout(
    {
        "begins": 1,
        "joins": 1,
        "acknowledges": 1,
        "full": 1,
        "clear": 1,
        "to_all": 1,
        "stale": 1,
        "duplicate": 1,
    }
)
"""What comes of a packet.

``begins``: its values are the sums of a new round; ``joins``: they are added; ``acknowledges``: its shard has the sums.
``full`` or ``clear`` is the answer, to all or to its sender. ``stale`` and ``duplicate`` say why it is dropped.
"""


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
                "members": In(ValidSignature(data.StructLayout({"address": table_bits, "member": member(config)}))),
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
                Mux(
                    ~check.good,
                    check.drop,
                    Mux(~addressed, DropReason.ADDRESS, Mux(~is_work, DropReason.TYPE, DropReason.JOB)),
                )
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
            packet.type == PacketType.PARTIAL,
            SlotOp.PARTIAL,
            Mux(packet.type == PacketType.ACK, SlotOp.ACK, SlotOp.LOOK),
        )
        own_kind = Mux(self.own.valid, self.own.payload.kind, SlotOp.LOOK)
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
        stages = pipeline(m, found, 3, "found", reset_less=True)
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
            pipeline(m, wrong, 1, wrong.name, reset_less=True)[1] for wrong in (wrong_workers, wrong_shard, wrong_slot)
        ]
        wrong = dict(zip((DropReason.WORKERS, DropReason.SHARD, DropReason.SLOT), late, strict=True))
        wrong[DropReason.SOURCE] = (wrong_mac | wrong_source) & ~wrong[DropReason.SHARD]
        failed = {DropReason.JOB: ~before.has_job} | {check: before.has_job & bit for check, bit in wrong.items()}
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
