"""Memory masters: requests and data wait as they are, bursts stay within 4 KiB, nothing overflows."""

import pytest
from amaranth.hdl import Assert, Assume, Mux, Signal, Value
from support.proof import Proof, finds, free, holds, mutant, needs_solver, prove

from p4sgd.hw.bus.axi import ADDRESS_CARRY_BITS, BOUNDARY, BURST_INCR
from p4sgd.hw.datapath.model import ModelLoader, ModelStorer
from p4sgd.hw.datapath.strided_reader import StridedReader
from p4sgd.hw.spec.config import WorkerConfig

pytestmark = needs_solver

CONFIG = WorkerConfig(lanes=8, chunks=4, line_fifo_depth=8)


def stays_in_its_page(m, request, data_bits):
    """A request is for whole beats of a burst that does not cross a boundary."""
    step = data_bits // 8
    payload = request.payload
    with m.If(request.valid):
        m.d.comb += [
            Assert(payload.burst == BURST_INCR),
            Assert(1 << payload.size == step),
            Assert(payload.addr % step == 0),
            Assert(payload.addr[:12] + (payload.len + 1) * step <= BOUNDARY),
        ]


class Reading(Proof):
    """Requests of a StridedReader: how many are under way, and the room for what they bring."""

    DATA_BITS, FIFO_BEATS, BLOCK, OUTSTANDING = 1024, 16, 8, 4
    IDLE, SHAPE, MULTIPLY, DIVIDE, PLAN, REQUEST = range(6)

    def __init__(self, reader=StridedReader):
        sizes = {"fifo_beats": self.FIFO_BEATS, "burst_limit": self.BLOCK, "outstanding": self.OUTSTANDING}
        super().__init__(reader(self.DATA_BITS, **sizes))

    def claim(self, m):
        dut = self.dut
        free(m, dut)
        with m.If(dut.start):
            m.d.comb += [
                Assume(~dut.busy),
                Assume(dut.base % BOUNDARY == 0),
                Assume((dut.burst_beats >= 1) & (dut.burst_beats <= dut.stride_beats) & (dut.stride_beats <= 8)),
                Assume(dut.bursts >= 1),
            ]
        holds(m, dut.memory.ar)
        stays_in_its_page(m, dut.memory.ar, self.DATA_BITS)

        # No beat comes that was not asked for; all that are have room.
        coming = Signal(range(2 * self.FIFO_BEATS))
        asks = dut.memory.ar.valid & dut.memory.ar.ready
        level = self.peek("dut.fifo.level", 5)
        m.d.sync += coming.eq(coming + Mux(asks, dut.memory.ar.payload.len + 1, 0) - dut.memory.r.valid)
        m.d.comb += [
            Assume(~dut.memory.r.valid | (coming != 0)),
            Assert(dut.memory.r.ready),
            Assert(coming + level <= self.FIFO_BEATS),
        ]
        self.kept = coming + level

        # No burst ends that was not asked for; no more are under way than allowed.
        self.bursts = bursts = Signal(range(2 * self.OUTSTANDING))
        ends = dut.memory.r.valid & dut.memory.r.payload.last
        m.d.sync += bursts.eq(bursts + asks - ends)
        m.d.comb += [Assume(~ends | (bursts != 0)), Assert(bursts <= self.OUTSTANDING)]

    def strengthen(self, m):
        """What the states of the reader have made so far."""
        request = self.dut.memory.ar
        widths = {"fsm_state": 3, "room": 5, "needed": 4, "beats": 4, "more_needed": 5, "enough": 1, "reads": 3}
        widths |= {"group_beats": 4, "distance": 4, "beats_left": 4, "to_next": 4, "advance": 4, "ends_group": 1}
        widths |= {"touching": 1, "single": 1, "crosses": 8, "last_beats": 4}
        state, room, needed, beats, more_needed, enough, reads, group, distance, *of_group = (
            self.peek(f"dut.{name}", bits) for name, bits in widths.items()
        )
        beats_left, to_next, advance, ends_group, touching, single, crosses, last_beats = of_group
        page_bits = 5
        offset = self.peek("dut.address", 48 - 7)[:page_bits]
        last = self.peek("dut.left", 45)[-1]
        m.d.comb += [
            Assert(room + self.kept + self.peek("dut.freed") == self.FIFO_BEATS),
            Assert(reads + self.bursts == self.OUTSTANDING),
            Assert(~self.peek("dut.may_ask") | (reads >= 1 + request.valid)),
            Assert(~request.valid | (reads >= 1)),
            Assert(state <= self.REQUEST),
            Assert(~request.valid | (state == self.REQUEST)),
            Assert(self.dut.busy | (state == self.IDLE)),
        ]
        with m.If(~self.dut.busy | ((state >= self.SHAPE) & (state < self.PLAN))):
            m.d.comb += Assert(room == self.FIFO_BEATS)
        with m.If(request.valid):
            m.d.comb += Assert(room >= beats)
        with m.If(state == self.SHAPE):
            m.d.comb += Assert(touching == (group == distance))
        with m.If((state >= self.SHAPE) & (state < self.PLAN)):
            m.d.comb += Assert(offset == 0)
        with m.If(state >= self.SHAPE):
            m.d.comb += Assert((group >= 1) & (group <= distance) & (distance <= 8))
        with m.If(state > self.SHAPE):
            m.d.comb += [
                Assert(single == (~touching & (group == 1))),
                Assert(~touching | ((group == self.BLOCK) & (distance == self.BLOCK))),
                Assert(touching | (group < distance)),
            ]
        with m.If(state >= self.PLAN):
            m.d.comb += [
                Assert(needed == Mux(single, 2, group)),
                Assert(more_needed == Mux(single, 3, 2 * group)),
                Assert(~enough | (room >= needed)),
                Assert((beats_left >= 1) & (beats_left <= group)),
                Assert(to_next + group == distance + beats_left),
                Assert((last_beats >= 1) & (last_beats <= self.BLOCK)),
                *(Assert(crosses[place] == (~touching & (place + group > 8))) for place in range(8)),
            ]
            with m.If(touching):
                m.d.comb += Assert((offset[:3] == 0) & (beats_left == group))
            with m.If(beats_left != group):
                m.d.comb += Assert(offset == 0)
        with m.If(state == self.REQUEST):
            m.d.comb += Assert(offset + beats <= 1 << page_bits)
            with m.If(ends_group):
                m.d.comb += [
                    Assert(beats == Mux(touching & last, last_beats, beats_left)),
                    Assert(advance == to_next),
                ]
            with m.Else():
                m.d.comb += [
                    Assert(~single & ~touching),
                    Assert((beats == advance) & (beats < beats_left) & (offset + beats == 1 << page_bits)),
                ]


