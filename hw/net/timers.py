"""Timers of a worker's endpoint: when a packet is sent again, and when the worker gives up."""

from amaranth.hdl import Module, Mux, Signal, Value, ValueLike, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from p4sgd.hw.primitives import Component
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["DOUBLINGS_BITS", "RESENDS_BITS", "TIME_BITS", "ResendTimer", "StallTimer", "lookahead"]


def lookahead(
    m: Module,
    name: str,
    moves: Value,
    bits: Signal,
    here: Value,
    after: Value,
    *,
    only: ValueLike = 1,
    forget: ValueLike = 0,
    init: int = 0,
) -> Value:
    """The bit of the vector ``bits`` that a pointer selects, as it was one cycle ago, and ``init`` after reset.

    Whether the pointer ``moves`` from ``here`` to ``after`` is known too late in a cycle to select a bit of a wide
    vector. So both bits go to registers. With ``only`` 0 the next bit counts as 0. After ``forget`` the bit is 0.
    """
    moved = Signal(name=f"{name}_moved")
    bit_here = Signal(name=f"{name}_here", init=init)
    bit_after = Signal(name=f"{name}_after")
    m.d.sync += [
        moved.eq(moves),
        bit_here.eq(bits.bit_select(here, 1)),
        bit_after.eq(bits.bit_select(after, 1) & only),
    ]
    with m.If(forget):
        m.d.sync += [bit_here.eq(0), bit_after.eq(0)]
    return Mux(moved, bit_after, bit_here)


TIME_BITS = 32
_FIRST_TIME = (1 << TIME_BITS) - 2000  # after reset: just before the wrap, so that every simulation covers it

RESENDS_BITS = 8
DOUBLINGS_BITS = 4

_ENTRY = data.StructLayout({"sent_at": TIME_BITS, "resends": RESENDS_BITS, "is_partial": 1})


