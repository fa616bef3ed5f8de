"""Register file: the register map as an AXI4-Lite slave, and counters of events for it."""

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value, ValueLike, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import LITE_DATA_BITS, Axi4LiteSignature
from p4sgd.hw.primitives import Component, hold, late_reset
from p4sgd.hw.spec.register_map import Access, Field, Register, RegisterMap

__all__ = ["COUNTER_BITS", "EventCounters", "RegisterFile", "member_name"]


COUNTER_BITS = 48  # width of a counter: 13 days at 250 MHz


class EventCounters(Component):
    """``count`` counters of events, read as a snapshot; all are 0 after a reset."""

    def __init__(self, count: int) -> None:
        ports = {
            "events": In(count),  # Bit i: event i has happened. It is counted in the next cycle.
            "clear": In(1),  # Set all counters to 0. An event of the cycle before is not counted.
            "show": In(1),  # copy the counters to `shown`
            # The counters as of the last `show`, so all of one moment, however long the host takes to read them.
            "shown": Out(data.ArrayLayout(COUNTER_BITS, count)),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Events are registered first, so that a counter's enable comes straight from a register.
        happened = Signal.like(self.events, reset_less=True)
        m.d.sync += happened.eq(self.events)
        shown = hold(m, self.shown)
        late = late_reset(m)
        for index in range(len(self.events)):
            count = Signal(COUNTER_BITS, name=f"count_{index}", reset_less=True)
            with m.If(self.clear | late):
                m.d.sync += count.eq(0)
            with m.Elif(happened[index]):
                m.d.sync += count.eq(count + 1)
            with m.If(self.show):
                m.d.sync += shown[index].eq(count)
            with m.If(late):
                m.d.sync += shown[index].eq(0)
        return m


_BLOCK_BITS = 4  # log2 of the registers of a block: a read selects a word within each block, then a block


def member_name(register: Register, field: Field) -> str:
    """Name of the member for a field: ``<register>_<field>``, or ``<register>`` if the field is called ``value``."""
    name = register.name.lower()
    return name if field.name == "value" else f"{name}_{field.name}"


class RegisterFile(Component):
    """The registers of a `RegisterMap`: holds what the host sets and shows what the hardware reports.

    One read and one write at a time, of 4 cycles each. Unmapped offsets read as 0; writes to them and to read-only
    fields have no effect. Every response is OKAY. Byte strobes apply to each byte of a read-write field, to others by
    their lowest bit's. In a reset read-write fields change to their reset values a cycle late.

    Members
    -------
    bus
        The AXI4-Lite port.
    <name>
        For each field, named by `member_name`, with a direction and a meaning that depend on its access:

        ========  ===========================================================================================
        RW        output: the value
        RO        input: the value
        W1C, RC   input: the flag is set in every cycle in which it is high
        W1S       output: the flag; the input ``<name>_clear`` clears it
        STROBE    output: the value that was last written; the output ``<name>_strobe`` is high for one cycle
        ========  ===========================================================================================
    """

    def __init__(self, registers: RegisterMap) -> None:
        self._registers = list(registers)
        members: dict[str, Any] = {"bus": In(Axi4LiteSignature())}
        for register in self._registers:
            for field in register.fields:
                name = member_name(register, field)
                shape = signed(field.bits) if field.signed else unsigned(field.bits)
                match field.access:
                    case Access.RW:
                        members[name] = Out(shape)
                    case Access.RO:
                        members[name] = In(shape)
                    case Access.W1C | Access.RC:
                        members[name] = In(1)
                    case Access.W1S:
                        members[name] = Out(1)
                        members[f"{name}_clear"] = In(1)
                    case Access.STROBE:
                        members[name] = Out(shape)
                        members[f"{name}_strobe"] = Out(1)
        super().__init__(members)

    def wide(self, name: str) -> Cat:
        """The two halves of a register pair, named in lower case, as one value."""
        return Cat(getattr(self, f"{name}_low"), getattr(self, f"{name}_high"))

    def connect(self, m: Module, part: Any) -> None:
        """Connect ports of a component, or fields of a view, that have the name of a member or pair: it owns these."""
        members = part.signature.members if isinstance(part, wiring.Component) else part.shape().members
        for name in members:
            if name in self.signature.members:
                own = getattr(self, name)
            elif f"{name}_low" in self.signature.members:
                own = self.wide(name)
            else:
                continue
            port = getattr(part, name)
            is_output = isinstance(part, wiring.Component) and members[name].flow is Out
            m.d.comb += own.eq(port) if is_output else port.eq(own)

    def show(self, words: Mapping[str, int]) -> list[Any]:
        """Assignments that make read-only registers, by name, show constant words."""
        return [
            getattr(self, member_name(register, field)).eq(field.decode(words[register.name]))
            for register in self._registers
            if register.name in words
            for field in register.fields
        ]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        write = Signal()  # for one cycle; the three below are stable in that cycle and the next
        write_offset = Signal(len(self.bus.aw.payload.addr), reset_less=True)
        write_data = Signal(LITE_DATA_BITS, reset_less=True)
        write_strobes = Signal(LITE_DATA_BITS // 8, reset_less=True)
        read = Signal()  # for one cycle; read_offset is stable until the response
        read_offset = Signal(len(self.bus.ar.payload.addr), reset_less=True)
        read_data = Signal(LITE_DATA_BITS)
        answer = Signal(LITE_DATA_BITS, reset_less=True)
        m.d.comb += self.bus.r.payload.data.eq(answer)

        with m.FSM(name="write"):
            have_address = Signal()
            have_data = Signal()
            with m.State("REQUEST"):
                m.d.comb += [self.bus.aw.ready.eq(~have_address), self.bus.w.ready.eq(~have_data)]
                with m.If(self.bus.aw.valid & self.bus.aw.ready):
                    m.d.sync += [have_address.eq(1), write_offset.eq(self.bus.aw.payload.addr)]
                with m.If(self.bus.w.valid & self.bus.w.ready):
                    m.d.sync += [
                        have_data.eq(1),
                        write_data.eq(self.bus.w.payload.data),
                        write_strobes.eq(self.bus.w.payload.strb),
                    ]
                with m.If(have_address & have_data):
                    m.d.comb += write.eq(1)
                    m.d.sync += [have_address.eq(0), have_data.eq(0)]
                    m.next = "WRITE"
            with m.State("WRITE"):  # the decoded register takes the data in this cycle (`written` below)
                m.d.sync += self.bus.b.valid.eq(1)
                m.next = "RESPONSE"
            with m.State("RESPONSE"):
                with m.If(self.bus.b.ready):
                    m.d.sync += self.bus.b.valid.eq(0)
                    m.next = "REQUEST"

        with m.FSM(name="read"):
            with m.State("REQUEST"):
                m.d.comb += self.bus.ar.ready.eq(1)
                m.d.sync += read_offset.eq(self.bus.ar.payload.addr)
                with m.If(self.bus.ar.valid):
                    m.next = "SELECT"
            with m.State("SELECT"):
                m.d.comb += read.eq(1)
                m.next = "SHOW"
            with m.State("SHOW"):
                m.d.sync += [answer.eq(read_data), self.bus.r.valid.eq(1)]
                m.next = "RESPONSE"
            with m.State("RESPONSE"):
                with m.If(self.bus.r.ready):
                    m.d.sync += self.bus.r.valid.eq(0)
                    m.next = "REQUEST"

        words: dict[int, list[tuple[Field, ValueLike]]] = {}  # fields by offset / 4
        blocks = sorted({register.offset >> 2 + _BLOCK_BITS for register in self._registers})
        late = {block: late_reset(m, f"late_reset{block}") for block in blocks}
        for register in self._registers:
            written = Signal(name=f"{register.name.lower()}_written", reset_less=True)
            m.d.sync += written.eq(write & (write_offset[2:] == register.offset >> 2))
            got_read = read & (read_offset[2:] == register.offset >> 2)
            for field in register.fields:
                name = member_name(register, field)
                resets = late[register.offset >> 2 + _BLOCK_BITS]
                value = self._field(m, name, field, resets, written, got_read, write_data, write_strobes)
                words.setdefault(register.offset >> 2, []).append((field, value))

        # A read first selects a word of every block, then a block.
        shown = {
            block: self._show(m, read_offset[2 : 2 + _BLOCK_BITS], block, words)
            for block in sorted({word >> _BLOCK_BITS for word in words})
        }
        with m.Switch(read_offset[2 + _BLOCK_BITS :]):
            for block, value in shown.items():
                with m.Case(block):
                    m.d.comb += read_data.eq(value)
        return m

    def _field(
        self,
        m: Module,
        name: str,
        field: Field,
        resets: Signal,
        written: ValueLike,
        got_read: ValueLike,
        data: Signal,
        strobes: Signal,
    ) -> ValueLike:
        """Build one field; returns the value that a read shows."""
        port: Signal = getattr(self, name)
        bits = data[field.low : field.low + field.bits]
        acts = written & strobes[field.low // 8]
        match field.access:
            case Access.RO:
                return port
            case Access.RW:
                value = hold(m, port)
                for index in range(field.bits):
                    with m.If(written & strobes[(field.low + index) // 8]):
                        m.d.sync += value[index].eq(bits[index])
                with m.If(resets):
                    m.d.sync += value.eq(field.reset)
                return port
            case Access.W1S:
                with m.If(acts & bits[0]):
                    m.d.sync += port.eq(1)
                with m.Elif(getattr(self, f"{name}_clear")):
                    m.d.sync += port.eq(0)
                return port
            case Access.W1C | Access.RC:
                flag = Signal(name=f"{name}_flag")
                clear = got_read if field.access is Access.RC else acts & bits[0]
                with m.If(port):  # setting has priority, so that no event is lost to a clear in the same cycle
                    m.d.sync += flag.eq(1)
                with m.Elif(clear):
                    m.d.sync += flag.eq(0)
                return flag
            case Access.STROBE:
                strobe = getattr(self, f"{name}_strobe")
                m.d.sync += strobe.eq(acts)
                value = hold(m, port)
                with m.If(acts):
                    m.d.sync += value.eq(bits)
                return Const(0, field.bits)
        raise AssertionError(field.access)

    @staticmethod
    def _show(m: Module, index: Value, block: int, words: dict[int, list[tuple[Field, ValueLike]]]) -> Signal:
        """Build the register of a block, which takes the word ``index`` of it; returns that register."""
        shown = Signal(LITE_DATA_BITS, name=f"block{block}", reset_less=True)
        m.d.sync += shown.eq(0)
        with m.Switch(index):
            for word, fields in words.items():
                if word >> _BLOCK_BITS == block:
                    with m.Case(word % (1 << _BLOCK_BITS)):
                        m.d.sync += [shown[field.low : field.low + field.bits].eq(value) for field, value in fields]
        return shown