class Read(Proof):
    """What a StridedReader hands on."""

    def __init__(self):
        super().__init__(StridedReader(8, fifo_beats=16, burst_limit=8))

    def claim(self, m):
        free(m, self.dut)
        holds(m, self.dut.data)


class Storing(Proof):
    """Bursts of a ModelStorer."""

    IDLE, READ, WRITE = range(3)

    def __init__(self, storer=ModelStorer):
        super().__init__(storer(CONFIG))

    def claim(self, m):
        beats, dut = CONFIG.weight_beats, self.dut
        free(m, dut, stable=("chunks", "base"))
        request, data, answer = dut.memory.aw, dut.memory.w, dut.memory.b
        state = self.peek("dut.fsm_state", 2)
        asked = self.asked = Signal()  # and not answered
        given = self.given = Signal(range(beats + 2))  # beats of it
        with m.If(dut.start):
            m.d.comb += Assume(state == self.IDLE)
        m.d.comb += [
            Assume(dut.base % BOUNDARY == 0),
            Assume(dut.chunks >= 1),
            Assume(~answer.valid | (asked & (given == beats))),
            Assert(answer.ready),
        ]
        holds(m, request)
        holds(m, data)
        stays_in_its_page(m, request, CONFIG.port_bits)
        with m.If(request.valid):
            m.d.comb += [Assert(~asked), Assert(request.payload.len == beats - 1)]
            with m.If(request.ready):
                m.d.sync += asked.eq(1)
        with m.If(data.valid):
            m.d.comb += [
                Assert(given < beats),
                Assert(data.payload.last == (given == beats - 1)),
                Assert(Value.cast(data.payload.strb).all()),
            ]
            with m.If(data.ready):
                m.d.sync += given.eq(given + 1)
        with m.If(answer.valid):
            m.d.sync += [asked.eq(0), given.eq(0)]

    def strengthen(self, m):
        request, data, asked, given = self.dut.memory.aw, self.dut.memory.w, self.asked, self.given
        state = self.peek("dut.fsm_state", 2)
        beat = self.peek("dut.beat", 3)
        m.d.comb += [Assert(state <= self.WRITE), Assert(beat == given + data.valid)]
        with m.If((state == self.WRITE) | (beat != 0)):
            m.d.comb += [Assert(request.valid == ~asked), Assert(state != self.IDLE)]
            m.d.comb += Assert((state == self.WRITE) | (beat == CONFIG.weight_beats // 2))
        with m.Else():
            m.d.comb += Assert(~request.valid & ~data.valid & ~asked & (given == 0))
        with m.If(state != self.IDLE):
            address = self.peek("dut.address", ADDRESS_CARRY_BITS)
            m.d.comb += Assert(address % (CONFIG.weight_beats * CONFIG.port_bytes) == 0)


class Loading(Proof):
    """Halves of chunks of a ModelLoader."""

    def __init__(self):
        super().__init__(ModelLoader(CONFIG))

    def claim(self, m):
        free(m, self.dut)
        with m.If(self.dut.halves.valid):
            m.d.comb += Assume(~self.dut.zero)
        holds(m, self.dut.halves)


@pytest.mark.parametrize(("proof", "k"), [(Reading, 2), (Read, 2), (Storing, 2), (Loading, 1)])
def test_rules_of_the_bus_are_kept(tmp_path, proof, k):
    prove(proof(), tmp_path, k=k)


@pytest.mark.parametrize(
    ("proof", "part", "right", "wrong"),
    [
        (Reading, StridedReader, "start + group_beats > _GROUP_BEATS", "start + group_beats > _GROUP_BEATS + 1"),
        (Reading, StridedReader, "Mux(requested, more_needed, needed)", "needed"),
        (Reading, StridedReader, "Mux(requested, 3, 2)", "1"),
        (Reading, StridedReader, "valid & ~self.memory.ar.ready)", "valid & ~self.memory.ar.ready & ~self.stop)"),
        (Storing, ModelStorer, "last.eq(beat == beats - 1)", "last.eq(beat == beats - 2)"),
    ],
    ids=["page", "room", "outstanding", "withdrawn", "last"],
)
@pytest.mark.slow
def test_a_broken_master_is_found(tmp_path, proof, part, right, wrong):
    finds(tmp_path, proof(mutant(part, right, wrong)), 24)