class ResendTimer(Component):
    """A resend timer that scans slots; its memory holds when each sent its last packet, and how often.

    A slot that waits takes 5 cycles, any other 1, so a resend is offered at most 5 · slots cycles after it is due. An
    offer that ``tx`` does not take within one more wait counts as a resend: a dead link must end in giving up, too.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._slots = config.slots
        ports = {
            # What each slot waits for. A slot that waits for neither is not timed.
            "waits_for_full": In(config.slots),
            "waits_for_clear": In(config.slots),
            "forget": In(1),  # pulse: no slot waits any more
            # Pulse: a packet of this slot is being sent. It is a PARTIAL, else an ACK; it is the resend offered
            # here.
            "sent": In(1),
            "sent_slot": In(config.slot_bits),
            "sent_partial": In(1),
            "is_resend": In(1),
            "first_wait": In(TIME_BITS),  # cycles without an answer before the first resend
            # How often this wait doubles from one resend to the next; `first_wait` · 2^`doublings` is below 2^31.
            "doublings": In(DOUBLINGS_BITS),
            # Resends before giving up; 0 is no limit. Stable while slots wait: it is compared for equality.
            "limit": In(RESENDS_BITS),
            "scan": Out(config.slot_bits),  # the slot being examined
            "is_partial": Out(1),  # it waits for FULL, so its PARTIAL would be sent again; else its ACK
            "offered": Out(1),  # its packet is to be sent again; high until it is sent or the slot no longer waits
            "give_up": Out(1),  # pulse, while `scan` is the slot: its last resend has had no answer
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        entries: Memory = Memory(shape=_ENTRY, depth=self._slots, init=[])
        m.submodules.entries = entries
        write, read = entries.write_port(), entries.read_port()
        now = Signal(TIME_BITS, init=_FIRST_TIME)
        scan_after = Signal.like(self.scan, init=1)  # scan + 1
        moves = Signal()
        waits_for_full, waits_for_clear = (
            lookahead(m, f"scan_{name}", moves, waiting, self.scan, scan_after, forget=self.forget)
            for name, waiting in (("full", self.waits_for_full), ("clear", self.waits_for_clear))
        )
        waits = waits_for_full | waits_for_clear
        same_wait = Signal()  # the slot has waited all through this scan, so what was read still belongs to its packet
        elapsed = Signal(TIME_BITS, reset_less=True)
        resends = Signal(RESENDS_BITS, reset_less=True)
        wait = Signal(TIME_BITS, reset_less=True)
        was_partial = Signal(reset_less=True)
        more_resends = Signal(RESENDS_BITS, reset_less=True)
        patience = Signal(signed(TIME_BITS + 1), reset_less=True)  # cycles for which the offer still stands, minus one
        overdue = Signal(reset_less=True)
        spent = Signal(reset_less=True)
        asks = Signal()
        doubled = Mux(resends < self.doublings, resends[:DOUBLINGS_BITS], self.doublings)
        m.d.comb += [
            read.addr.eq(self.scan),
            write.addr.eq(self.sent_slot),
            write.data.sent_at.eq(now),
            write.data.is_partial.eq(self.sent_partial),
            write.data.resends.eq(Mux(self.is_resend, more_resends, 0)),
            write.en.eq(self.sent),
            self.is_partial.eq(waits_for_full),
            asks.eq(overdue & same_wait & waits & (waits_for_full == was_partial)),
        ]
        # Time wraps every 2^32 cycles. Differences stay right because no wait is as long as 2^31 cycles.
        m.d.sync += now.eq(now + 1)
        with m.If(moves):
            m.d.sync += [self.scan.eq(scan_after), scan_after.eq(scan_after + 1)]
        with m.If(~waits):
            m.d.sync += same_wait.eq(0)
        # One adder, shift or comparison a state: 32-bit arithmetic between registers only, at any number of slots.
        with m.FSM():
            with m.State("LOOK"):
                with m.If(waits):
                    m.d.sync += same_wait.eq(1)
                    m.next = "MEASURE"
                with m.Else():
                    m.d.comb += moves.eq(1)
            with m.State("MEASURE"):
                # If the slot's last packet was its PARTIAL and it now waits for CLEAR, its ACK has not been sent yet:
                # no resend of it counts.
                m.d.sync += [
                    elapsed.eq(now - read.data.sent_at),
                    resends.eq(Mux(read.data.is_partial == waits_for_full, read.data.resends, 0)),
                    was_partial.eq(waits_for_full),
                ]
                m.next = "STRETCH"
            with m.State("STRETCH"):
                # `resends >= limit` would obey a limit lowered during a run, but is a level of LUTs deeper.
                m.d.sync += [
                    wait.eq(self.first_wait << doubled),
                    spent.eq((resends == self.limit) & (self.limit != 0)),
                ]
                m.next = "COMPARE"
            with m.State("COMPARE"):
                m.d.sync += [
                    overdue.eq(elapsed >= wait),
                    more_resends.eq(resends + ~resends.all()),
                    patience.eq(wait),
                ]
                m.next = "RESEND"
            with m.State("RESEND"):
                m.d.comb += [self.offered.eq(asks & ~spent), self.give_up.eq(asks & spent)]
                m.d.sync += patience.eq(patience - 1)
                with m.If((self.sent & self.is_resend) | ~self.offered):
                    m.d.comb += moves.eq(1)
                    m.next = "LOOK"
                with m.Elif(patience[-1]):
                    # Nobody took the offer: count it as a resend, and offer the next without a wait of its own, which
                    # this one was.
                    m.d.sync += [resends.eq(more_resends), elapsed.eq(~0)]
                    m.next = "STRETCH"
        return m


class StallTimer(wiring.Component):
    """A timer that gives up when ``tx`` takes nothing, after as long as a packet without an answer would be resent.

    `ResendTimer` times slots, and a partial that waits to be sent for the first time has no slot yet.
    """

    stalled: In(1)  # a partial waits to be sent for the first time
    # As in `ResendTimer`: it takes `limit` + 1 waits to give up.
    first_wait: In(TIME_BITS)
    doublings: In(DOUBLINGS_BITS)
    limit: In(RESENDS_BITS)
    # The partial was still stalled one cycle ago, and had been for all these waits and 2 cycles more for each.
    give_up: Out(1)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        waits = Signal(RESENDS_BITS)  # waits that are over
        wait = Signal(TIME_BITS, reset_less=True)
        left = Signal(signed(TIME_BITS + 1), reset_less=True)  # cycles left of this wait
        doubles, is_last = Signal(reset_less=True), Signal(reset_less=True)  # registered: a wait has 2 cycles or more
        spent = Signal()
        stalled = Signal()  # the input comes late in the cycle and drives many registers, so it has one of its own
        m.d.sync += [
            stalled.eq(self.stalled),
            doubles.eq(waits < self.doublings),
            is_last.eq((waits >= self.limit) & (self.limit != 0)),
        ]
        m.d.comb += self.give_up.eq(stalled & spent)
        with m.If(~stalled):
            m.d.sync += [waits.eq(0), wait.eq(self.first_wait), left.eq(self.first_wait), spent.eq(0)]
        with m.Elif(~left[-1]):
            m.d.sync += left.eq(left - 1)
        with m.Elif(~spent):
            longer = (wait << doubles)[:TIME_BITS]
            m.d.sync += [
                waits.eq(waits + ~waits.all()),
                wait.eq(longer),
                left.eq(longer),
                spent.eq(is_last),
            ]
        return m
