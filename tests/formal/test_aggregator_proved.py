"""The aggregator: no two FULLs of a round differ, and they are the sums of one PARTIAL of each worker of that round.

The host may do anything that it is allowed to, and any frame may come in any cycle. Slot and round are any; of the
eight values one is looked at, as nothing is done with one that is not done with all. A worker repeats its PARTIAL as it
was (which the proof of the endpoint says of ours): so each worker has one number, V, in this slot, round and value, and
any other number in any other. Every FULL must carry the sum of the V: as they are any numbers, nothing else can be
equal to it, neither a PARTIAL too few nor one too many.
"""

from typing import Any

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Array, Assert, Assume, Cat, Const, Module, Mux, Signal, Value
from support.packets import packet_on
from support.proof import CounterexampleError, Proof, check, free, holds, mutant, needs_solver, prove
from support.word import OneWord

from p4sgd.hw.aggregator import aggregator, answers, slot_table, sum_table
from p4sgd.hw.aggregator.aggregator import Aggregator
from p4sgd.hw.aggregator.answers import Answers
from p4sgd.hw.aggregator.ports import OUTCOME, Kind, admitted, own_item
from p4sgd.hw.aggregator.read_modify_write import ReadModifyWrite
from p4sgd.hw.aggregator.slot_table import SlotTable
from p4sgd.hw.bus.register_file import RegisterFile, member_name
from p4sgd.hw.net.packet import VALUES_LAYOUT, parse, shard_mask
from p4sgd.hw.spec.aggregator import AggregatorConfig, aggregator_map
from p4sgd.hw.spec.packet import ROUND_BITS, PacketType
from p4sgd.hw.spec.register_map import Access

pytestmark = needs_solver

CONFIG = AggregatorConfig(slots=2, jobs=1, ports=1)
WORKERS = 2
VALUE = 5
"""The one looked at."""


class AnyHost(RegisterFile):
    """Registers set to anything before the run, and strobed at any time with anything."""

    def elaborate(self, platform):
        m = Module()
        for register in aggregator_map(CONFIG):
            for field in register.fields:
                name = member_name(register, field)
                port = getattr(self, name)
                match field.access:
                    case Access.RW:
                        m.d.comb += port.eq(AnyConst(len(port)))
                    case Access.STROBE:
                        strobe = getattr(self, f"{name}_strobe")
                        m.d.comb += [port.eq(AnySeq(len(port))), strobe.eq(AnySeq(1))]
        return m


class AnyFrames(Proof):
    """The aggregator between a host and any frames; the numbers of the workers in any slot and round."""

    def register(self, name, bits=1):
        return self.peek(f"dut.registers.{name}", bits)

    def claim(self, m):
        m.submodules.dut = dut = Aggregator(CONFIG)
        free(m, dut)
        self.workers = self.register("job0_workers", 6)
        number = self.register("job0_number", 8)
        mac = Cat(self.register("mac_low", 32), self.register("mac_high", 16))
        m.d.comb += Assume((self.workers >= 1) & (self.workers <= WORKERS))

        # The host notes who the workers are, before the job begins.
        macs = Array(Signal(48, name=f"mac{shard}") for shard in range(WORKERS))
        ports = Array(Signal(name=f"port{shard}") for shard in range(WORKERS))
        self.noted = Signal(WORKERS)
        self.members = [Cat(mac, port) for mac, port in zip(macs, ports, strict=True)]
        m.d.comb += [signal.eq(AnyConst(len(signal))) for signal in (*macs, *ports)]
        notes, shard = self.register("member_shard_strobe"), self.register("member_shard", 5)
        with m.If(notes):
            m.d.comb += [
                Assume(shard < WORKERS),
                Assume(Cat(self.register("member_mac_low", 32), self.register("member_mac_high", 16)) == macs[shard]),
                Assume(self.register("member_port", 5) == ports[shard]),
            ]
            m.d.sync += self.noted.bit_select(shard[:1], 1).eq(1)
        with m.If(self.register("begin_place_strobe")):
            m.d.comb += Assume(self.noted.all())

        self.slot, self.round = Signal(CONFIG.slot_bits), Signal(ROUND_BITS)
        self.values = Array(Signal(32, name=f"value{shard}") for shard in range(WORKERS))
        m.d.comb += [signal.eq(AnyConst(len(signal))) for signal in (self.slot, self.round, *self.values)]
        well_formed, packet = packet_on(m, dut.rx.valid, dut.rx.payload.beat)
        with m.If(
            well_formed
            & (packet.type == PacketType.PARTIAL)
            & (packet.destination == mac)
            & (packet.job == number)
            & (packet.slot == self.slot)
            & (packet.round == self.round)
            & (packet.shard < self.workers)
            & (packet.workers == self.workers)
            & (packet.bitmap == Mux(packet.shard == 0, 1, 2))
            & (packet.source == macs[packet.shard])
            & (dut.rx.payload.port == ports[packet.shard])
        ):
            m.d.comb += Assume(self.value_at(packet["values"]) == self.values[packet.shard])

        self.sum = Signal(32)
        m.d.comb += self.sum.eq(self.values[0] + Mux(self.workers == 2, self.values[1], 0))
        self.dut = dut

    def value_at(self, values):
        """The value looked at."""
        return Value.cast(values).word_select(VALUE, 32)


