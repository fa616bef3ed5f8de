"""Chaining: a forward pass reads every chunk in the version that it must, and waits for nothing else.

Mini-batch k of a run reads version k of the weights, with staleness k − 1. The engine is the real one, with its
`Scoreboard` and its counts; its passes, model and memory ports may do anything that `Chaining.passes` allows, in any
cycle, so latencies may be any. Versions are looked at of any one chunk.
"""

import pytest
from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Array, Assert, Assume, Cat, ClockDomain, Cover, Mux, Signal, Value
from support.chaining import CONFIG, ForwardOrder
from support.proof import Proof, finds, free, mutant, needs_solver, prove, reach, stand_in

from p4sgd.hw.datapath.backward import Gradient
from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.datapath.lines import LineFIFO
from p4sgd.hw.datapath.model import Model, ModelLoader, ModelStorer
from p4sgd.hw.primitives import pipeline
from p4sgd.hw.spec.timing import forward_stages
from p4sgd.hw.worker.engine import Engine, lines_reader

pytestmark = needs_solver

LAST_STAGE = forward_stages(CONFIG.lanes) - 1  # cycles after a line in which the last of its weights are read
VERSION_BITS = 3  # more than two versions are never in use
IDLE, TRAIN, STORE = 0, 3, 4  # states of the engine
RIGHT = "class Engine(Component):"


