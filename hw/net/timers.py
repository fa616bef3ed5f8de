"""When a packet is to be sent again, and when it is time to give up.

Looking up a bit ahead of the pointer to it.

When a packet is to be sent again, and when it is time to give up.

When it is time to give up what cannot even be sent.
"""

from amaranth.hdl import Module, Mux, Signal, Value, ValueLike, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

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
    """The bit at a pointer, as it was a cycle ago.

    Where the pointer goes is known late, so both bits are looked up first and chosen from a cycle later.

    Parameters
    ----------
    m, name
        Module, and a name for its registers.
    moves
        Whether the pointer goes from ``here`` to ``after``.
    bits
        Looked up in.
    here, after
        Where the pointer is, and where it would go.
    only
        0 if there is nothing at ``after``.
    forget
        Pulse: the bit is 0 in the next cycle.
    init
        The bit after reset.
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
_FIRST_TIME = (1 << TIME_BITS) - 2000
"""Time after reset: shortly before it wraps, so that every simulation passes what boards meet every 17 s."""

RESENDS_BITS = 8
DOUBLINGS_BITS = 4

_ENTRY = data.StructLayout({"sent_at": TIME_BITS, "resends": RESENDS_BITS, "is_partial": 1})


class ResendTimer(wiring.Component):
    """Asks one slot after the other: does it wait? since when? for too long?

    It spends 5 cycles on a slot that waits and 1 on any other, so a packet is offered at most 5 · slots cycles after
    it is due. One that is not taken for another such time, because the way out is blocked, counts as sent again: the
    network may be gone, and then it is time to give up, too.

    Members
    -------
    waits_for_full, waits_for_clear : In(slots)
        What the slots wait for; a slot that waits for neither is not timed.
    forget : In(1)
        Pulse: none does any more.
    sent : In(1), sent_slot : In(slot_bits), sent_partial : In(1), is_resend : In(1)
        A packet of a slot is being sent; it is PARTIAL, else ACK; it is the one offered here.
    first_wait : In(32), doublings : In(4), limit : In(8)
        Cycles without an answer after which a packet is sent again; how often this time doubles, from one resend to
        the next; how many resends there are before it is time to give up, 0 for any number. Stable after the join;
        ``first_wait`` · 2^``doublings`` is below 2^31.
    scan : Out(slot_bits)
        The slot that is asked.
    is_partial : Out(1)
        It waits for FULL, so its partial would be sent again; else its ACK.
    offered : Out(1)
        Its packet is to be sent again. Offered until it is sent, or the slot no longer waits.
    give_up : Out(1)
        Pulse, while it is still asked: its last resend has had no answer.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._slots = config.slots
        super().__init__(
            {
                "waits_for_full": In(config.slots),
                "waits_for_clear": In(config.slots),
                "forget": In(1),
                "sent": In(1),
                "sent_slot": In(config.slot_bits),
                "sent_partial": In(1),
                "is_resend": In(1),
                "first_wait": In(TIME_BITS),
                "doublings": In(DOUBLINGS_BITS),
                "limit": In(RESENDS_BITS),
                "scan": Out(config.slot_bits),
                "is_partial": Out(1),
                "offered": Out(1),
                "give_up": Out(1),
            }
        )

    waits_for_full: Signal
    waits_for_clear: Signal
    forget: Signal
    sent: Signal
    sent_slot: Signal
    sent_partial: Signal
    is_resend: Signal
    first_wait: Signal
    doublings: Signal
    limit: Signal
    scan: Signal
    is_partial: Signal
    offered: Signal
    give_up: Signal

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
        same_wait = Signal()  # it has waited ever since it was asked: what was read is still its own
        elapsed = Signal(TIME_BITS, reset_less=True)
        resends = Signal(RESENDS_BITS, reset_less=True)
        wait = Signal(TIME_BITS, reset_less=True)
        was_partial = Signal(reset_less=True)
        more_resends = Signal(RESENDS_BITS, reset_less=True)
        patience = Signal(signed(TIME_BITS + 1), reset_less=True)  # cycles that a packet may yet be offered, less one
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
        m.d.sync += now.eq(now + 1)
        with m.If(moves):
            m.d.sync += [self.scan.eq(scan_after), scan_after.eq(scan_after + 1)]
        with m.If(~waits):
            m.d.sync += same_wait.eq(0)
        with m.FSM():
            with m.State("LOOK"):
                with m.If(waits):
                    m.d.sync += same_wait.eq(1)
                    m.next = "MEASURE"
                with m.Else():
                    m.d.comb += moves.eq(1)
            with m.State("MEASURE"):
                # An ACK whose PARTIAL was sent last has not been sent again yet.
                m.d.sync += [
                    elapsed.eq(now - read.data.sent_at),
                    resends.eq(Mux(read.data.is_partial == waits_for_full, read.data.resends, 0)),
                    was_partial.eq(waits_for_full),
                ]
                m.next = "STRETCH"
            with m.State("STRETCH"):
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
                    m.d.sync += [resends.eq(more_resends), elapsed.eq(~0)]
                    m.next = "STRETCH"
        return m


class StallTimer(wiring.Component):
    """Gives up after as long behind a blocked way out as a packet that is sent again would go without an answer.

    `ResendTimer` times slots, and a packet that waits to be sent for the first time has none yet.

    Members
    -------
    stalled : In(1)
        A packet waits to be sent for the first time.
    first_wait : In(32), doublings : In(4), limit : In(8)
        As of a `ResendTimer`: it takes ``limit`` + 1 waits.
    give_up : Out(1)
        It was stalled a cycle ago, and had been for all of these, and 2 cycles more for each.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "stalled": In(1),
                "first_wait": In(TIME_BITS),
                "doublings": In(DOUBLINGS_BITS),
                "limit": In(RESENDS_BITS),
                "give_up": Out(1),
            }
        )

    stalled: Signal
    first_wait: Signal
    doublings: Signal
    limit: Signal
    give_up: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        waits = Signal(RESENDS_BITS)  # that are over
        wait = Signal(TIME_BITS, reset_less=True)
        left = Signal(signed(TIME_BITS + 1), reset_less=True)  # of this one
        doubles, is_last = Signal(reset_less=True), Signal(reset_less=True)  # of a wait, which has two cycles or more
        spent = Signal()
        stalled = Signal()  # known late, wanted by many
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
