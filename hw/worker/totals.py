"""How many micro-batches and chunks a run has."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.run import COUNT_BITS

__all__ = ["Totals"]

_MICRO_BITS = 16
_MINI_BITS = 32
_CHUNK_BITS = 17


class Totals(wiring.Component):
    """Multiplies the run's dimensions, one bit a cycle: no multiplier is spent on what is needed once a run.

    ``done`` comes at most 36 cycles after ``start``; the results stay until the next start.

    Members
    -------
    start : In(1)
        Pulse.
    micro_batches, mini_batches, chunks : In
        Micro-batches of a mini-batch, mini-batches of the run, chunks of an engine.
    total_micro_batches, total_chunks : Out(40)
        Micro-batches of the run; chunks of an engine over the run. Both are below 2^40, see `RunSettings`.
    done : Out(1)
        Pulse.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "start": In(1),
                "micro_batches": In(_MICRO_BITS),
                "mini_batches": In(_MINI_BITS),
                "chunks": In(_CHUNK_BITS),
                "total_micro_batches": Out(COUNT_BITS),
                "total_chunks": Out(COUNT_BITS),
                "done": Out(1),
            }
        )

    start: Signal
    micro_batches: Signal
    mini_batches: Signal
    chunks: Signal
    total_micro_batches: Signal
    total_chunks: Signal
    done: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        factor = Signal(max(_MICRO_BITS, _CHUNK_BITS), reset_less=True)
        exhausted = Signal()  # factor is 0, worked out while it is shifted
        addend = Signal(COUNT_BITS, reset_less=True)
        m.d.sync += [self.done.eq(0), exhausted.eq(factor[1:] == 0)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    factor.eq(self.micro_batches),
                    addend.eq(self.mini_batches),
                    exhausted.eq(0),
                ]
                with m.If(self.start):
                    m.d.sync += self.total_micro_batches.eq(0)
                    m.next = "MICRO_BATCHES"
            with m.State("MICRO_BATCHES"):
                m.d.sync += [factor.eq(factor >> 1), addend.eq(addend << 1)]
                with m.If(factor[0]):
                    m.d.sync += self.total_micro_batches.eq(self.total_micro_batches + addend)
                with m.If(exhausted):
                    m.d.sync += [
                        factor.eq(self.chunks),
                        addend.eq(self.total_micro_batches),
                        self.total_chunks.eq(0),
                        exhausted.eq(0),
                    ]
                    m.next = "CHUNKS"
            with m.State("CHUNKS"):
                m.d.sync += [factor.eq(factor >> 1), addend.eq(addend << 1)]
                with m.If(factor[0]):
                    m.d.sync += self.total_chunks.eq(self.total_chunks + addend)
                with m.If(exhausted):
                    m.d.sync += self.done.eq(1)
                    m.next = "IDLE"
        return m
