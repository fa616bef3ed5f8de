"""FIFOs and register slices: whatever goes in comes out once, in order; no more is in them than there is room for."""

import pytest
from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Module, Signal, Value
from support.proof import Proof, finds, free, holds, mutant, needs_solver, prove

from p4sgd.hw.bus.stream import RegisteredValidFIFO, RegisterSlice
from p4sgd.hw.datapath.lines import LineFIFO, kept_layout
from p4sgd.hw.spec.config import WorkerConfig

pytestmark = needs_solver


class Followed:
    """Any one ``item`` on its way through a FIFO of up to ``most``; ``level`` items are in it, ``ahead`` before it."""

    def __init__(self, m: Module, fifo, came, most: int) -> None:
        gone = fifo.o.valid & fifo.o.ready
        coming, going = Value.cast(fifo.i.payload), Value.cast(fifo.o.payload)
        self.inside = Signal()
        self.item = Signal.like(coming)
        self.ahead = Signal(range(most + 1))
        self.level = Signal(range(most + 2))
        m.d.sync += self.level.eq(self.level + came - gone)
        m.d.comb += Assert(self.level <= most)
        with m.If(fifo.o.valid):
            m.d.comb += Assert(self.level != 0)
        with m.If(self.inside):
            m.d.comb += Assert(self.ahead < self.level)
            with m.If(fifo.o.valid & (self.ahead == 0)):
                m.d.comb += Assert(going == self.item)
            m.d.sync += self.ahead.eq(self.ahead - gone)
            with m.If(gone & (self.ahead == 0)):
                m.d.sync += self.inside.eq(0)
        with m.Elif(came & AnySeq(1)):
            m.d.sync += [self.inside.eq(1), self.item.eq(coming), self.ahead.eq(self.level - gone)]


class PromptOrder(Proof):
    DEPTH = 4

    def __init__(self, fifo=RegisteredValidFIFO):
        super().__init__(fifo(4, self.DEPTH))

    def claim(self, m):
        dut = self.dut
        free(m, dut)
        item = self.item = Followed(m, dut, dut.i.valid, self.DEPTH)
        m.d.comb += Assume(~dut.i.valid | (item.level < self.DEPTH))
        m.d.comb += Assert(dut.o.valid == (item.level != 0))
        holds(m, dut.o)

    def strengthen(self, m):
        item = self.item
        write_at, read_at, read_after = (self.peek(f"dut.{name}", 3) for name in ("write_at", "read_at", "read_after"))
        m.d.comb += [Assert(read_after == (read_at + 1)[:3]), Assert(item.level == (write_at - read_at)[:3])]
        words = [self.peek(f"dut.memory[{place}]", 4) for place in range(self.DEPTH)]
        for place, word in enumerate(words):
            with m.If(item.inside & ((read_at + item.ahead)[:2] == place)):
                m.d.comb += Assert(word == item.item)


class LineOrder(Proof):
    CONFIG = WorkerConfig(lanes=8, line_fifo_depth=8)
    FETCHED = 4

    def __init__(self, fifo=LineFIFO):
        super().__init__(fifo(self.CONFIG))

    def claim(self, m):
        dut = self.dut
        free(m, dut)
        item = self.item = Followed(m, dut, dut.i.valid & dut.i.ready, self.CONFIG.line_fifo_depth + self.FETCHED)
        holds(m, dut.o)
        waits = Signal(range(LineFIFO.LATENCY + 1))
        with m.If(~item.inside | (item.ahead != 0)):
            m.d.sync += waits.eq(0)
        with m.Elif(~dut.o.valid):
            m.d.sync += waits.eq(waits + 1)
        m.d.comb += Assert(waits < LineFIFO.LATENCY)  # nothing is lost
        level_before = Signal.like(item.level, init=-1)
        m.d.sync += level_before.eq(item.level)
        m.d.comb += Assert(dut.i.ready | (level_before >= self.CONFIG.line_fifo_depth - 1))  # a micro-batch fits

    def strengthen(self, m):
        """Items are fetched, on their way, or in the memory."""
        depth, bits = self.CONFIG.line_fifo_depth, kept_layout(self.CONFIG).size
        item = self.item
        level, room = self.peek("dut.level", 4), self.peek("dut.room", 3)
        fetched, front = self.peek("dut.fetched.level", 3), self.peek("dut.fetched.consume", 2)
        back = self.peek("dut.fetched.produce", 2)
        read_at, write_at = self.peek("dut.read__addr", 3), self.peek("dut.write__addr", 3)
        first, second = self.peek("dut.coming1"), self.peek("dut.coming2")
        m.d.comb += [
            Assert(level <= depth),
            Assert((write_at - read_at)[:3] == level[:3]),
            Assert((back - front)[:2] == fetched[:2]),
            Assert(room + fetched + first + second == self.FETCHED),
            Assert(item.level == level + fetched + first + second),
        ]
        with m.If(self.dut.i.ready):
            m.d.comb += Assert(level < depth)
        in_pipe = Signal(range(depth + self.FETCHED + 1))
        in_memory = Signal(range(depth + self.FETCHED + 1))
        m.d.comb += [in_pipe.eq(item.ahead - fetched), in_memory.eq(item.ahead - fetched - first - second)]
        with m.If(item.inside & (item.ahead < fetched)):
            for place in range(self.FETCHED):
                with m.If((front + item.ahead)[:2] == place):
                    m.d.comb += Assert(self.peek(f"dut.fetched.storage[{place}]", bits) == item.item)
        with m.Elif(item.inside & second & (in_pipe == 0)):
            m.d.comb += Assert(self.peek("dut.line", bits) == item.item)
        with m.Elif(item.inside & first & (in_pipe == second)):
            m.d.comb += Assert(self.peek("dut.read__data", bits) == item.item)
        with m.Elif(item.inside):
            for place in range(depth):
                with m.If((read_at + in_memory)[:3] == place):
                    m.d.comb += Assert(self.peek(f"dut.memory[{place}]", bits) == item.item)


class SliceOrder(Proof):
    def __init__(self, register_slice=RegisterSlice):
        super().__init__(register_slice(4))

    def claim(self, m):
        dut = self.dut
        free(m, dut)
        item = self.item = Followed(m, dut, dut.i.valid & dut.i.ready, 2)
        m.d.comb += [Assert(dut.o.valid == (item.level != 0)), Assert(dut.i.ready == (item.level != 2))]
        holds(m, dut.o)

    def strengthen(self, m):
        item = self.item
        with m.If(item.inside & (item.ahead == 1)):
            m.d.comb += Assert(self.peek("dut.spare", 4) == item.item)


@pytest.mark.parametrize(("proof", "k"), [(PromptOrder, 2), (LineOrder, 6), (SliceOrder, 2)])
def test_everything_comes_out_once_and_in_order(tmp_path, proof, k):
    prove(proof(), tmp_path, k=k)


@pytest.mark.parametrize(
    ("proof", "part", "right", "wrong", "cycles"),
    [
        pytest.param(PromptOrder, RegisteredValidFIFO, "write_at != read_after", "write_at != read_at", 8, id="twice"),
        pytest.param(LineOrder, LineFIFO, "with m.If(coming[1]):", "with m.If(coming[2]):", 10, id="lost"),
        pytest.param(SliceOrder, RegisterSlice, "with m.If(ready):", "with m.If(self.i.valid):", 8, id="overwritten"),
    ],
)
def test_a_broken_fifo_is_found(tmp_path, proof, part, right, wrong, cycles):
    finds(tmp_path, proof(mutant(part, right, wrong)), cycles)