class Sums(AnyFrames):
    """FULLs as they leave."""

    def claim(self, m):
        super().claim(m)
        dut = self.dut
        full = parse(dut.tx.payload.beat.data)
        is_of_round = (full.type == PacketType.FULL) & (full.slot == self.slot) & (full.round == self.round)
        with m.If(dut.tx.valid & is_of_round):
            m.d.comb += Assert(self.value_at(full["values"]) == self.sum)


@pytest.fixture
def any_host(monkeypatch):
    monkeypatch.setattr(aggregator, "RegisterFile", AnyHost)


CYCLES = 18
"""A packet is answered 10 after it comes, and the first can come in the 6th: the host begins a job before."""


@pytest.mark.usefixtures("any_host")
def test_fulls_of_a_round_are_its_sums(tmp_path):
    check(Sums(), tmp_path, cycles=CYCLES)


@pytest.mark.usefixtures("any_host")
def test_a_full_that_lacks_a_partial_is_found(tmp_path, monkeypatch):
    broken = mutant(ReadModifyWrite, "Mux(self.follows, self.made, self.before)", "self.before")
    monkeypatch.setattr(sum_table, "ReadModifyWrite", broken)
    with pytest.raises(CounterexampleError):
        check(Sums(), tmp_path, cycles=CYCLES)


class Kept(AnyFrames):
    """The same before answers are queued: without end, by what holds of the words that are kept of the slot.

    Both tables have a stand-in that keeps the slot's word only, as the proof of `ReadModifyWrite` allows.
    """

    def claim(self, m):
        super().claim(m)
        packet = self.peek("dut.answers.admitted", admitted(CONFIG)).packet
        sums = self.peek("dut.answers.sums", VALUES_LAYOUT)
        is_of_round = (packet.slot == self.slot) & (packet.round == self.round)
        with m.If(self.peek("dut.answers.outcome", OUTCOME).full & is_of_round):
            m.d.comb += Assert(self.value_at(sums) == self.sum)
        for table in ("slots", "sums"):
            m.d.comb += Assume(self.peek(f"dut.{table}.words.followed") == self.slot)

    def strengthen(self, m):
        # The slot, when its sums have their turn: a cycle later.
        word = self.peek("dut.slots.words.word", slot_table._WORD)
        known: Any = Signal(slot_table._WORD)
        m.d.sync += known.eq(word)
        state = known.state
        shards = [state.aggregated[shard] for shard in range(WORKERS)]
        has_values = state.aggregated.any()
        so_far = sum((Mux(here, value, 0) for here, value in zip(shards, self.values, strict=True)), Const(0, 32))
        m.d.comb += [
            Assert(state.aggregated & ~shard_mask(self.workers) == 0),
            Assert(~known.fresh | (~has_values & known.partials_left.all())),
            Assert(~has_values | (known.partials_left + sum(shards) == self.workers)),
        ]
        with m.If(has_values & (state.round == self.round)):
            kept = self.value_at(self.peek("dut.sums.words.word", VALUES_LAYOUT))
            m.d.comb += Assert(kept == so_far[:32])

        # A job is served when its workers are noted, and its slots have been made fresh.
        serving, clearing = self.peek("dut.keeper.serving"), self.peek("dut.keeper.clearing")
        with m.If(serving | clearing):
            m.d.comb += Assert(self.noted.all())
        for shard, member in enumerate(self.members):
            with m.If(self.noted[shard]):
                m.d.comb += Assert(self.peek(f"dut.admission.members[{shard}]", len(member)) == member)
        item = self.peek("dut.keeper.own__payload", own_item(CONFIG))
        taken = self.peek("dut.keeper.own__valid") & self.peek("dut.keeper.own__ready")
        since = Signal(3)
        with m.If((since != 0) | (taken & (item.kind == Kind.RESET) & (item.address == self.slot))):
            m.d.sync += since.eq(since + ~since.all())
        with m.If(serving | (clearing & (self.peek("dut.keeper.slot") > self.slot))):
            m.d.comb += Assert(since != 0)
        with m.If(since.all()):
            m.d.comb += Assert(known.fresh | has_values)


