"""The aggregator: no two FULLs of a round differ, and they are the sums of one PARTIAL of each worker of that round.

The host may do anything that it is allowed to, and any frame may come in any cycle. Job, slot and round are any; of the
eight values one is looked at, as nothing is done with one that is not done with all. A worker repeats its PARTIAL as it
was (which the proof of the endpoint says of ours): so each worker has one number, V, in this job, slot, round and
value, and any other number in any other. Every FULL must carry the sum of the V: as they are any numbers, nothing else
can be equal to it, neither a PARTIAL too few nor one too many. If the job has a parent, every PARTIAL to that must
carry the sum, and every FULL the one number that the parent has sent.
"""

from typing import Any

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Array, Assert, Assume, Cat, Const, Cover, Module, Mux, Signal, Value
from support.proof import Proof, check, finds, free, holds, mutant, needs_solver, packet_on, prove, reach
from support.word import OneWord

from p4sgd.hw.aggregator import aggregator
from p4sgd.hw.aggregator import slots as slot_table
from p4sgd.hw.aggregator.admission import OUTCOME, Admission, SlotOp, admitted, own_item
from p4sgd.hw.aggregator.aggregator import Aggregator, Answers
from p4sgd.hw.aggregator.slots import ReadModifyWrite, SlotTable, SumTable
from p4sgd.hw.bus.register_file import RegisterFile, member_name
from p4sgd.hw.net.packet import VALUES_LAYOUT, parse, shard_mask
from p4sgd.hw.primitives import pipeline
from p4sgd.hw.spec.aggregator import AggregatorConfig, aggregator_map
from p4sgd.hw.spec.packet import GROUP_BIT, ROUND_BITS, PacketType
from p4sgd.hw.spec.register_map import Access
from p4sgd.hw.spec.run import MAX_WORKERS

pytestmark = needs_solver

CONFIG = AggregatorConfig(slots=2, jobs=2, ports=1)
WORKERS = 2
VALUE = 5
"""The one looked at."""


class AnyHost(RegisterFile):
    """Registers set and strobed at any time with anything."""

    def elaborate(self, platform):
        m = Module()
        for register in aggregator_map(CONFIG):
            for field in register.fields:
                name = member_name(register, field)
                port = getattr(self, name)
                if field.access in (Access.RW, Access.STROBE):
                    m.d.comb += port.eq(AnySeq(len(port)))
                if field.access is Access.STROBE:
                    m.d.comb += getattr(self, f"{name}_strobe").eq(AnySeq(1))
        return m


