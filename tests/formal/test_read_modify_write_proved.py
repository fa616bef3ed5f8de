"""ReadModifyWrite: any word is a register that every item reads as all items before have left it."""

import pytest
from amaranth.asserts import Initial
from amaranth.hdl import Assert, Assume, Mux
from support.proof import Proof, finds, free, mutant, needs_solver, prove
from support.word import Word

from p4sgd.hw.aggregator.slots import ReadModifyWrite

pytestmark = needs_solver

BITS, DEPTH = 3, 4


class KeepsItsWords(Proof):
    def __init__(self, table=ReadModifyWrite):
        super().__init__(table(BITS, DEPTH))

    def claim(self, m):
        dut = self.dut
        free(m, dut)
        word = self.word = Word(m, dut, BITS)
        m.d.comb += [Assume(word.keeps_rules), Assert(~word.is_item | (dut.follows == word.follows))]
        with m.If(Initial()):  # as the output register of a memory does
            m.d.comb += Assume(self.peek("dut.read_port__data", BITS) == 0)
        with m.If(word.previewed):
            m.d.comb += Assert(dut.before == word.value)
        with m.If(word.has_turn):
            m.d.comb += Assert(dut.old == word.value)

    def strengthen(self, m):
        """The word is in the memory, or is being written."""
        word = self.word
        kept = self.peek("dut.memory[0]", BITS)
        for address in range(1, DEPTH):
            kept = Mux(word.address == address, self.peek(f"dut.memory[{address}]", BITS), kept)
        writes = self.peek("dut.write_port__en") & (self.peek("dut.write_port__addr", 2) == word.address)
        m.d.comb += Assert(word.value == Mux(writes, self.peek("dut.write_port__data", BITS), kept))


def test_words_keep_what_was_made_of_them(tmp_path):
    prove(KeepsItsWords(), tmp_path, k=8)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("_RECENT = 5", "_RECENT = 4"), ("Mux(self.follows, self.made, self.before)", "self.before")],
)
def test_a_lost_update_is_found(tmp_path, right, wrong):
    finds(tmp_path, KeepsItsWords(mutant(ReadModifyWrite, right, wrong)), 16)