class Chaining(Proof):
    """An engine through any number of runs of the same settings, none aborted: a reset follows an abort."""

    def __init__(self, right=RIGHT, wrong=RIGHT):
        self.forward, self.backward, self.model = DotProduct(CONFIG), Gradient(CONFIG, spacing=3), Model(CONFIG)
        self.reader, self.storer = lines_reader(CONFIG), ModelStorer(CONFIG)
        parts = (self.forward, self.backward, self.model, self.storer, LineFIFO(CONFIG), ModelLoader(CONFIG))
        others = {type(part).__name__: stand_in(part) for part in parts} | {"lines_reader": lambda _: self.reader}
        stand_in(self.reader)
        super().__init__(mutant(Engine, right, wrong, **others)(CONFIG))
        self.clock = ClockDomain("sync")

    def claim(self, m):
        dut = self.dut
        free(m, dut, stable=("settings",))
        m.d.comb += self.clock.rst.eq(0)
        chunks, stale = dut.settings.chunks, dut.settings.run_stale
        m.d.comb += Assume((chunks >= 1) & ((chunks << stale) <= CONFIG.chunks))
        self.host(m)
        self.passes(m, chunks)

        # The version of any one chunk in each half of the model memory, as the versions so far are counted.
        self.looked_at = looked_at = Signal(CONFIG.chunk_bits)
        m.d.comb += [looked_at.eq(AnyConst(len(looked_at))), Assume(looked_at < chunks)]
        self.versions = versions = Array(Signal(VERSION_BITS, name=f"version{half}") for half in range(2))
        with m.If(self.model.updated & (self.earned == looked_at)):
            m.d.sync += versions[self.model.write_half].eq(self.complete + 1)
        with m.If(self.peek("dut.chaining.reload")):
            m.d.sync += versions[0].eq(self.complete)
        read = self.model.read
        top = read.address[-1] & stale
        right = (self.complete + self.ahead - (stale & ~self.first_mini_batch))[:VERSION_BITS]
        takes = self.forward.took & ((read.address ^ (top << CONFIG.chunk_bits - 1)) == looked_at)
        m.d.comb += Assert(~takes | read.enable)
        for reads in pipeline(m, Cat(takes, top, right), LAST_STAGE, "reads"):  # each stage, a cycle after another
            m.d.comb += Assert(~reads[0] | (versions[reads[1]] == reads[2:]))
        with m.If(self.storer.weights.enable):  # from `w_next`, which has all updates so far
            m.d.comb += Assert((self.ahead == 0) & (self.earned == 0))
        self.claim_permits(m, chunks, stale)

    def host(self, m):
        """One command at a time, while the engine is idle, which takes some cycles to fall."""
        commands = self.dut.commands
        any_command = Value.cast(commands).any()
        busy = ~self.dut.state.idle | Cat(pipeline(m, any_command, 4, "command")[1:]).any()
        pulses = [commands[name] for name in ("load", "zero", "train", "store")]
        m.d.comb += [Assume(sum(pulses) <= ~busy), Assume(~commands.abort)]

    def passes(self, m, chunks):
        """What is taken for granted of the engine's parts, and of what brings deltas: order, but no time.

        Micro-batches come in order, so that the backward pass of the last one of a mini-batch begins after its forward
        pass has ended and, as it needs the dot products, all stages have read their weights: of these, ``complete``
        mini-batches have all their updates, and ``pending`` lack some.
        """
        dut, forward, backward, model = self.dut, self.forward, self.backward, self.model
        self.start, self.state = self.peek("dut.chaining.start"), self.peek("dut.fsm_state", 3)
        self.trains = self.state == TRAIN
        order = self.order = ForwardOrder(m, forward, self.start, chunks, Assume)
        moves = forward.took | forward.passed_over
        # The lines of a run are those of whole mini-batches. Its reader is busy from its start to the last one.
        within = order.inside | ~order.first | (order.spent != 0)
        started = Signal()
        m.d.sync += started.eq(self.start)
        m.d.comb += [
            Assume(~(moves | within | started) | self.reader.busy | ~self.trains),
            Assume(~moves | self.trains),
            Assume(~self.storer.weights.enable | (self.state == STORE)),
        ]

        # Micro-batches between forward and backward pass: with dot products, and deltas, to come, and waiting.
        limit = range(CONFIG.in_flight + 2)
        self.dots, self.deltas, self.waiting = (Signal(limit, name=name) for name in ("dots", "deltas", "waiting"))
        self.came = Signal()
        dots, came, began = forward.dots.valid, dut.deltas.valid, backward.began
        m.d.sync += [
            self.dots.eq(self.dots + order.ends - dots),
            self.deltas.eq(self.deltas + dots - came),
            self.waiting.eq(self.waiting + self.came - began),
            self.came.eq(came),
        ]
        m.d.comb += [
            Assume(~dots | (self.dots != 0)),
            Assume(~came | (self.deltas != 0)),
            Assume(~began | (self.waiting != 0)),
            Assert(self.dots + self.deltas + self.came + self.waiting + order.inside <= CONFIG.in_flight),
        ]

        # Mini-batches: those whose forward pass has ended, of those the ones whose last backward pass has begun.
        began_last = AnySeq(1)
        self.complete, self.earned = Signal(VERSION_BITS), Signal(range(CONFIG.chunks))
        self.pending, self.ahead, self.first_mini_batch = Signal(2), Signal(2), Signal()
        last = self.earned == chunks - 1
        completes = model.updated & last
        unread = sum(pipeline(m, order.ends_mini_batch, LAST_STAGE, "ended")[1:])  # ended, but some stage still reads
        m.d.comb += [
            Assume(~began_last | (began & (self.ahead > self.pending + unread))),
            Assume(~model.updated | (self.pending != 0)),
            Assume(model.updated_last == last),
        ]
        m.d.sync += [
            self.pending.eq(self.pending + began_last - completes),
            self.ahead.eq(self.ahead + order.ends_mini_batch - completes),
            self.complete.eq(self.complete + completes),
        ]
        with m.If(model.updated):
            m.d.sync += self.earned.eq(Mux(last, 0, self.earned + 1))
        with m.If(self.start | order.ends_mini_batch):
            m.d.sync += self.first_mini_batch.eq(self.start)

    def claim_permits(self, m, chunks, stale):
        """A chunk is permitted as soon as its weights are final, a micro-batch as soon as there is room."""
        behind = self.order.spent + self.ahead * chunks
        final = (chunks << stale) + self.earned
        in_flight = self.dots + self.deltas + self.came + self.waiting + self.order.inside
        m.d.comb += Assert(behind <= final)
        with m.If(self.trains):
            first = self.forward.first_micro_batch
            m.d.comb += Assert(self.forward.permit_chunk == (~first | (behind < final)))
        m.d.comb += Assert(self.forward.permit_micro_batch == (in_flight < CONFIG.in_flight))
        # A line with weights waits for sums only while no deltas have come for the backward pass.
        lacks_weights = self.forward.place.first_plane & ~self.forward.permit_chunk
        m.d.comb += Assert(~self.peek("dut.awaiting") | lacks_weights | (self.waiting == 0))
        with m.If(self.dut.state.idle):
            m.d.comb += Assert((self.ahead == 0) & (self.order.spent == 0))

    def strengthen(self, m):
        """Credits are what is final and not yet spent; the halves hold the versions in use."""
        chunks, stale = self.dut.settings.chunks, self.dut.settings.run_stale
        order, ahead, complete, earned = self.order, self.ahead, self.complete, self.earned
        credits = self.peek("dut.chaining.credits", CONFIG.chunk_bits + 2)
        read, write, latest = (self.peek(f"dut.chaining.{name}_half") for name in ("read", "write", "latest"))
        first = self.first_mini_batch
        some = Signal()  # a mini-batch of the run is complete
        with m.If(self.start):
            m.d.sync += some.eq(0)
        with m.Elif(self.model.updated & self.model.updated_last):
            m.d.sync += some.eq(1)
        new = earned > self.looked_at
        m.d.comb += [
            Assert(earned < chunks),
            Assert((order.spent <= chunks) & (order.first | (order.spent == chunks))),
            Assert((self.pending <= ahead) & (ahead <= 2) & ((self.pending != 0) | (earned == 0))),
            Assert(~(self.start | self.peek("dut.chaining.reload")) | (self.state == IDLE)),
            Assert(self.versions[latest] == (complete + (new & ~stale))[:VERSION_BITS]),
            Assert(stale | ~(read | write | latest)),
        ]
        with m.If(self.trains):
            m.d.comb += [
                Assert(credits + order.spent + ahead * chunks == (chunks << stale) + earned),
                Assert(self.peek("dut.chaining.credit") == (credits != 0)),
                Assert(self.peek("dut.chaining.first_mini_batch") == first),
                Assert(~first | (ahead == 0)),
                Assert(some | first | (ahead != 0)),
            ]
            with m.If(stale):
                m.d.comb += [
                    Assert(write != latest),
                    Assert(read == Mux(first | (ahead == 1), latest, write)),
                    Assert(~new | (self.versions[write] == (complete + 1)[:VERSION_BITS])),
                    Assert(new | ~some | (self.versions[write] == (complete - 1)[:VERSION_BITS])),
                ]
        with m.Else():
            m.d.comb += Assert((ahead == 0) & (order.spent == 0) & ~order.inside)
        in_flight = self.dots + self.deltas + self.came + self.waiting + order.inside
        m.d.comb += [
            Assert(self.peek("dut.in_flight", 2) == in_flight),
            Assert(self.peek("dut.awaited", 2) == in_flight - self.waiting),
        ]


