"""Forward pass, backward pass and model: they do as `test_chaining_proved` takes for granted.

Images have directories that list any chunks, or none. Chunks that are not listed are passed over where they must be.
"""

from functools import partial
from typing import Any

import pytest
from amaranth.asserts import AnyConst
from amaranth.hdl import Array, Assert, Assume, Cat, Const, Mux, Signal, Value
from amaranth.lib import data
from support.chaining import CONFIG, ForwardOrder
from support.proof import Proof, finds, free, mutant, needs_solver, prove, stand_in

from p4sgd.hw.datapath.backward import Gradient
from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.datapath.lines import LinePosition, kept_layout, place_layout
from p4sgd.hw.datapath.model import Model, Update
from p4sgd.hw.primitives import pipeline
from p4sgd.hw.spec.fixed import MAX_PRECISION, WEIGHT
from p4sgd.hw.spec.image import DESCRIPTOR_BITS, DESCRIPTOR_FIELDS
from p4sgd.hw.spec.timing import forward_stages

pytestmark = needs_solver

DESCRIPTOR = data.StructLayout(DESCRIPTOR_FIELDS)
FORWARD = "class DotProduct(Component):"
MODEL = "class Model(Component):"


class Forward(Proof):
    """The order that `Chaining` takes for granted of a forward pass, with directories of any chunks or without."""

    def __init__(self, forward=DotProduct):
        super().__init__(forward(CONFIG))

    def claim(self, m):
        dut, chunks = self.dut, self.dut.chunks
        free(m, dut, stable=("precision", "signed", "chunks", "unit_chunks", "micro_batches", "directory"))
        self.started = Signal()
        with m.If(dut.start):
            m.d.sync += self.started.eq(1)
        m.d.comb += [
            Assume((chunks >= 1) & (chunks <= CONFIG.chunks) & (dut.micro_batches >= 1)),
            Assume((dut.precision >= 1) & (dut.precision <= MAX_PRECISION)),
            Assume(~dut.lines.valid | self.started),
            Assume(~dut.start | pipeline(m, Const(1), 2, "settled")[-1]),
        ]
        self.order = ForwardOrder(m, dut, dut.start, chunks, Assert)
        self.number = Signal(16)  # of the micro-batch in its mini-batch
        last = self.number == dut.micro_batches - 1
        with m.If(dut.start | (self.order.ends & last)):
            m.d.sync += self.number.eq(0)
        with m.Elif(self.order.ends):
            m.d.sync += self.number.eq(self.number + 1)
        m.d.comb += Assert(~dut.took | (dut.last_micro_batch == last))
        came = pipeline(m, self.order.ends, DotProduct.latency(CONFIG), "came")[-1]
        m.d.comb += [Assert(dut.dots.valid == came), Assert(dut.took == (dut.kept.valid & dut.kept.ready))]

        # A directory lists chunks in ascending order, always the last one of a micro-batch.
        self.listed = listed = Signal(range(CONFIG.chunks + 1))  # the next one listed has at least this number
        follows: Any = listed
        ended: Any = 0
        for word in range(CONFIG.line_bits // DESCRIPTOR_BITS):
            entry = data.View(DESCRIPTOR, dut.lines.payload.word_select(word, DESCRIPTOR_BITS))
            right = (entry.chunk >= follows) & (entry.chunk < chunks) & (entry.last == (entry.chunk == chunks - 1))
            m.d.comb += Assume(~dut.took_directory | ended | right)
            follows, ended = Mux(ended, follows, Mux(entry.last, 0, entry.chunk + 1)), ended | entry.last
        with m.If(dut.start):
            m.d.sync += listed.eq(0)
        with m.Elif(dut.took_directory):
            m.d.sync += listed.eq(follows)

    def strengthen(self, m):
        """Behind the chunk whose lines come are those that its directory lists."""
        dut, order, chunks, listed = self.dut, self.order, self.dut.chunks, self.listed
        bits = CONFIG.chunk_bits
        chunk, expected = dut.place.chunk, self.peek("dut.position.absent_chunks.expected", bits)
        left, absent = self.peek("dut.position.absent_chunks.left", bits), self.peek("dut.position.absent")
        valid, known, more = (self.peek(f"dut.position.{name}") for name in ("valid", "known", "more"))
        following = data.View(DESCRIPTOR, self.peek("dut.position.following", DESCRIPTOR_BITS))
        directory, number = self.peek("dut.position.taken", CONFIG.line_bits), self.peek("dut.position.number")
        ahead = data.View(DESCRIPTOR, directory[DESCRIPTOR_BITS:])
        begins = self.peek("dut.position.begins")

        def right(entry, least):
            return (entry.chunk >= least) & (entry.chunk < chunks) & (entry.last == (entry.chunk == chunks - 1))

        def after(entry):
            return Mux(entry.last, 0, entry.chunk + 1)

        m.d.comb += [
            Assert(~self.started | (dut.first_micro_batch == order.first)),
            Assert(self.started | ~(valid | known | order.inside)),
            Assert(order.first | (order.spent == chunks)),
            Assert(~self.started | (self.peek("dut.position.left", 16) + self.number + 1 == dut.micro_batches)),
            Assert(~self.started | (dut.last_micro_batch == (self.number == dut.micro_batches - 1))),
            Assert(listed < chunks),
            Assert(expected < chunks),
        ]
        with m.If(valid):
            opens = dut.place.first_plane
            m.d.comb += [
                Assert((chunk < chunks) & (dut.place.last_chunk == (chunk == chunks - 1))),
                Assert(expected == Mux(dut.place.last_chunk, 0, chunk + 1)),
                Assert((opens & dut.place.first_chunk) != order.inside),
                Assert(~order.first | (order.spent + Mux(absent, left, 0) == chunk + ~opens)),
                Assert(begins == dut.place.last_chunk),
                Assert(~absent | ~order.first | (opens & (left != 0))),
            ]
        with m.Else():
            m.d.comb += [
                Assert(~order.first | (order.spent == expected)),
                Assert(~self.started | (begins != order.inside)),
            ]
        with m.If(known):
            m.d.comb += Assert(right(following, expected))
            with m.If(~dut.directory):
                m.d.comb += Assert(following.chunk == expected)
            with m.Elif(more):
                m.d.comb += [
                    Assert(number & ~following.last & right(ahead, following.chunk + 1)),
                    Assert(listed == after(ahead)),
                ]
            with m.Else():
                m.d.comb += Assert(listed == after(following))
        with m.Else():
            m.d.comb += [Assert(listed == expected), Assert(~more)]


class Backward(Proof):
    """What `Chaining` takes for granted of a backward pass: the last one of a mini-batch ends every chunk, in order."""

    def __init__(self, backward=Gradient):
        super().__init__(backward(CONFIG, spacing=Model.UPDATE_SPACING))

    def claim(self, m):
        dut, chunks = self.dut, AnyConst(3)
        free(m, dut, stable=("signed", "micro_batches"))
        self.chunks = Signal(3)
        self.started = Signal()
        with m.If(dut.start):
            m.d.sync += self.started.eq(1)
        m.d.comb += [
            self.chunks.eq(chunks),
            Assume((chunks >= 1) & (chunks <= CONFIG.chunks) & (dut.micro_batches >= 1)),
            Assume(~dut.start | (pipeline(m, Const(1), 2, "settled")[-1] & ~self.started)),
            Assume(self.started | ~(dut.lines.valid | dut.deltas.valid)),
        ]

        # Lines come in the order of a forward pass.
        arriving, came = dut.lines.payload.place, dut.lines.valid & dut.lines.ready
        self.inside, self.within_chunk = Signal(), Signal()
        self.listed = listed = Signal(range(CONFIG.chunks))  # the next chunk has at least this number, or this
        last = arriving.chunk == chunks - 1
        with m.If(dut.lines.valid):
            m.d.comb += [
                Assume((arriving.chunk < chunks) & (arriving.last_chunk == last)),
                Assume((arriving.first_plane != self.within_chunk) & (arriving.first_chunk == ~self.inside)),
                Assume(Mux(self.within_chunk, arriving.chunk == listed, arriving.chunk >= listed)),
            ]
        with m.If(came):
            m.d.sync += [
                self.within_chunk.eq(~arriving.last_plane),
                self.inside.eq(Mux(arriving.last_plane, ~last, self.inside)),
                listed.eq(Mux(arriving.last_plane, Mux(last, 0, arriving.chunk + 1), arriving.chunk)),
            ]

        # No deltas are lost, and each micro-batch begins with its own.
        self.waiting = Signal(range(CONFIG.in_flight + 1))
        m.d.sync += self.waiting.eq(self.waiting + dut.deltas.valid - dut.began)
        m.d.comb += [
            Assume(~dut.deltas.valid | (self.waiting < CONFIG.in_flight)),
            Assert(~dut.began | (self.waiting != 0)),
            Assert(self.peek("dut.waiting.level", 2) == self.waiting),
        ]

        # Halves of the tables that are filled, or being read. The other is filled while no line reads it.
        self.ends, self.filled = dut.took & dut.last_line, Signal(2)
        nearly, self.subset = self.peek("dut.subset_sums.nearly"), self.peek("dut.subset_sums.subset", 4)
        m.d.sync += self.filled.eq(self.filled + nearly - self.ends)
        writes = self.peek("dut.subset_sums.valid") & (self.subset != 0)
        reads = pipeline(m, dut.took, 1, "reads")[-1]
        self.fills_half = self.peek("dut.fills_half")
        m.d.comb += [
            Assert(dut.busy == (self.filled != 0)),
            Assert(~dut.took | dut.busy),
            Assert(~dut.began | pipeline(m, nearly, 1, "nearly")[-1]),
            Assert(~(writes & reads) | (self.fills_half != self.peek("dut.half0"))),
        ]

        # In the last micro-batch chunks complete one by one, and their gradients leave.
        self.number, self.completed = Signal(16), Signal(range(CONFIG.chunks + 1))
        place = self.place = self.peek("dut.here", kept_layout(CONFIG).size)[CONFIG.line_bits :]
        self.place = data.View(place_layout(CONFIG), place)
        passed_over = self.peek("dut.absent_chunks.pass_over")
        final = self.final = self.number == dut.micro_batches - 1
        completes = ((dut.took & self.place.last_plane) | passed_over) & final
        m.d.comb += [
            Assert(~passed_over | (final & dut.busy & (self.completed < chunks - 1))),
            Assert(~(dut.took & final) | (self.place.chunk == self.completed)),
            Assert(~(self.ends & final) | (self.completed == chunks - 1)),
        ]
        with m.If(self.ends):
            m.d.sync += [self.number.eq(Mux(final, 0, self.number + 1)), self.completed.eq(0)]
        with m.Elif(completes):
            m.d.sync += self.completed.eq(self.completed + 1)
        entry = Cat(completes, self.completed[: CONFIG.chunk_bits], self.ends)
        leaving = pipeline(m, entry, Gradient.LATENCY, "leaving")[-1]
        gradients = dut.gradients
        m.d.comb += Assert((gradients.valid & gradients.final) == leaving[0])
        with m.If(leaving[0]):
            m.d.comb += [Assert(gradients.chunk == leaving[1:-1]), Assert(gradients.last == leaving[-1])]

    def strengthen(self, m):
        dut, place, chunks = self.dut, self.place, self.chunks
        bits = CONFIG.chunk_bits
        valid, absent = self.peek("dut.valid"), self.peek("dut.absent_chunks.absent")
        expected, left = (self.peek(f"dut.absent_chunks.{name}", bits) for name in ("expected", "left"))
        micro_batches_left, index = self.peek("dut.left", 16), self.peek("dut.subset_sums.index", 4)
        completed = self.peek("dut.completed", bits + 1)[:bits]
        after = Mux(self.listed == chunks - 1, 0, self.listed + 1)
        m.d.comb += [
            Assert(~self.started | (self.peek("dut.final") == self.final)),
            Assert(~self.started | (micro_batches_left + self.number + 1 == dut.micro_batches)),
            Assert(self.started | ~(valid | dut.busy | (self.waiting != 0) | self.inside | self.within_chunk)),
            Assert(self.started | ((self.number == 0) & (expected == 0) & (index == 0))),
            Assert(self.peek("dut.filled", 2) == Cat(self.filled != 0, self.filled == 2)),
            Assert((self.filled < 2) | ((self.filled == 2) & ((index == 0) | dut.began))),
            Assert((index == 0) | (self.peek("dut.subset_sums.valid") & (self.waiting != 0))),
            Assert(self.subset == index ^ index >> 1),
            Assert(self.fills_half ^ self.peek("dut.reads_half") == self.filled[0] ^ dut.began),
            Assert(~self.final | (completed == self.completed[:bits])),
            Assert(self.final | (self.completed == 0)),
            Assert(self.listed < chunks),
            Assert(
                Mux(self.within_chunk, expected == after, (self.listed == expected) & (self.inside == (expected != 0)))
            ),
        ]
        with m.If(valid):
            m.d.comb += [
                Assert((place.chunk < chunks) & (place.last_chunk == (place.chunk == chunks - 1))),
                Assert(self.within_chunk == ~place.last_plane),
                Assert(~self.within_chunk | (self.listed == place.chunk)),
                Assert(expected == Mux(place.last_chunk, 0, place.chunk + 1)),
            ]
            with m.If(self.final):
                m.d.comb += [
                    Assert(~absent | (place.first_plane & (left != 0))),
                    Assert(self.completed + Mux(absent, left, 0) == place.chunk),
                ]
        with m.Elif(self.final):
            m.d.comb += [
                Assert(self.completed == Mux(self.within_chunk, self.listed, expected)),
                Assert(~self.within_chunk | ~absent),
            ]


class Weights(Proof):
    """A chunk that is final is read as it was written last: in any word, one lane of the first or of the last stage.

    The arithmetic of the update is a stand-in. No chunk is written again while it is read, as `Model` says why.
    """

    def __init__(self, lane=0, right=MODEL, wrong=MODEL):
        self.lane = lane
        self.update = Update(CONFIG.lanes // 2)
        super().__init__(mutant(Model, right, wrong, Update=stand_in(self.update))(CONFIG))

    def claim(self, m):
        dut, lanes, bits = self.dut, CONFIG.lanes // 2, CONFIG.chunk_bits
        stages = forward_stages(CONFIG.lanes)
        self.stage = stage = self.lane * stages // CONFIG.lanes
        free(m, dut)
        word = self.word = Signal(bits)
        gradients = dut.gradients
        written = pipeline(m, Cat(gradients.valid & gradients.final, gradients.chunk, gradients.last), 11, "written")
        updates, (*chunk, last) = written[Model.WRITE_LATENCY][0], written[Model.WRITE_LATENCY][1:]
        m.d.comb += [
            word.eq(AnyConst(bits)),
            Assume(~(gradients.valid & pipeline(m, gradients.valid, 1, "before")[-1])),
            Assume(~dut.load.valid),
            Assert(dut.updated == updates),
            Assert(~updates | (dut.updated_last == last)),
        ]
        here = Signal()
        m.d.comb += here.eq(updates & ((Cat(chunk) | dut.write_half << bits - 1) == word))
        self.writes = pipeline(m, here, 1, "writes")[-1] if self.lane >= lanes else here
        self.value = Signal(WEIGHT.width)
        with m.If(self.writes):
            m.d.sync += self.value.eq(Value.cast(self.update.updated[self.lane % lanes]))
        reads = pipeline(m, dut.read.enable & (dut.read.address == word), stages + 2, "reads")
        m.d.comb += Assume(~(here & Cat(reads[: stages + 1]).any()))
        expected = pipeline(m, self.value, stages + 1, "expected")
        with m.If(reads[2 + stage]):  # two cycles from its address to its word, and one after the chunk was final
            m.d.comb += Assert(dut.read.data[self.lane].as_unsigned() == expected[stage + 1])

    def strengthen(self, m):
        lanes = CONFIG.lanes // forward_stages(CONFIG.lanes)
        first = self.lane % lanes * WEIGHT.width
        words = Array(
            self.peek(f"dut.w{self.stage}[{word}]", lanes * WEIGHT.width)[first : first + WEIGHT.width]
            for word in range(CONFIG.chunks)
        )
        m.d.comb += Assert(words[self.word] == self.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("proof", "k"),
    [(Forward, 12), (Backward, Gradient.LATENCY + 8), (Weights, 14), (partial(Weights, CONFIG.lanes - 1), 14)],
    ids=["forward", "backward", "low", "high"],
)
def test_parts_of_an_engine_do_as_is_taken_for_granted(tmp_path, proof, k):
    prove(proof(), tmp_path, k=k)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("m.d.sync += [left.eq(left - 1), self.absent.eq(left != 1)]", "m.d.sync += self.absent.eq(0)"),
        ("left.eq(self.chunk - expected)", "left.eq(self.chunk - expected + 1)"),
        ("expected.eq(Mux(self.last, 0, self.chunk + 1))", "expected.eq(self.chunk + 1)"),
        ("known & (~self.valid | ends_chunk)", "known"),
        ("following.chunk == second_last", "following.chunk == self.chunks"),
        ("m.d.sync += [left.eq(left - 1), last.eq(left == 1)]", "m.d.sync += [left.eq(left - 1), last.eq(left == 0)]"),
    ],
)
@pytest.mark.slow
def test_a_broken_order_of_lines_is_found(tmp_path, right, wrong):
    position = mutant(LinePosition, right, wrong)
    finds(tmp_path, Forward(mutant(DotProduct, FORWARD, FORWARD, LinePosition=position)), 16)