class AnyFrames(Proof):
    """The aggregator between a host and any frames; any one job, and the numbers of its workers in any slot and round.

    It may have a parent, which is the shard after the last worker.
    Before the job, behind it and beside it there may be any others, with other workers, in its place and elsewhere.
    """

    def register(self, name, bits=1):
        return self.peek(f"dut.registers.{name}", bits)

    def __init__(self):
        super().__init__(Aggregator(CONFIG))

    def claim(self, m):
        dut = self.dut
        free(m, dut)
        self.place, self.number, self.workers = Signal(CONFIG.job_bits), Signal(8), Signal(6)
        self.mac = Signal(48)
        self.above, self.shard_above = Signal(6), Signal(5)
        macs = Array(Signal(48, name=f"mac{shard}") for shard in range(WORKERS + 1))
        ports = Array(Signal(CONFIG.port_bits, name=f"port{shard}") for shard in range(WORKERS + 1))
        self.members = [Cat(mac, port) for mac, port in zip(macs, ports, strict=True)]
        self.slot, self.round = Signal(CONFIG.slot_bits), Signal(ROUND_BITS)
        self.values = Array(Signal(32, name=f"value{shard}") for shard in range(WORKERS + 1))
        always = (self.place, self.number, self.workers, self.mac, *macs, *ports, self.slot, self.round, *self.values)
        m.d.comb += [signal.eq(AnyConst(len(signal))) for signal in (*always, self.above, self.shard_above)]
        m.d.comb += Assume((self.workers >= 1) & (self.workers <= WORKERS) & (self.above <= MAX_WORKERS))
        self.shards = Signal(6)
        m.d.comb += self.shards.eq(self.workers + self.above.any())
        self.host(m)

        well_formed, packet = packet_on(m, dut.rx.valid, dut.rx.payload.beat)
        right = {"type": PacketType.PARTIAL, "destination": self.mac, "job": self.number, "slot": self.slot}
        right |= {"round": self.round, "workers": self.workers, "bitmap": Mux(packet.shard == 0, 1, 2)}
        right |= {"source": macs[packet.shard]}
        as_noted = Cat(packet[name] == value for name, value in right.items()).all()
        is_member = (packet.shard < self.workers) & (dut.rx.payload.port == ports[packet.shard])
        with m.If(well_formed & self.runs & as_noted & is_member):
            m.d.comb += Assume(self.value_at(packet["values"]) == self.values[packet.shard])
        to_group = packet.destination[GROUP_BIT]
        of_parent = {"type": PacketType.FULL, "job": self.number, "slot": self.slot, "round": self.round}
        of_parent |= {"workers": self.above, "bitmap": shard_mask(self.above), "source": macs[self.workers]}
        of_parent |= {"shard": Mux(to_group, 0, self.shard_above)}
        is_parents = Cat(packet[name] == value for name, value in of_parent.items()).all() & self.above.any()
        is_parents &= (to_group | (packet.destination == self.mac)) & (dut.rx.payload.port == ports[self.workers])
        with m.If(well_formed & self.runs & is_parents):
            m.d.comb += Assume(self.value_at(packet["values"]) == self.values[self.workers])

        self.sum, self.whole = Signal(32), Signal(32)
        m.d.comb += [
            self.sum.eq(self.values[0] + Mux(self.workers == 2, self.values[1], 0)),
            self.whole.eq(Mux(self.above.any(), self.values[self.workers], self.sum)),
        ]

    def host(self, m):
        """The host strobes one register at a time, and leaves the job alone while it runs.

        It notes who the workers are before. What it writes then must not meet frames that came before the end: two
        cycles are enough, and from one write to the next there are four.
        """
        begins, ends, notes = (self.register(f"{name}_strobe") for name in ("begin_place", "end_place", "member_shard"))
        m.d.comb += Assume(begins + ends + notes <= 1)

        def here(name):
            return self.register(name, 3)[: CONFIG.job_bits] == self.place

        self.noted = Signal(WORKERS + 1)
        known = Cat(self.register("member_mac_low", 32), self.register("member_mac_high", 16))
        known = Cat(known, self.register("member_port", 5)[: CONFIG.port_bits])
        for shard, member in enumerate(self.members):
            with m.If(notes & here("member_place") & (self.register("member_shard", 5) == shard)):
                m.d.sync += self.noted[shard].eq(known == member)
        self.all_noted = ~shard_mask(self.shards)[: WORKERS + 1] | self.noted

        self.runs = Signal()
        is_it = Signal()
        m.d.comb += is_it.eq(self.chosen())
        with m.If(begins & here("begin_place") & ~self.peek("dut.keeper.clearing")):
            m.d.sync += self.runs.eq(is_it)
            m.d.comb += Assume(~is_it | self.all_noted.all())
        with m.If(ends & here("end_place")):
            m.d.sync += self.runs.eq(0)
        with m.If(Cat(pipeline(m, self.runs, 2, "runs")).any()):
            m.d.comb += Assume(~(notes & here("member_place")))
            m.d.comb += Assume(Cat(self.register("mac_low", 32), self.register("mac_high", 16)) == self.mac)
            for place in range(CONFIG.jobs):
                number, workers = self.register(f"job{place}_number", 8), self.register(f"job{place}_workers", 6)
                above = self.register(f"job{place}_parent_workers", 6)
                shard_above = self.register(f"job{place}_parent_shard", 5)
                with m.If(self.place == place):
                    m.d.comb += Assume((number == self.number) & (workers == self.workers))
                    m.d.comb += Assume((above == self.above) & (shard_above == self.shard_above))
                with m.Elif(self.serving(place)):
                    m.d.comb += Assume(number != self.number)

    def serving(self, place):
        return self.peek("dut.keeper.serving", CONFIG.jobs).bit_select(place, 1)

    def chosen(self):
        """Whether the job that begins in the place is the one; any may be, and another that is like it."""
        return AnySeq(1)

    def value_at(self, values):
        """The value looked at."""
        return Value.cast(values).word_select(VALUE, 32)


