"""The endpoint: what it sends and hands on for any of its slots, whatever frames come.

Any frame may come in any cycle, but all FULLs that the endpoint may take for one round of the slot have the same
values: those of the aggregator have, which its own proof says. Of the eight values one is looked at, as nothing is done
with one that is not done with all. The timer has a stand-in: any packet is sent again, or given up, at any time.
"""

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cat, Cover, Module, Mux, Signal, Value
from support.proof import Proof, check, finds, free, holds, mutant, needs_solver, packet_on, prove, reach

from p4sgd.hw.net import endpoint
from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.net.packet import parse, shard_mask
from p4sgd.hw.net.reception import Reception
from p4sgd.hw.net.timers import ResendTimer
from p4sgd.hw.primitives import pipeline
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import GROUP_BIT, ROUND_BITS, PacketType

pytestmark = needs_solver

VALUE = 5
"""The one looked at."""
CONFIG = WorkerConfig(lanes=8, chunks=2, line_fifo_depth=8, slots=2, table_segments=16)

SETTINGS = ("shard", "workers", "local_mac", "peer_mac", "resend_cycles", "doublings", "resend_limit")
"""Inputs that are stable from the join on, but for the job; here throughout."""


class Asked:
    """The slot that a timer asks.

    ``waits_for_full``, ``waits_for_clear``: the slot asked waited for it, a cycle ago, and has not been forgotten
    since; ``stays``: it is the slot that was asked a cycle ago; ``may_ask``: whether it may be offered, or given up.
    """

    def __init__(self, m: Module, timer: ResendTimer) -> None:
        asked_before = Signal.like(timer.scan)
        waited_for_full, waited_for_clear = (Signal.like(timer.waits_for_full, name=name) for name in ("full", "clear"))
        forgot = Signal()
        m.d.sync += [
            asked_before.eq(timer.scan),
            waited_for_full.eq(timer.waits_for_full),
            waited_for_clear.eq(timer.waits_for_clear),
            forgot.eq(timer.forget),
        ]
        self.waits_for_full = waited_for_full.bit_select(timer.scan, 1) & ~forgot
        self.waits_for_clear = waited_for_clear.bit_select(timer.scan, 1) & ~forgot
        self.stays = asked_before == timer.scan
        self.may_ask: Value = self.stays & (self.waits_for_full | self.waits_for_clear)