@pytest.mark.parametrize(
    ("proof", "part", "right", "wrong"),
    [
        (Forward, DotProduct, "position.absent & position.first_micro_batch", "position.absent"),
        (Forward, DotProduct, "position.valid & absent & self.permit_chunk", "position.valid & absent"),
        (Forward, DotProduct, "(self.permit_chunk & (~place", "(1 & (~place"),
        (Forward, DotProduct, "self.took.eq(self.lines.valid & self.kept.ready & ", "self.took.eq(self.lines.valid & "),
        (Backward, Gradient, "passes.eq(absent.absent & final)", "passes.eq(absent.absent)"),
        (Backward, Gradient, "passes.eq(absent.absent & final)", "passes.eq(0)"),
        (Backward, Gradient, "chunk = Mux(passes, completed.chunk, place.chunk)", "chunk = place.chunk"),
        (Backward, Gradient, "absent.load.eq(load & arriving.first_plane)", "absent.load.eq(load)"),
        (Backward, Gradient, "waiting.r_en.eq(subset_sums.last)", "waiting.r_en.eq(1)"),
        (Backward, Gradient, " & ~filled[1])", ")"),
        (Backward, Gradient, "subset_sums.nearly & ~micro_batch_done", "subset_sums.nearly"),
        (
            Backward,
            Gradient,
            "entry.last_chunk.eq(place.last_chunk & ~passes)",
            "entry.last_chunk.eq(place.last_chunk)",
        ),
    ],
)
@pytest.mark.slow
def test_a_broken_pass_is_found(tmp_path, proof, part, right, wrong):
    finds(tmp_path, proof(mutant(part, right, wrong)), 52)


@pytest.mark.parametrize(
    ("lane", "right", "wrong"),
    [
        (0, "(valid[-1] & final) | loaded", "valid[-1] | loaded"),
        (0, "valid[-1] & ~leaving.higher", "valid[-1] & leaving.higher"),
        (CONFIG.lanes - 1, "Mux(leaving.higher, lower_version, self.write_half)", "self.write_half"),
        (CONFIG.lanes - 1, "port.addr.eq(read_address)", "port.addr.eq(self.read.address)"),
    ],
)
@pytest.mark.slow
def test_a_broken_model_is_found(tmp_path, lane, right, wrong):
    finds(tmp_path, Weights(lane, right, wrong), 20)
