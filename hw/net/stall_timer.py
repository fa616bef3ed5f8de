"""When it is time to give up what cannot even be sent."""

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.net.resend_timer import DOUBLINGS_BITS, RESENDS_BITS, TIME_BITS

__all__ = ["StallTimer"]


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
