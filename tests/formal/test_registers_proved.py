"""The register file: an answer to every request, none without one, and each waits as it is."""

from amaranth.hdl import Assert, Assume, Cat, Signal
from support.proof import Proof, finds, free, holds, mutant, needs_solver, prove

from p4sgd.hw.bus.axi import RESPONSE_OKAY
from p4sgd.hw.bus.register_file import RegisterFile
from p4sgd.hw.primitives import pipeline
from p4sgd.hw.spec.register_map import Access, RegisterMap, word

pytestmark = needs_solver

REGISTERS = RegisterMap(
    word(access.name, 4 * index, access, access.value, bits=1 if access.name.startswith(("W1", "RC")) else 4)
    for index, access in enumerate(Access)
)


class Answers(Proof):
    def __init__(self, file=RegisterFile):
        super().__init__(file(REGISTERS))

    def claim(self, m):
        dut = self.dut
        free(m, dut)
        bus = dut.bus
        for channel in (bus.aw, bus.w, bus.ar):
            holds(m, channel, rule=Assume)
        for channel in (bus.b, bus.r):
            holds(m, channel)
            with m.If(channel.valid):
                m.d.comb += Assert(channel.payload.resp == RESPONSE_OKAY)

        # Of two writes that do something the second does it 4 cycles later at the soonest.
        setting = Signal.like(self.dut.rw)
        m.d.sync += setting.eq(self.dut.rw)
        writes = Signal()
        m.d.comb += writes.eq((self.dut.rw != setting) | self.dut.strobe_strobe)
        m.d.comb += Assert(~(writes & Cat(pipeline(m, writes, 3, "wrote")[1:]).any()))

        def pending(name, channel, answer):
            """Requests that have come and are not answered."""
            count = Signal(2, name=name)
            came, went = channel.valid & channel.ready, answer.valid & answer.ready
            m.d.sync += count.eq(count + came - went)
            m.d.comb += [Assert(count <= 1), Assert(~answer.valid | (count == 1))]
            return count

        self.addresses, self.words = pending("addresses", bus.aw, bus.b), pending("words", bus.w, bus.b)
        self.reads = pending("reads", bus.ar, bus.r)

    def strengthen(self, m):
        bus = self.dut.bus
        request, write_response, read_response = 0, 2, 3
        state = self.peek("dut.read_state", 2)
        m.d.comb += [Assert((state != request) == self.reads), Assert(bus.r.valid == (state == read_response))]
        state = self.peek("dut.write_state", 2)
        m.d.comb += [Assert(state <= write_response), Assert(bus.b.valid == (state == write_response))]
        has_address, has_data = self.peek("dut.have_address"), self.peek("dut.have_data")
        with m.If(state == request):
            m.d.comb += [Assert(has_address == self.addresses), Assert(has_data == self.words)]
        with m.Else():
            m.d.comb += [Assert(self.addresses & self.words), Assert(~has_address & ~has_data)]


def test_every_request_has_its_answer(tmp_path):
    prove(Answers(), tmp_path, k=5)


def test_an_answer_without_a_request_is_found(tmp_path):
    broken = mutant(RegisterFile, "with m.If(have_address & have_data):", "with m.If(have_address):")
    finds(tmp_path, Answers(broken), 8)
