"""The aggregator's admission of packets: every check but that of the slot; and the layouts that its parts share."""

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FrameBeat
from p4sgd.hw.bus.stream import ValidSignature
from p4sgd.hw.net.packet import PACKET, FrameCheck, parse, shard_mask
from p4sgd.hw.primitives import Component, hold, pipeline
from p4sgd.hw.spec.aggregator import AggregatorConfig
from p4sgd.hw.spec.job import MAX_PORTS
from p4sgd.hw.spec.packet import BROADCAST, GROUP_BIT, ROUND_BITS, VERDICT, DropReason, PacketType
from p4sgd.hw.spec.run import MAX_WORKERS

__all__ = ["JOB", "MAC_BITS", "OUTCOME", "STATE", "Admission", "SlotOp", "admitted", "member", "own_item", "slot_item"]


MAC_BITS = 48

_SHARD_BITS = (MAX_WORKERS - 1).bit_length()


class SlotOp(enum.Enum, shape=unsigned(3)):
    """An operation on a slot; those of packets are numbered as their types."""

    LOOK = 0  # show its state, change nothing
    PARTIAL = 1
    FULL = 2  # from the parent, as CLEAR
    ACK = 3
    CLEAR = 4
    RESET = 7  # make it fresh, in the round of the item


_COUNT_BITS = MAX_WORKERS.bit_length()

JOB = data.StructLayout(
    {
        "serving": 1,
        "number": 8,
        "workers": _COUNT_BITS,
        "group_mac": MAC_BITS,
        "ports": MAX_PORTS,
        "parent_workers": _COUNT_BITS,  # of the parent's job; 0: there is no parent
        "parent_shard": _SHARD_BITS,  # this aggregator's shard there
    }
)
"""Settings of a job, stable while it is served."""


def member(config: AggregatorConfig) -> data.StructLayout:
    """A worker of a job, or its parent: the MAC address, and the port that it is behind."""
    return data.StructLayout({"mac": MAC_BITS, "port": config.port_bits})


def own_item(config: AggregatorConfig) -> data.StructLayout:
    """An operation on a slot that no packet asks for: LOOK or RESET."""
    return data.StructLayout({"kind": SlotOp, "address": config.job_bits + config.slot_bits, "round": ROUND_BITS})


def admitted(config: AggregatorConfig) -> data.StructLayout:
    """A frame after all checks but those against its slot's state."""
    return data.StructLayout(
        {
            "arrived": 1,  # there is a frame
            # It is a PARTIAL or ACK of a job served here, or FULL or CLEAR of its parent; it is a PROBE; the reason why
            # it is none of these.
            "ours": 1,
            "probe": 1,
            "is_from_parent": 1,  # it is FULL or CLEAR of a job with a parent
            "drop": DropReason,
            # There is a job with its number; its place, and its settings.
            "has_job": 1,
            "place": config.job_bits,
            "job": JOB,
            "verdict": len(VERDICT),  # which checks failed, as in :data:`p4sgd.hw.spec.packet.VERDICT`
            "member": member(config),  # who is noted for its shard
            "parent": member(config),  # the job's
            "port": config.port_bits,  # that it came in through
            "packet": PACKET,
        }
    )


def slot_item(config: AggregatorConfig) -> data.StructLayout:
    """Input of the slots, one item in every cycle."""
    return data.StructLayout(
        {
            "kind": SlotOp,
            "address": config.job_bits + config.slot_bits,  # the slot number, with the job's place above it
            "round": ROUND_BITS,
            "shard": _SHARD_BITS,  # the parent's is the number of workers
            "shards": _COUNT_BITS,  # of the job, with its parent
            "has_parent": 1,
        }
    )


STATE = data.StructLayout({"round": ROUND_BITS, "aggregated": MAX_WORKERS, "acknowledged": MAX_WORKERS})
"""The state of a slot, as in `p4sgd.sim.network.batch.BatchAggregator`."""

OUTCOME = data.StructLayout(
    {
        "replaces": 1,  # its values become the sums: those of a new round, or the parent's
        "joins": 1,  # its values are added
        "acknowledges": 1,  # its shard has the sums, or all of the parent's have
        # The answer, to all workers if it is one of the three, else to its sender; or its like to the parent.
        "full": 1,
        "clear": 1,
        "to_all": 1,
        "asks": 1,
        # The reasons for dropping it.
        "stale": 1,
        "duplicate": 1,
    }
)
"""Effect of a packet on its slot, and its answer."""