class Sums(AnyFrames):
    """Sums as they leave, known by the number of their job: no other job has it, so none has left sums behind."""

    def claim(self, m):
        super().claim(m)
        dut = self.dut
        for place in range(CONFIG.jobs):
            is_other = self.register(f"job{place}_number", 8) != self.number
            m.d.comb += Assume((self.place == place) | is_other)
        sent = parse(dut.tx.payload.beat.data)
        is_of_round = (sent.job == self.number) & (sent.slot == self.slot) & (sent.round == self.round)
        for kind, value in ((PacketType.FULL, self.whole), (PacketType.PARTIAL, self.sum)):
            with m.If(dut.tx.valid & (sent.type == kind) & is_of_round):
                m.d.comb += Assert(self.value_at(sent["values"]) == value)

    def chosen(self):
        return 1


@pytest.fixture
def any_host(monkeypatch):
    monkeypatch.setattr(aggregator, "RegisterFile", AnyHost)


CYCLES = 18
"""Two workers are noted, their job begun, its slots made fresh: so their FULL can leave in the 17th."""


@pytest.mark.usefixtures("any_host")
@pytest.mark.slow
def test_fulls_of_a_round_are_its_sums(tmp_path):
    check(Sums(), tmp_path, cycles=CYCLES)


@pytest.mark.slow
@pytest.mark.usefixtures("any_host")
def test_a_full_that_lacks_a_partial_is_found(tmp_path, monkeypatch):
    broken = mutant(ReadModifyWrite, "Mux(self.follows, self.made, self.before)", "self.before")
    monkeypatch.setattr(slot_table, "ReadModifyWrite", broken)
    finds(tmp_path, Sums(), CYCLES)


class Kept(AnyFrames):
    """The same before answers are queued: without end, by what holds of the words that are kept of the slot.

    Both tables have a stand-in that keeps the slot's word only, as the proof of `ReadModifyWrite` allows.
    """

    def claim(self, m):
        super().claim(m)
        packet = self.peek("dut.answers.admitted", admitted(CONFIG)).packet
        sums = self.peek("dut.answers.sums", VALUES_LAYOUT)
        is_of_round = (packet.job == self.number) & (packet.slot == self.slot) & (packet.round == self.round)
        came_in_time = pipeline(m, self.runs, Admission.ITEM_LATENCY + SumTable.LATENCY + 1, "ran")[-1]
        outcome = self.peek("dut.answers.outcome", OUTCOME)
        full = outcome.full & is_of_round & came_in_time
        asked = outcome.asks & (packet.type == PacketType.PARTIAL) & is_of_round & came_in_time
        with m.If(full):
            m.d.comb += Assert(self.value_at(sums) == self.whole)
        with m.If(asked):
            m.d.comb += Assert(self.value_at(sums) == self.sum)

        # That this is not said of nothing: not of two, of one again, beside another job, after one, and of a parent.
        begun_before = Signal()
        with m.If(self.serving(self.place) & ~self.runs):
            m.d.sync += begun_before.eq(1)
        m.d.comb += [
            Cover(full & (self.workers == 2)),
            Cover(full & ~outcome.to_all),
            Cover(full & self.serving(~self.place)),
            Cover(full & begun_before),
            Cover(full & self.above.any()),
            Cover(asked),
        ]
        self.address = Cat(self.slot, self.place)
        for table in ("slots", "sums"):
            m.d.comb += Assume(self.peek(f"dut.{table}.words.followed", len(self.address)) == self.address)

    def strengthen(self, m):
        # Whether the slot has last been made fresh for the job; and so when its sums have their turn.
        item = self.peek("dut.keeper.own__payload", own_item(CONFIG))
        taken = self.peek("dut.keeper.own__valid") & self.peek("dut.keeper.own__ready")
        its_slot = Signal()
        with m.If(taken & (item.kind == SlotOp.RESET) & (item.address == self.address)):
            m.d.sync += its_slot.eq(self.runs)
        is_its_own = pipeline(m, its_slot, ReadModifyWrite.LATENCY + 2, "its_slot")[-1]

        # The slot then: a cycle later.
        word = self.peek("dut.slots.words.word", slot_table._WORD)
        known: Any = Signal(slot_table._WORD)
        m.d.sync += known.eq(word)
        state = known.state
        shards = [state.aggregated[shard] for shard in range(WORKERS + 1)]
        has_values = state.aggregated.any()
        of_workers = list(zip(shards, self.values, strict=True))[:WORKERS]
        so_far = sum((Mux(here, value, 0) for here, value in of_workers), Const(0, 32))
        is_whole = self.above.any() & state.aggregated.bit_select(self.workers, 1)
        with m.If(is_its_own):
            m.d.comb += [
                Assert(state.aggregated & ~shard_mask(self.shards) == 0),
                Assert(Mux(known.fresh, ~has_values & known.partials_left.all(), has_values)),
                Assert(~has_values | (known.partials_left + sum(shards) == self.shards)),
                Assert(~is_whole | (known.partials_left == 0)),
            ]
            with m.If(has_values & (state.round == self.round)):
                kept = self.value_at(self.peek("dut.sums.words.word", VALUES_LAYOUT))
                m.d.comb += Assert(kept == Mux(is_whole, self.values[self.workers], so_far[:32]))

        # A job is served when its workers are noted, and its slots have been made fresh.
        clearing = self.peek("dut.keeper.clearing") & (self.peek("dut.keeper.place", CONFIG.job_bits) == self.place)
        served = Signal()
        m.d.comb += served.eq(self.serving(self.place))
        with m.If(served | (clearing & (self.peek("dut.keeper.slot", CONFIG.slot_bits) > self.slot))):
            m.d.comb += Assert(its_slot == self.runs)
        m.d.comb += Assert(~self.runs | (self.all_noted.all() & (served | clearing)))
        m.d.comb += Assert(~(served & clearing))
        for shard, member in enumerate(self.members):
            kept = (
                self.peek(f"dut.admission.members[{place * MAX_WORKERS + shard}]", len(member))
                for place in range(CONFIG.jobs)
            )
            with m.If(self.noted[shard]):
                m.d.comb += Assert(Array(kept)[self.place] == member)


