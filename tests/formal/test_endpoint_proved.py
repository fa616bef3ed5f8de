"""The endpoint: what it sends and hands on for any of its slots, whatever frames come.

Any frame may come in any cycle, but all FULLs that the endpoint may take for one round of the slot have the same
values: those of the aggregator have, which its own proof says. Of the eight values one is looked at, as nothing is done
with one that is not done with all.
"""

import pytest
from amaranth.asserts import AnyConst, AnySeq, Initial
from amaranth.hdl import Assert, Assume, Mux, Signal, Value
from support.packets import packet_on
from support.proof import CounterexampleError, Proof, check, free, holds, mutant, needs_solver, prove

from p4sgd.hw.net import endpoint
from p4sgd.hw.net.endpoint import Endpoint
from p4sgd.hw.net.packet import parse, shard_mask
from p4sgd.hw.net.reception import Reception
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.packet import GROUP_BIT, ROUND_BITS, PacketType

pytestmark = needs_solver

VALUE = 5
"""The one looked at."""
CONFIG = WorkerConfig(lanes=8, chunks=2, line_fifo_depth=8, slots=2, table_segments=16)

SETTINGS = ("job", "shard", "workers", "local_mac", "peer_mac", "resend_cycles", "doublings", "resend_limit")
"""Inputs that are stable from the join on."""


class Endpoints(Proof):
    """An endpoint between a worker, which keeps the rules of its streams and joins first, and any frames."""

    def __init__(self, component=Endpoint):
        super().__init__()
        self.component = component(CONFIG)

    def claim(self, m):
        m.submodules.dut = dut = self.component
        free(m, dut, stable=SETTINGS)
        had_given_up = Signal()
        m.d.sync += had_given_up.eq(dut.given_up)
        self.forgets = dut.join | dut.leave | (dut.given_up & ~had_given_up)
        m.d.comb += Assume(dut.resend_cycles < 1 << 16)
        with m.If(Initial()):
            m.d.comb += Assume(dut.join)
        with m.If(dut.join):
            m.d.comb += Assume(~dut.partials.valid)
        holds(m, dut.partials, rule=Assume, withdrawn=dut.join | dut.leave)
        holds(m, dut.probe, rule=Assume)


class Streams(Endpoints):
    """What it offers waits until it is taken; sums are withdrawn when all is forgotten."""

    def claim(self, m):
        super().claim(m)
        dut = self.component
        holds(m, dut.tx)
        holds(m, dut.sums, withdrawn=dut.join | dut.leave | dut.given_up)


class Slot(Endpoints):
    """Any one slot: what is sent of it, when it is used again, which sums come of it."""

    def claim(self, m):
        super().claim(m)
        dut = self.component
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
        accepted = dut.partials.valid & dut.partials.ready
        begins = accepted & (next_slot == slot)
        any_full = Signal(32)
        round_now, full_now = Mux(begins, next_round, round_), Mux(begins, any_full, full)
        m.d.comb += any_full.eq(AnySeq(32))
        with m.If(accepted):
            m.d.sync += next_slot.eq(next_slot + 1)
            with m.If(next_slot == CONFIG.slots - 1):
                m.d.sync += next_round.eq(next_round + 1)
        with m.If(begins):
            m.d.comb += Assert(~in_use | (has_full & has_clear & handed_on))
            m.d.sync += [
                in_use.eq(1),
                has_full.eq(0),
                has_clear.eq(0),
                handed_on.eq(0),
                round_.eq(next_round),
                sent.eq(value_of(dut.partials.payload)),
                full.eq(any_full),
            ]

        # What comes.
        well_formed, packet = packet_on(m, dut.rx.valid, dut.rx.payload)
        to_all = packet.destination[GROUP_BIT]
        with m.If(
            well_formed
            & (to_all | (packet.destination == dut.local_mac))
            & (packet.source == dut.peer_mac)
            & (packet.job == dut.job)
            & (packet.workers == dut.workers)
            & (packet.shard == Mux(to_all, 0, dut.shard))
            & (packet.bitmap == shard_mask(dut.workers))
            & (packet.slot == slot)
            & (packet.round == round_now)
        ):
            with m.If(packet.type == PacketType.FULL):
                m.d.comb += Assume(value_of(packet["values"]) == full_now)
                m.d.sync += has_full.eq(1)
            with m.If((packet.type == PacketType.CLEAR) & has_full & ~begins):
                m.d.sync += has_clear.eq(1)

        # What it sends; after all is forgotten one packet of the past may still be on its way.
        of_past = Signal()
        with m.If(dut.tx.ready):
            m.d.sync += of_past.eq(0)
        packet = parse(dut.tx.payload.data)
        with m.If(dut.tx.valid & ~of_past & (packet.slot == slot)):
            with m.If(packet.type == PacketType.PARTIAL):
                m.d.comb += Assert(in_use & (packet.round == round_) & (value_of(packet["values"]) == sent))
            with m.If(packet.type == PacketType.ACK):
                m.d.comb += Assert(in_use & (packet.round == round_) & has_full)

        # What it hands on: sums of all slots in turn.
        turn = Signal(CONFIG.slot_bits)
        seen = Signal()
        m.d.sync += seen.eq(dut.sums.valid & ~dut.sums.ready)
        with m.If(dut.sums.valid & ~seen):
            m.d.sync += turn.eq(turn + 1)
            with m.If(turn == slot):
                m.d.comb += Assert(in_use & has_full & ~handed_on & (value_of(dut.sums.payload) == full))
                m.d.sync += handed_on.eq(1)

        with m.If(self.forgets):
            m.d.sync += [in_use.eq(0), turn.eq(0), seen.eq(0), of_past.eq(1)]
        with m.If(dut.join):
            m.d.sync += [next_slot.eq(0), next_round.eq(dut.join_round)]


CYCLES = 12
"""A slot can be used again in the 9th."""


def test_what_is_offered_waits(tmp_path):
    prove(Streams(), tmp_path, k=2)


def test_slots_carry_one_operation_after_the_other(tmp_path):
    check(Slot(), tmp_path, cycles=CYCLES)


def test_a_stream_that_drops_valid_is_found(tmp_path):
    broken = mutant(
        Endpoint,
        "with m.If(free):\n            m.d.sync += [\n                self.tx",
        "with m.If(1):\n            m.d.sync += [\n                self.tx",
    )
    with pytest.raises(CounterexampleError):
        check(Streams(broken), tmp_path, cycles=8)


@pytest.mark.parametrize(
    ("part", "right", "wrong"),
    [
        pytest.param(Reception, "Drop.STALE: is_work & ~right_round", "Drop.STALE: 0", id="any round"),
        pytest.param(
            Endpoint, "(slots.waits_for_full | slots.waits_for_clear |", "(slots.waits_for_full |", id="too early"
        ),
        pytest.param(Endpoint, "straight.eq(full & in_turn & free)", "straight.eq(full & free)", id="out of turn"),
    ],
)
def test_a_broken_slot_is_found(tmp_path, monkeypatch, part, right, wrong):
    broken = mutant(part, right, wrong)
    if part is Reception:
        monkeypatch.setattr(endpoint, "Reception", broken)
    with pytest.raises(CounterexampleError):
        check(Slot(broken if part is Endpoint else Endpoint), tmp_path, cycles=CYCLES)
