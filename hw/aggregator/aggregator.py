"""The aggregator: its registers, and the pipeline that a packet passes from ``rx`` to ``tx``."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.admission import MAC_BITS, OUTCOME, STATE, Admission, SlotOp, admitted, own_item
from p4sgd.hw.aggregator.slots import SlotTable, SumTable
from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.bus.ports import FlatPorts
from p4sgd.hw.bus.register_file import EventCounters, RegisterFile
from p4sgd.hw.bus.stream import RegisteredValidFIFO
from p4sgd.hw.net.packet import VALUES_LAYOUT, build, shard_mask
from p4sgd.hw.primitives import Component, pipeline
from p4sgd.hw.spec.aggregator import AggregatorConfig, aggregator_map, counters, identity
from p4sgd.hw.spec.packet import FRAME_BYTES, ROUND_BITS, VERDICT, DropReason, EchoValue, PacketType

__all__ = ["AGGREGATOR", "Aggregator", "Answers", "SlotManager", "with_ports"]


class SlotManager(Component):
    """A sequencer that begins and ends jobs, and reads the state of a slot.

    A job is served once all its slots are fresh. They are reset one by one, in cycles in which no frame comes in, so
    other jobs are not disturbed.
    """

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        ports = {
            # Pulses: begin the job in this place with this round, or end it. `begin` is ignored while another job's
            # slots are being reset.
            "begin": In(1),
            "end": In(1),
            "place": In(config.job_bits),
            "first_round": In(ROUND_BITS),
            # Pulse: read the state of the slot with this address (slot number, with the job's place above it).
            "look": In(1),
            "look_address": In(config.job_bits + config.slot_bits),
            "serving": Out(config.jobs),  # bitmap of the jobs that are served
            "clearing": Out(1),  # the slots of a job are being reset
            "own": Out(stream.Signature(own_item(config))),  # operations on slots, for `Admission`
            "looked": Out(1),  # pulse: the item taken in this cycle is the slot to be read
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        place = Signal(config.job_bits)
        slot = Signal(config.slot_bits)
        last_round = Signal(ROUND_BITS)
        wants_look = Signal()
        look_address = Signal.like(self.look_address)
        taken = self.own.valid & self.own.ready
        m.d.comb += [
            self.own.valid.eq(self.clearing | wants_look),
            self.own.payload.round.eq(last_round),
            self.looked.eq(taken & wants_look),
        ]
        # Reading goes first: it takes one item, a job that begins thousands.
        with m.If(wants_look):
            m.d.comb += [self.own.payload.kind.eq(SlotOp.LOOK), self.own.payload.address.eq(look_address)]
        with m.Else():
            m.d.comb += [self.own.payload.kind.eq(SlotOp.RESET), self.own.payload.address.eq(Cat(slot, place))]
        with m.If(self.look):
            m.d.sync += [wants_look.eq(1), look_address.eq(self.look_address)]
        with m.Elif(self.looked):
            m.d.sync += wants_look.eq(0)
        with m.If(taken & ~wants_look):
            m.d.sync += slot.eq(slot + 1)
            with m.If(slot == config.slots - 1):
                m.d.sync += [self.clearing.eq(0), self.serving.bit_select(place, 1).eq(1)]
        with m.If(self.begin & ~self.clearing):
            m.d.sync += [
                self.clearing.eq(1),
                place.eq(self.place),
                slot.eq(0),
                last_round.eq(self.first_round - 1),
                self.serving.bit_select(self.place, 1).eq(0),
            ]
        with m.If(self.end):
            m.d.sync += self.serving.bit_select(self.place, 1).eq(0)
            with m.If(self.clearing & (self.place == place)):
                m.d.sync += self.clearing.eq(0)
        return m


_DEPTH = 64  # answers that may wait; the queue fills only if ``tx`` is slower than ``rx``


class Answers(Component):
    """A builder and queue of answers. An answer that finds the queue full is lost, which the protocol recovers from."""

    LATENCY = 2

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        ports = {
            "mac": In(MAC_BITS),  # the aggregator's address
            # A packet, its outcome, the state of its slot before it, and the slot's sums after it.
            "admitted": In(admitted(config)),
            "outcome": In(OUTCOME),
            "state": In(STATE),
            "sums": In(VALUES_LAYOUT),
            # The answer, `LATENCY` cycles later. `ports` is the bitmap of the ports that it leaves through.
            "tx": Out(stream.Signature(data.StructLayout({"beat": FrameBeat, "ports": config.ports}))),
            "overrun": Out(1),  # pulse: an answer is lost
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        about, outcome = self.admitted, self.outcome
        packet = about.packet
        failed = {check: about.verdict[bit] for bit, check in enumerate(VERDICT)}
        has_slot = about.has_job & ~failed[DropReason.SLOT]
        has_shard = about.has_job & ~failed[DropReason.SHARD]
        to_all = outcome.to_all & ~about.probe & ~outcome.asks
        job, asks_sums = about.job, outcome.asks & (packet.type == PacketType.PARTIAL)

        echo: Any = Signal(VALUES_LAYOUT)
        values: Any = Signal(VALUES_LAYOUT)
        m.d.comb += [
            echo[EchoValue.NUMBER].eq(packet["values"][0]),
            echo[EchoValue.VERDICT].eq(about.verdict),
            echo[EchoValue.PORT].eq(about.port),
            echo[EchoValue.ACKNOWLEDGED].eq(Mux(has_slot, self.state.acknowledged, 0)),
            echo[EchoValue.WORKERS].eq(Mux(about.has_job, job.workers, 0)),
            echo[EchoValue.SLOTS].eq(config.slots),
            echo[EchoValue.MAC_HIGH].eq(Mux(has_shard, about.member.mac >> 32, 0)),
            echo[EchoValue.MAC_LOW].eq(Mux(has_shard, about.member.mac[:32], 0)),
        ]
        with m.If(about.probe):
            m.d.comb += values.eq(echo)
        with m.Elif(outcome.full | asks_sums):
            m.d.comb += values.eq(self.sums)
        answer_type = Mux(outcome.full, PacketType.FULL, PacketType.CLEAR)
        shards = Mux(outcome.asks, Const(1) << job.parent_shard, shard_mask(job.workers))
        frame = build(
            m,
            destination=Mux(outcome.asks, about.parent.mac, Mux(to_all, job.group_mac, packet.source)),
            source=self.mac,
            type=Mux(outcome.asks, packet.type, Mux(about.probe, PacketType.ECHO, answer_type)),
            job=packet.job,
            slot=packet.slot,
            round=Mux(about.probe, Mux(has_slot, self.state.round, 0), packet.round),
            shard=Mux(outcome.asks, job.parent_shard, Mux(to_all, 0, packet.shard)),
            workers=Mux(about.probe, packet.workers, Mux(outcome.asks, job.parent_workers, job.workers)),
            bitmap=Mux(about.probe, Mux(has_slot, self.state.aggregated, 0), shards),
            values=values,
        )
        layout = data.StructLayout({"frame": 8 * FRAME_BYTES, "ports": config.ports})
        answer: Any = Signal(layout)
        m.submodules.queue = queue = RegisteredValidFIFO(layout.size, _DEPTH)
        waiting: Any = data.View(layout, queue.o.payload)
        room = Signal(range(_DEPTH + 1), init=_DEPTH)
        has_room = Signal(init=1)  # shows `room` of a cycle ago, so it keeps one place in reserve
        comes = about.probe | outcome.full | outcome.clear | outcome.asks
        enters = comes & has_room
        m.d.comb += [
            answer.frame.eq(frame),
            answer.ports.eq(Mux(to_all, job.ports, Const(1) << Mux(outcome.asks, about.parent.port, about.port))),
            queue.i.payload.eq(answer),
            queue.i.valid.eq(enters),
            queue.o.ready.eq(~self.tx.valid | self.tx.ready),
            self.overrun.eq(comes & ~has_room),
        ]
        m.d.sync += [
            room.eq(room - enters + (queue.o.valid & queue.o.ready)),
            has_room.eq(room > 1),
        ]
        leaving: Any = Signal(layout, reset_less=True)
        with m.If(queue.o.ready):
            m.d.sync += [self.tx.valid.eq(queue.o.valid), leaving.eq(waiting)]
        m.d.comb += [
            self.tx.payload.beat.data.eq(leaving.frame),
            self.tx.payload.beat.keep.eq((1 << FRAME_BYTES) - 1),
            self.tx.payload.beat.last.eq(1),
            self.tx.payload.ports.eq(leaving.ports),
        ]
        return m


class Aggregator(Component):
    """An aggregator for several jobs; it takes a packet and sends a packet in every cycle::

        control ─▶ RegisterFile ─▶ SlotManager
                        │ jobs         │ RESET, LOOK
        rx ─────▶ Admission ──────▶ SlotTable ──▶ SumTable ──▶ Answers ──▶ tx
                  is it a packet    new state,    sums         a frame
                  of a job here?    outcome

    The state machine is that of hw/net/README.md, registers are of :mod:`p4sgd.hw.spec.aggregator`. An answer leaves
    `LATENCY` cycles after its packet came, if ``tx`` has taken those before. A reset must last at least
    `p4sgd.hw.spec.timing.RESET_CYCLES`, in which the pipeline empties. Jobs share nothing but this pipeline: a
    packet reaches the slots of a job only if its number, shard, MAC address and port are those of a worker of the job.
    """

    LATENCY = Admission.ITEM_LATENCY + SlotTable.LATENCY + 1 + Answers.LATENCY

    def __init__(self, config: AggregatorConfig, *, build_id: int = 0) -> None:
        self._config = config
        self._build_id = build_id
        ports = {
            "control": In(Axi4LiteSignature()),  # AXI4-Lite access to the registers
            # Frames, each with the port it came in through. Always ready.
            "rx": In(stream.Signature(data.StructLayout({"beat": FrameBeat, "port": config.port_bits}))),
            # Frames, each with the bitmap of the ports that it leaves through.
            "tx": Out(stream.Signature(data.StructLayout({"beat": FrameBeat, "ports": config.ports}))),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()
        m.submodules.registers = registers = RegisterFile(aggregator_map(config))
        m.submodules.keeper = keeper = SlotManager(config)
        m.submodules.admission = admission = Admission(config)
        m.submodules.slots = slots = SlotTable(config)
        m.submodules.sums = sums = SumTable(config)
        m.submodules.answers = answers = Answers(config)
        mac = registers.wide("mac")
        wiring.connect(m, wiring.flipped(self.control), registers.bus)
        wiring.connect(m, keeper.own, admission.own)
        wiring.connect(m, wiring.flipped(self.rx), admission.rx)
        wiring.connect(m, answers.tx, wiring.flipped(self.tx))

        # The slots' states come first, their sums a cycle later; the rest of the packet is delayed to meet them.
        address = pipeline(m, admission.item.address, 1, "address", reset_less=True)[1]
        admitted = pipeline(m, admission.admitted, 3, "admitted", reset_less=True)
        outcome = pipeline(m, slots.outcome, 1, "outcome", reset_less=True)[1]
        state = pipeline(m, slots.state, 1, "state", reset_less=True)[1]
        m.d.comb += [
            admission.mac.eq(mac),
            slots.item.eq(admission.item),
            slots.ours.eq(admission.admitted.ours),
            sums.address.eq(address),
            sums.values.eq(admitted[2].packet["values"]),
            sums.replaces.eq(slots.outcome.replaces),
            sums.joins.eq(slots.outcome.joins),
            answers.mac.eq(mac),
            answers.admitted.eq(admitted[3]),
            answers.outcome.eq(outcome),
            answers.state.eq(state),
            answers.sums.eq(sums.sums),
        ]
        self._control(m, registers, keeper, admission, slots)
        self._count(m, registers, admitted[3], outcome, answers.overrun)
        return m

    def _control(
        self, m: Module, registers: RegisterFile, keeper: SlotManager, admission: Admission, slots: SlotTable
    ) -> None:
        config = self._config
        m.d.comb += registers.show(identity(config, self._build_id))
        for place, job in enumerate(admission.jobs):
            m.d.comb += job.serving.eq(keeper.serving[place])
            m.d.comb += job.group_mac.eq(registers.wide(f"job{place}_group_mac"))
            for name in ("number", "workers", "ports", "parent_workers", "parent_shard"):
                m.d.comb += getattr(job, name).eq(getattr(registers, f"job{place}_{name}"))

        def address(slot: Value, place: Value) -> Value:
            return Cat(slot, place[: config.job_bits])

        looked = pipeline(m, keeper.looked, 1 + SlotTable.LATENCY, "looked")[-1]
        with m.If(looked):
            m.d.sync += [
                registers.slot_round_round.eq(slots.state.round),
                registers.slot_aggregated.eq(slots.state.aggregated),
                registers.slot_acknowledged.eq(slots.state.acknowledged),
                registers.slot_round_ready.eq(1),
            ]
        with m.If(registers.look_slot_strobe):
            m.d.sync += registers.slot_round_ready.eq(0)
        m.d.comb += [
            keeper.begin.eq(registers.begin_place_strobe),
            keeper.first_round.eq(registers.begin_round),
            keeper.end.eq(registers.end_place_strobe),
            keeper.place.eq(Mux(registers.end_place_strobe, registers.end_place, registers.begin_place)),
            keeper.look.eq(registers.look_slot_strobe),
            keeper.look_address.eq(address(registers.look_slot[: config.slot_bits], registers.look_place)),
            registers.jobs_running.eq(keeper.serving),
            registers.jobs_clearing.eq(keeper.clearing),
            admission.members.valid.eq(registers.member_shard_strobe),
            admission.members.payload.address.eq(address(registers.member_shard, registers.member_place)),
            admission.members.payload.member.mac.eq(registers.wide("member_mac")),
            admission.members.payload.member.port.eq(registers.member_port),
            admission.look.eq(address(registers.look_member_shard, registers.look_member_place)),
            registers.wide("shown_mac").eq(admission.shown.mac),
            registers.shown_port.eq(admission.shown.port),
        ]

    def _count(self, m: Module, registers: RegisterFile, packet: Any, outcome: Any, overrun: Signal) -> None:
        accepted = outcome.to_all | outcome.full | outcome.clear | outcome.asks | packet.probe
        kinds = {kind: packet.packet.type == kind for kind in (PacketType.PARTIAL, PacketType.ACK)}
        drop = Signal(DropReason)
        dropped = Signal()
        m.d.comb += [drop.eq(packet.drop), dropped.eq(packet.arrived & ~accepted)]
        with m.If(packet.ours):
            m.d.comb += drop.eq(DropReason.DUPLICATE)
            with m.If(outcome.stale):
                m.d.comb += drop.eq(DropReason.STALE)
        events: dict[str, Value] = {
            "FRAMES": packet.arrived,
            "PARTIALS": (outcome.replaces | outcome.joins) & kinds[PacketType.PARTIAL],
            "ACKS": outcome.acknowledges & kinds[PacketType.ACK],
            "FULLS_TO_ALL": outcome.full & outcome.to_all,
            "FULLS_TO_ONE": outcome.full & ~outcome.to_all,
            "CLEARS_TO_ALL": outcome.clear & outcome.to_all,
            "CLEARS_TO_ONE": outcome.clear & ~outcome.to_all,
            "ECHOES": packet.probe,
            "OVERRUNS": overrun,
        }
        events |= {f"{kind.name}S_TO_PARENT": outcome.asks & here for kind, here in kinds.items()}
        events |= {f"DROPPED_{known.name}": dropped & (drop == known) for known in DropReason}
        for place in range(self._config.jobs):
            here = packet.has_job & (packet.place == place)
            events |= {f"JOB{place}_ACCEPTED": here & accepted, f"JOB{place}_DROPPED": here & dropped}
        names = list(counters(self._config))
        m.submodules.counters = counts = EventCounters(len(names))
        m.d.comb += [
            counts.events.eq(Cat(events[name] for name in names)),
            counts.show.eq(registers.snapshot_take_strobe),
        ]
        for name, shown in zip(names, counts.shown, strict=True):
            m.d.comb += registers.wide(name.lower()).eq(shown)


AGGREGATOR = "p4sgd_aggregator"  # name of the aggregator's module


def with_ports(aggregator: Aggregator) -> FlatPorts:
    """An aggregator with the ports of `AGGREGATOR`: ``s_axi_control``, and the streams ``rx`` and ``tx``.

    TUSER of ``rx`` is the number of the port that a frame came in through, of ``tx`` the bitmap of the ports that it
    leaves through.
    """
    return FlatPorts(aggregator, {("control",): "s_axi_control", ("rx",): "rx", ("tx",): "tx"})