class AnyTime(ResendTimer):
    """A `ResendTimer` that knows no time: what waits may be offered, or given up, in any cycle."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        asked = Asked(m, self)
        asks, spent = (Signal(name=name) for name in ("asks", "spent"))
        m.d.comb += [
            asks.eq(AnySeq(1) & asked.may_ask),
            spent.eq(AnySeq(1)),
            self.is_partial.eq(asked.waits_for_full),
            self.offered.eq(asks & ~spent),
            self.give_up.eq(asks & spent),
        ]
        m.d.sync += self.scan.eq(AnySeq(len(self.scan)))
        return m


class Asks(Proof):
    """The timer asks for a slot only what the endpoint relies on, and what its stand-in does."""

    def __init__(self, timer=ResendTimer):
        super().__init__(timer(CONFIG))

    def claim(self, m):
        dut = self.dut
        free(m, dut)
        asked = Asked(m, dut)
        m.d.comb += [
            Assert(dut.is_partial == asked.waits_for_full),
            Assert(~(dut.offered | dut.give_up) | asked.may_ask),
            Assert(~(dut.offered & dut.give_up)),
        ]

    def strengthen(self, m):
        scan, scan_after = self.dut.scan, self.peek("dut.scan_after", CONFIG.slot_bits)
        m.d.comb += Assert(scan_after == (scan + 1)[: CONFIG.slot_bits])


def test_the_timer_asks_for_what_waits(tmp_path):
    prove(Asks(), tmp_path, k=2)


def test_a_timer_that_asks_too_late_is_found(tmp_path):
    broken = mutant(ResendTimer, "overdue & same_wait & waits & (waits_for_full == was_partial)", "overdue & same_wait")
    finds(tmp_path, Asks(broken), 8)


@pytest.fixture
def any_time(monkeypatch):
    monkeypatch.setattr(endpoint, "ResendTimer", AnyTime)


class Endpoints(Proof):
    """An endpoint between a worker, which keeps the rules of its streams, and any frames."""

    def __init__(self, component=Endpoint):
        super().__init__(component(CONFIG))

    def claim(self, m):
        dut = self.dut
        free(m, dut, stable=SETTINGS)
        had_given_up = Signal()
        m.d.sync += had_given_up.eq(dut.given_up)
        self.forgets = dut.join | dut.leave | (dut.given_up & ~had_given_up)
        with m.If(dut.join):
            m.d.comb += Assume(~dut.partials.valid)
        holds(m, dut.partials, rule=Assume, withdrawn=dut.join | dut.leave)
        holds(m, dut.probe, rule=Assume)
        # The job is written while no run is: a run ends when the endpoint is at rest, or out of the job.
        rests = ~dut.joined | (~dut.busy & ~dut.partials.valid)
        rested = pipeline(m, rests, 2, "rested")  # busy may be as late
        job = Signal(8)
        self.number = Signal(8)  # of the job joined
        m.d.sync += job.eq(dut.job)
        with m.If(~Cat(rested).all()):
            m.d.comb += Assume(dut.job == job)
        with m.If(dut.partials.valid & dut.joined):
            m.d.comb += Assume(dut.job == self.number)
        with m.If(dut.join):
            m.d.sync += self.number.eq(dut.job)


class Streams(Endpoints):
    """What it offers waits until it is taken; sums are withdrawn when all is forgotten."""

    def claim(self, m):
        super().claim(m)
        dut = self.dut
        holds(m, dut.tx)
        holds(m, dut.sums, withdrawn=dut.join | dut.leave | dut.given_up)


class Slot(Endpoints):
    """Any one slot: what is sent of it, when it is used again, which sums come of it."""

    def claim(self, m):
        super().claim(m)
        dut = self.dut
        slot = Signal(CONFIG.slot_bits)
        m.d.comb += slot.eq(AnyConst(CONFIG.slot_bits))

        def value_of(values):
            return Value.cast(values).word_select(VALUE, 32)

        # The operation in the slot.
        next_slot, next_round = Signal(CONFIG.slot_bits), Signal(ROUND_BITS)
        in_use, has_full, has_clear, handed_on = (
            Signal(name=name) for name in ("in_use", "has_full", "has_clear", "handed_on")
        )
        round_, sent, full = Signal(ROUND_BITS), Signal(32), Signal(32)
        joined = Signal()
        accepted = dut.partials.valid & dut.partials.ready
        begins = accepted & (next_slot == slot)
        any_full = Signal(32)
        round_now, full_now = Mux(begins, next_round, round_), Mux(begins, any_full, full)
        m.d.comb += any_full.eq(AnySeq(32))
        with m.If(accepted):
            m.d.comb += Assert(joined & ~dut.given_up)
            m.d.sync += next_slot.eq(next_slot + 1)
            with m.If(next_slot == CONFIG.slots - 1):
                m.d.sync += next_round.eq(next_round + 1)
        with m.If(begins):
            m.d.comb += Assert(~in_use | (has_full & has_clear & handed_on))
            m.d.sync += [in_use.eq(1), has_full.eq(0), has_clear.eq(0), handed_on.eq(0)]
            m.d.sync += [round_.eq(next_round), sent.eq(value_of(dut.partials.payload)), full.eq(any_full)]

        # What comes.
        well_formed, packet = packet_on(m, dut.rx.valid, dut.rx.payload)
        to_all = packet.destination[GROUP_BIT]
        right = {"source": dut.peer_mac, "job": dut.job, "workers": dut.workers, "shard": Mux(to_all, 0, dut.shard)}
        right |= {"bitmap": shard_mask(dut.workers), "slot": slot, "round": round_now}
        is_ours = (to_all | (packet.destination == dut.local_mac)) & well_formed
        with m.If(is_ours & Cat(packet[name] == value for name, value in right.items()).all()):
            with m.If(packet.type == PacketType.FULL):
                m.d.comb += Assume(value_of(packet["values"]) == full_now)
                m.d.sync += has_full.eq(1)
            with m.If((packet.type == PacketType.CLEAR) & has_full & ~begins):
                m.d.sync += has_clear.eq(1)

        # What it sends; after all is forgotten one packet of the past may still be on its way.
        of_past = Signal()
        number = Signal(8)  # of the job in which it was made
        with m.If(dut.tx.ready | ~dut.tx.valid):
            m.d.sync += [of_past.eq(0), number.eq(self.number)]
        packet = parse(dut.tx.payload.data)
        with m.If(dut.tx.valid & (packet.type != PacketType.PROBE)):
            m.d.comb += Assert(packet.job == number)
        with m.If(dut.tx.valid & ~of_past & (packet.slot == slot)):
            with m.If(packet.type == PacketType.PARTIAL):
                m.d.comb += Assert(in_use & (packet.round == round_) & (value_of(packet["values"]) == sent))
            with m.If(packet.type == PacketType.ACK):
                m.d.comb += Assert(in_use & (packet.round == round_) & has_full)

        # What it hands on: sums of all slots in turn.
        turn = Signal(CONFIG.slot_bits)
        seen = Signal()
        shows = dut.sums.valid & ~seen
        hands_on = shows & (turn == slot)
        m.d.sync += seen.eq(dut.sums.valid & ~dut.sums.ready)
        with m.If(shows):
            m.d.sync += turn.eq(turn + 1)
        with m.If(hands_on):
            m.d.comb += Assert(in_use & has_full & ~handed_on & (value_of(dut.sums.payload) == full))
            m.d.sync += handed_on.eq(1)

        with m.If(self.forgets):
            m.d.sync += [joined.eq(0), in_use.eq(0), turn.eq(0), seen.eq(0), of_past.eq(1)]
        with m.If(dut.join):
            m.d.sync += [joined.eq(1), next_slot.eq(0), next_round.eq(dut.join_round)]

        # That none of this is said of nothing.
        given_up, left, sent_before = (Signal(name=name) for name in ("given_up", "left", "sent_before"))
        worked, renamed = Signal(), Signal()
        at_once = pipeline(m, has_full, Endpoint.RX_LATENCY, "had_full")[-1] == 0
        offers = dut.tx.valid & ~of_past & (packet.slot == slot) & in_use
        with m.If(in_use):
            m.d.sync += [given_up.eq(given_up | dut.given_up), left.eq(left | dut.leave)]
        with m.If(dut.join & worked):
            m.d.sync += renamed.eq(dut.job != self.number)
        with m.If(begins):
            m.d.sync += [sent_before.eq(0), worked.eq(1)]
        with m.Elif(offers & dut.tx.ready & (packet.type == PacketType.PARTIAL)):
            m.d.sync += sent_before.eq(1)
        m.d.comb += [
            Cover(begins & in_use),
            Cover(offers & (packet.type == PacketType.PARTIAL) & sent_before),
            Cover(offers & (packet.type == PacketType.ACK)),
            Cover(offers & (packet.type == PacketType.PARTIAL) & renamed),
            Cover(hands_on & at_once),
            Cover(hands_on & ~at_once),
            Cover(begins & given_up),
            Cover(begins & left),
        ]


CYCLES = 12
"""A slot can be used again in the 9th."""


def test_what_is_offered_waits(tmp_path):
    prove(Streams(), tmp_path, k=2)


@pytest.mark.slow
@pytest.mark.usefixtures("any_time")
def test_slots_carry_one_operation_after_the_other(tmp_path):
    check(Slot(), tmp_path, cycles=CYCLES)


@pytest.mark.usefixtures("any_time")
def test_slots_come_to_everything_that_is_claimed(tmp_path):
    reach(Slot(), tmp_path, cycles=CYCLES)


@pytest.mark.usefixtures("any_time")
@pytest.mark.parametrize(
    ("proof", "right", "wrong"),
    [
        (Streams, "with m.If(free):\n            m.d.sync", "with m.If(1):\n            m.d.sync"),
        (Slot, "straight.eq(full & in_turn & free)", "straight.eq(full & free)"),
        *(
            pytest.param(Slot, right, wrong, marks=pytest.mark.slow)
            for right, wrong in (
                ("(slots.waits_for_full | slots.waits_for_clear |", "(slots.waits_for_full |"),
                ("self.join | self.leave | gives_up", "self.join | self.leave"),
                ("self.join | self.leave | gives_up", "self.join | gives_up"),
                ("with m.If(self.leave):", "with m.If(0):"),
                ("self.joined.eq(0),\n                self.given_up", "self.given_up"),
            )
        ),
    ],
    ids=["drops", "out of turn", "too early", "given up, stays", "left, stays", "left, goes on", "given up, goes on"],
)
def test_a_broken_endpoint_is_found(tmp_path, proof, right, wrong):
    finds(tmp_path, proof(mutant(Endpoint, right, wrong, ResendTimer=AnyTime)), CYCLES)


@pytest.mark.usefixtures("any_time")
def test_packets_of_any_round_are_found(tmp_path, monkeypatch):
    broken = mutant(Reception, "DropReason.STALE: is_work & ~right_round", "DropReason.STALE: 0")
    monkeypatch.setattr(endpoint, "Reception", broken)
    finds(tmp_path, Slot(), CYCLES)
