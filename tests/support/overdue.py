"""What `ResendTimer` promises, and a stand-in that finds any slot overdue that waits, at any time."""

from amaranth.asserts import AnySeq
from amaranth.hdl import Module, Signal, Value

from p4sgd.hw.net.timers import ResendTimer


class Asked:
    """The slot that a timer asks.

    ``waits_for_full``, ``waits_for_clear``: the slot asked waited for it, a cycle ago, and has not been forgotten
    since; ``stays``: it is the slot that was asked a cycle ago; ``may_ask``: whether it may be offered, or given up.
    """

    def __init__(self, m: Module, timer: ResendTimer) -> None:
        asked_before = Signal.like(timer.scan)
        waited_for_full, waited_for_clear = (Signal.like(timer.waits_for_full, name=name) for name in ("full", "clear"))
        forgot = Signal()
        m.d.sync += [
            asked_before.eq(timer.scan),
            waited_for_full.eq(timer.waits_for_full),
            waited_for_clear.eq(timer.waits_for_clear),
            forgot.eq(timer.forget),
        ]
        self.waits_for_full = waited_for_full.bit_select(timer.scan, 1) & ~forgot
        self.waits_for_clear = waited_for_clear.bit_select(timer.scan, 1) & ~forgot
        self.stays = asked_before == timer.scan
        self.may_ask: Value = self.stays & (self.waits_for_full | self.waits_for_clear)


class AnyTime(ResendTimer):
    """A `ResendTimer` that knows no time: what waits may be offered, or given up, in any cycle."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        asked = Asked(m, self)
        asks, spent = (Signal(name=name) for name in ("asks", "spent"))
        m.d.comb += [
            asks.eq(AnySeq(1) & asked.may_ask),
            spent.eq(AnySeq(1)),
            self.is_partial.eq(asked.waits_for_full),
            self.offered.eq(asks & ~spent),
            self.give_up.eq(asks & spent),
        ]
        m.d.sync += self.scan.eq(AnySeq(len(self.scan)))
        return m