@pytest.fixture
def one_word(monkeypatch):
    monkeypatch.setattr(slot_table, "ReadModifyWrite", OneWord)


@pytest.mark.usefixtures("any_host", "one_word")
@pytest.mark.slow
def test_words_of_a_slot_keep_rounds_apart(tmp_path):
    prove(Kept(), tmp_path, k=9)


@pytest.mark.usefixtures("any_host", "one_word")
@pytest.mark.slow
def test_sums_come_to_everything_that_is_claimed(tmp_path):
    reach(Kept(), tmp_path, cycles=CYCLES)


WRONG = [
    pytest.param(SlotTable, "last.round == known.round", "1", id="of another round"),
    pytest.param(SlotTable, "joins.eq(known_partial & ~had_partial)", "joins.eq(known_partial)", id="twice"),
    pytest.param(SlotTable, "is_full & same_round & one_left", "is_full & same_round", id="of the parent too soon"),
    pytest.param(SlotTable, "is_full & same_round & one_left", "is_full & one_left", id="of the parent before"),
    pytest.param(SlotTable, "resets.eq(last.kind == SlotOp.RESET)", "resets.eq(0)", id="of the job before"),
    pytest.param(
        Admission, "Cat(packet.slot[: config.slot_bits], place)", "packet.slot[: config.slot_bits]", id="of another job"
    ),
]


@pytest.mark.parametrize(("part", "right", "wrong"), WRONG)
def test_a_fault_that_takes_long_to_find_can_be_made(part, right, wrong):
    mutant(part, right, wrong)


@pytest.mark.slow
@pytest.mark.usefixtures("any_host", "one_word")
@pytest.mark.parametrize(("part", "right", "wrong"), WRONG)
def test_a_wrong_sum_is_found(tmp_path, monkeypatch, part, right, wrong):
    others = {"ReadModifyWrite": OneWord} if part is SlotTable else {}
    monkeypatch.setattr(aggregator, part.__name__, mutant(part, right, wrong, **others))
    finds(tmp_path, Kept(), CYCLES)


DEPTH = 4
"""Of the queue of answers: one that finds no room is lost as with the long one, only sooner."""


@pytest.fixture(autouse=True)
def short_queue(monkeypatch):
    monkeypatch.setattr(aggregator, "_DEPTH", DEPTH)


class Answered(Proof):
    """Answers wait; the queue gets no more than it has room for, as its own proof assumes, and is all but full first.

    Room is known a cycle late, and so for one answer less: with another that leaves meanwhile, two.
    """

    def __init__(self, component=Answers):
        super().__init__(component(CONFIG))

    def claim(self, m):
        dut = self.dut
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
        pytest.param("enters = comes & has_room", "enters = comes", id="has no room"),
        pytest.param("room - enters + (queue.o.valid & queue.o.ready)", "room - enters", id="leaves no room"),
    ],
)
def test_an_answer_that_is_lost_is_found(tmp_path, right, wrong):
    broken = mutant(Answers, right, wrong, _DEPTH=DEPTH)
    finds(tmp_path, Answered(broken), 10)
