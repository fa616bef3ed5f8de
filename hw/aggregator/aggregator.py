"""The aggregator: its registers, and the pipeline that a packet passes from ``rx`` to ``tx``."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.aggregator.admission import Admission
from p4sgd.hw.aggregator.answers import Answers
from p4sgd.hw.aggregator.slot_manager import SlotManager
from p4sgd.hw.aggregator.slots import SlotTable, SumTable
from p4sgd.hw.bus.axi import Axi4LiteSignature, FrameBeat
from p4sgd.hw.bus.register_file import EventCounters, RegisterFile
from p4sgd.hw.primitives import Component, pipeline
from p4sgd.hw.spec.aggregator import AggregatorConfig, aggregator_map, counters, identity
from p4sgd.hw.spec.packet import DropReason

__all__ = ["Aggregator"]


class Aggregator(Component):
    """An aggregator for several jobs; it takes a packet and sends a packet in every cycle::

        control ─▶ RegisterFile ─▶ SlotManager
                        │ jobs         │ RESET, LOOK
        rx ─────▶ Admission ──────▶ SlotTable ──▶ SumTable ──▶ Answers ──▶ tx
                  is it a packet    new state,    sums         a frame
                  of a job here?    outcome

    The state machine is that of hw/net/README.md, the registers are those of :mod:`p4sgd.hw.spec.aggregator`. An answer
    leaves `LATENCY` cycles after its packet came, if ``tx`` has taken those before it. Jobs share nothing but this
    pipeline: each has its own slots, and a packet reaches them only if its number, shard, MAC address and port are
    those of a worker of the job. The host can read ``build_id`` back, to tell builds apart.
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
            sums.begins.eq(slots.outcome.begins),
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
            number, workers, ports = (
                getattr(registers, f"job{place}_{name}") for name in ("number", "workers", "ports")
            )
            m.d.comb += [job.serving.eq(keeper.serving[place]), job.number.eq(number), job.workers.eq(workers)]
            m.d.comb += [job.group_mac.eq(registers.wide(f"job{place}_group_mac")), job.ports.eq(ports)]

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
        answered = outcome.full | outcome.clear
        taken = outcome.begins | outcome.joins | outcome.acknowledges | answered
        accepted = taken | packet.probe
        drop = Signal(DropReason)
        dropped = Signal()
        m.d.comb += [drop.eq(packet.drop), dropped.eq(packet.arrived & ~accepted)]
        with m.If(packet.ours):
            m.d.comb += drop.eq(DropReason.DUPLICATE)
            with m.If(outcome.stale):
                m.d.comb += drop.eq(DropReason.STALE)
        events: dict[str, Value] = {
            "FRAMES": packet.arrived,
            "PARTIALS": outcome.begins | outcome.joins,
            "ACKS": outcome.acknowledges,
            "FULLS_TO_ALL": outcome.full & outcome.to_all,
            "FULLS_TO_ONE": outcome.full & ~outcome.to_all,
            "CLEARS_TO_ALL": outcome.clear & outcome.to_all,
            "CLEARS_TO_ONE": outcome.clear & ~outcome.to_all,
            "ECHOES": packet.probe,
            "OVERRUNS": overrun,
        }
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