class Admission(Component):
    """The checks of frames, one a cycle, against jobs and their workers::

        rx ─▶ FrameCheck ─▶ find the job ─▶ its settings, its shard's worker ─▶ compare ─▶ admitted
         0                  1                2          3                       4           5
                                             └▶ item

    In cycles without a frame items from ``own`` go to the slots. The parent of a job is one more shard: it is noted
    after the last worker.
    """

    ITEM_LATENCY = 2
    LATENCY = 5

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        table_bits = _SHARD_BITS + config.job_bits
        ports = {
            # Frames, each with the port it came in through. Always ready.
            "rx": In(stream.Signature(data.StructLayout({"beat": FrameBeat, "port": config.port_bits}))),
            "own": In(stream.Signature(own_item(config))),  # operations on slots that no packet asks for
            # The aggregator's address, and its jobs by place.
            "mac": In(MAC_BITS),
            "jobs": In(data.ArrayLayout(JOB, config.jobs)),
            # A worker or parent to note. Its address is the shard, with the job's place above it.
            "members": In(ValidSignature(data.StructLayout({"address": table_bits, "member": member(config)}))),
            # Such an address, and the worker noted there, one cycle later.
            "look": In(table_bits),
            "shown": Out(member(config)),
            "item": Out(slot_item(config)),  # `ITEM_LATENCY` cycles after a frame, or from `own`: one in every cycle
            "admitted": Out(admitted(config)),  # `LATENCY` cycles after a frame
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()

        # Stage 0: comparisons that need only the bits on the bus.
        m.submodules.check = check = FrameCheck()
        heading = parse(self.rx.payload.beat.data)
        names = ("for_here", "for_all", "for_group", "has_parent")
        for_here, for_all, for_group, has_parent = (Signal(name=name, reset_less=True) for name in names)
        hits = Signal(config.jobs, reset_less=True)
        port = Signal(config.port_bits, reset_less=True)
        found_by_number = [(job.serving & (job.number == heading.job), job) for job in self.jobs]
        m.d.comb += [
            check.frames.payload.eq(self.rx.payload.beat),
            check.frames.valid.eq(self.rx.valid),
            self.rx.ready.eq(1),
        ]
        m.d.sync += [
            for_here.eq(heading.destination == self.mac),
            for_all.eq(heading.destination == BROADCAST),
            for_group.eq(heading.destination[GROUP_BIT]),
            hits.eq(Cat(match for match, _ in found_by_number)),
            has_parent.eq(Cat(match & job.parent_workers.any() for match, job in found_by_number).any()),
            port.eq(self.rx.payload.port),
        ]

        # Stage 1: find the job, and drop what is no packet for it. From here on `found` goes from stage to stage.
        found: Any = Signal(admitted(config), reset_less=True)
        packet = check.packet
        is_probe = packet.type == PacketType.PROBE
        is_from_parent = has_parent & ((packet.type == PacketType.FULL) | (packet.type == PacketType.CLEAR))
        is_work = (packet.type == PacketType.PARTIAL) | (packet.type == PacketType.ACK) | is_from_parent
        addressed = for_here | (for_all & is_probe) | (for_group & is_from_parent)
        place = Signal(config.job_bits)
        m.d.comb += place.eq(_first(hits))
        passes = check.received & check.good & addressed
        m.d.sync += [
            found.arrived.eq(check.received),
            found.ours.eq(passes & is_work & hits.any()),
            found.probe.eq(passes & is_probe),
            found.is_from_parent.eq(is_from_parent),
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
        frame_kind = Mux(packet.type <= PacketType.CLEAR, packet.type[:3], SlotOp.LOOK)
        own_kind = Mux(self.own.valid, self.own.payload.kind, SlotOp.LOOK)
        m.d.sync += [
            self.item.kind.eq(Mux(own_turn, own_kind, frame_kind)),
            self.item.address.eq(Mux(own_turn, self.own.payload.address, Cat(packet.slot[: config.slot_bits], place))),
            self.item.round.eq(Mux(own_turn, self.own.payload.round, packet.round)),
        ]

        # Stage 2: compare with the job's settings, and read who is noted for the shard.
        table: Memory = Memory(shape=member(config), depth=config.jobs * MAX_WORKERS, init=[])
        m.submodules.members = table
        write = table.write_port()
        read, read_parent, look = (table.read_port() for _ in range(3))
        stages = pipeline(m, found, 3, "found", reset_less=True)
        wrong_workers = Signal(reset_less=True)
        wrong_shard = Signal(reset_less=True)
        wrong_slot = Signal(reset_less=True)
        bitmap = Signal(MAX_WORKERS, reset_less=True)
        job, shard = found.job, found.packet.shard
        is_to_group = found.packet.destination[GROUP_BIT]
        job_has_parent = job.parent_workers.any()
        m.d.comb += [
            self.item.shard.eq(Mux(found.is_from_parent, job.workers, shard)),
            self.item.has_parent.eq(job_has_parent),
            self.item.shards.eq(job.workers + job_has_parent),
            write.addr.eq(self.members.payload.address),
            write.data.eq(self.members.payload.member),
            write.en.eq(self.members.valid),
            read.addr.eq(Cat(self.item.shard, found.place)),
            read_parent.addr.eq(Cat(job.workers[:_SHARD_BITS], found.place)),
            look.addr.eq(self.look),
            self.shown.eq(look.data),
        ]
        m.d.sync += [
            wrong_workers.eq(found.packet.workers != Mux(found.is_from_parent, job.parent_workers, job.workers)),
            wrong_slot.eq(found.packet.slot[config.slot_bits :].any()),
        ]
        with m.If(found.is_from_parent):
            m.d.sync += [
                wrong_shard.eq(shard != Mux(is_to_group, 0, job.parent_shard)),
                bitmap.eq(shard_mask(job.parent_workers)),
            ]
        with m.Else():
            m.d.sync += [wrong_shard.eq(shard >= job.workers), bitmap.eq(Const(1) << shard[:_SHARD_BITS])]

        # Stage 3: compare address, port and bitmap with theirs.
        wrong_source = Signal(reset_less=True)
        known: Any = Signal(member(config), reset_less=True)
        parent: Any = Signal(member(config), reset_less=True)
        wrong_mac = Signal(reset_less=True)
        wrong_bitmap = Signal(reset_less=True)
        m.d.sync += [
            parent.eq(read_parent.data),
            wrong_bitmap.eq(stages[1].packet.bitmap != bitmap),
            wrong_mac.eq(read.data.mac != stages[1].packet.source),
            wrong_source.eq(read.data.port != stages[1].port),
            known.eq(read.data),
        ]

        # Stage 4: collect what is wrong with it. Without a right shard there is nobody to compare its source with.
        before = stages[2]
        late = [
            pipeline(m, wrong, 1, wrong.name, reset_less=True)[1] for wrong in (wrong_workers, wrong_shard, wrong_slot)
        ]
        wrong = dict(zip((DropReason.WORKERS, DropReason.SHARD, DropReason.SLOT), late, strict=True))
        wrong[DropReason.SHARD] |= wrong_bitmap
        wrong[DropReason.SOURCE] = (wrong_mac | wrong_source) & ~wrong[DropReason.SHARD]
        failed = {DropReason.JOB: ~before.has_job} | {check: before.has_job & bit for check, bit in wrong.items()}
        result = hold(m, self.admitted)
        m.d.sync += [
            result.eq(before),
            result.member.eq(known),
            result.parent.eq(parent),
            result.verdict.eq(Cat(failed[check] for check in VERDICT)),
            result.ours.eq(before.ours & ~Cat(wrong.values()).any()),
        ]
        with m.If(before.ours):
            for check_failed in reversed(VERDICT[1:]):
                with m.If(wrong[check_failed]):
                    m.d.sync += result.drop.eq(check_failed)
        return m


def _first(bits: Signal) -> Value:
    """Index of the lowest bit that is set; of the last bit if none is."""
    number: Value = Const(len(bits) - 1)
    for index in reversed(range(len(bits) - 1)):
        number = Mux(bits[index], index, number)
    return number
