"""What `ReadModifyWrite` promises of one of its words, and a stand-in that has only this word."""

from typing import Any

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Const, Module, Mux, ShapeLike, Signal, Value

from p4sgd.hw.aggregator.slots import ReadModifyWrite
from p4sgd.hw.primitives import pipeline


class Word:
    """The word at any one address: as all writes before have left it.

    Nothing is read before the first cycle, so nothing must be written before the first item has its turn.

    ``address``: any, but always the same; ``previewed``, ``has_turn``: ``before``, or ``old``, is to show it in this
    cycle; ``is_item``, ``follows``: there is an item to preview, and ``follows`` is to say this of it; ``keeps_rules``:
    whether what is made, and written, is what may be.
    """

    def __init__(self, m: Module, table: ReadModifyWrite, shape: ShapeLike) -> None:
        self.address = Signal(len(table.address), name="followed")
        self.value: Any = Signal(shape, name="word")
        addresses = pipeline(m, table.address, ReadModifyWrite.LATENCY, "address")
        m.d.comb += self.address.eq(AnyConst(len(self.address)))
        items = pipeline(m, Const(1), ReadModifyWrite.LATENCY, "item")
        self.previewed = items[3] & (addresses[3] == self.address)
        self.has_turn = items[4] & (addresses[4] == self.address)
        self.follows = addresses[3] == addresses[4]
        self.is_item = items[3]
        self.keeps_rules = Mux(table.write, items[4], Value.cast(table.made) == Value.cast(table.old))
        with m.If(self.has_turn & table.write):
            m.d.sync += self.value.eq(table.made)


class OneWord(ReadModifyWrite):
    """A `ReadModifyWrite` that keeps one word, at any address: all others are anything whenever they are read."""

    def __init__(self, shape: ShapeLike, depth: int) -> None:
        super().__init__(shape, depth)
        self._word = shape

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word = Word(m, self, self._word)
        bits = len(Value.cast(self.old))
        m.d.comb += [
            self.follows.eq(Mux(word.is_item, word.follows, AnySeq(1))),
            self.before.eq(Mux(word.previewed, word.value, AnySeq(bits))),
            self.old.eq(Mux(word.has_turn, word.value, AnySeq(bits))),
        ]
        m.d.comb += Assert(word.keeps_rules)
        return m