class Reached(Chaining):
    """Runs that come to what the claims are about."""

    def claim(self, m):
        super().claim(m)
        reads = self.forward.took & (self.forward.place.chunk == self.looked_at)
        stale = self.dut.settings.run_stale
        m.d.comb += [
            Cover(reads & stale & (self.ahead == 2) & (self.pending == 1)),
            Cover(reads & stale & ~self.first_mini_batch & (self.ahead == 0) & (self.complete == 1)),
            Cover(reads & ~stale & (self.ahead == 1) & (self.complete == 1)),
            Cover(self.forward.passed_over & self.model.updated),
            Cover(self.trains & ~self.forward.permit_micro_batch),
            Cover(self.storer.weights.enable & (self.complete == 1)),
        ]


def test_every_chunk_is_read_in_its_version(tmp_path):
    prove(Chaining(), tmp_path, k=6)


@pytest.mark.slow
def test_runs_come_to_all_that(tmp_path):
    reach(Reached(), tmp_path, cycles=26)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("credits.eq(all_credits), self", "credits.eq(all_credits + 1), self"),
        ("credits.eq(all_credits), self", "credits.eq(all_credits - 1), self"),
        ("self.credit.eq(credits != 1)", "self.credit.eq(1)"),
        ("credits.eq(credits + 1), self.credit.eq(1)", "credits.eq(credits + 1), self.credit.eq(credits != 0)"),
        ("m.Elif(self.earn & ~self.spend)", "m.Elif(self.earn)"),
        ("self.chunks << self.stale", "self.chunks"),
        ("m.If(self.stale & ~first_mini_batch)", "m.If(self.stale)"),
        ("self.write_half.eq(latest_half ^ self.stale)", "self.write_half.eq(latest_half)"),
        ("self.read_half.eq(latest_half)", "self.read_half.eq(self.write_half)"),
        ("m.If(self.earn & self.earned_last)", "m.If(self.earned_last)"),
        (" | forward.passed_over)", ")"),
        ("begins = takes_chunk & forward.place.first_chunk", "begins = takes_chunk & forward.place.last_chunk"),
        ("in_flight != config.in_flight", "in_flight <= config.in_flight"),
        ("(awaited == in_flight) & ~backward.busy", "~backward.busy"),
        ("scoreboard.read_all.eq(ends & forward.last_micro_batch)", "scoreboard.read_all.eq(ends)"),
        ("m.Elif(~reading & scoreboard.settled)", "m.Elif(~reading)"),
        ("m.Elif(~reading & scoreboard.settled)", "m.Elif(scoreboard.settled)"),
    ],
)
@pytest.mark.slow
def test_broken_chaining_is_found(tmp_path, right, wrong):
    finds(tmp_path, Chaining(right, wrong), 30)