@pytest.fixture
def one_word(monkeypatch):
    monkeypatch.setattr(slot_table, "ReadModifyWrite", OneWord)
    monkeypatch.setattr(sum_table, "ReadModifyWrite", OneWord)


@pytest.mark.usefixtures("any_host", "one_word")
def test_words_of_a_slot_keep_rounds_apart(tmp_path):
    prove(Kept(), tmp_path, k=12)


@pytest.mark.usefixtures("any_host", "one_word")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("last.round == known.round", "1", id="of another round"),
        pytest.param("joins.eq(known_partial & ~had_partial)", "joins.eq(known_partial)", id="twice"),
    ],
)
def test_a_wrong_sum_is_found(tmp_path, monkeypatch, right, wrong):
    broken = mutant(SlotTable, right, wrong, ReadModifyWrite=OneWord)
    monkeypatch.setattr(aggregator, "SlotTable", broken)
    with pytest.raises(CounterexampleError):
        check(Kept(), tmp_path, cycles=17)


DEPTH = 4
"""Of the queue of answers: one that finds no room is lost as with the long one, only sooner."""


@pytest.fixture(autouse=True)
def short_queue(monkeypatch):
    monkeypatch.setattr(answers, "_DEPTH", DEPTH)


class Answered(Proof):
    """Answers wait; the queue gets no more than it has room for, as its own proof assumes, and is all but full first.

    Room is known a cycle late, and so for one answer less: with another that leaves meanwhile, two.
    """

    def __init__(self, component=Answers):
        super().__init__()
        self.component = component

    def claim(self, m):
        m.submodules.dut = dut = self.component(CONFIG)
        free(m, dut)
        holds(m, dut.tx)
        enters = self.peek("dut.queue.i__valid")
        leaves = self.peek("dut.queue.o__valid") & self.peek("dut.queue.o__ready")
        self.level = Signal(range(DEPTH + 2))
        m.d.sync += self.level.eq(self.level + enters - leaves)
        m.d.comb += [Assert(~enters | (self.level < DEPTH)), Assert(~dut.overrun | (self.level >= DEPTH - 2))]

    def strengthen(self, m):
        room, has_room = self.peek("dut.room", range(DEPTH + 1)), self.peek("dut.has_room")
        write_at, read_at, read_after = (
            self.peek(f"dut.queue.{name}", range(2 * DEPTH)) for name in ("write_at", "read_at", "read_after")
        )
        m.d.comb += [
            Assert(room + self.level == DEPTH),
            Assert(Mux(has_room, room > 0, room <= 2)),
            Assert((write_at - read_at)[: len(write_at)] == self.level),
            Assert(read_after == (read_at + 1)[: len(read_at)]),
            Assert(self.peek("dut.queue.o__valid") == (self.level != 0)),
        ]


def test_answers_wait_as_they_are_and_have_room(tmp_path):
    prove(Answered(), tmp_path, k=2)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("with m.If(queue.o.ready):", "with m.If(1):", id="does not wait"),
        pytest.param("enters = asks & has_room", "enters = asks", id="has no room"),
        pytest.param("room - enters + (queue.o.valid & queue.o.ready)", "room - enters", id="leaves no room"),
    ],
)
def test_an_answer_that_is_lost_is_found(tmp_path, right, wrong):
    broken = mutant(Answers, right, wrong, _DEPTH=DEPTH)
    with pytest.raises(CounterexampleError):
        check(Answered(broken), tmp_path, cycles=10)
