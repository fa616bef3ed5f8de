"""How many micro-batches and chunks a run has, and whether the worker can do it."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import MAX_PRECISION
from p4sgd.hw.spec.run import COUNT_BITS

__all__ = ["Totals"]

_MICRO_BITS = 16
_MINI_BITS = 32
_CHUNK_BITS = 17
_PLANE_BITS = 4


class Totals(wiring.Component):
    """Multiplies the run's dimensions, one bit a cycle: no multiplier is spent on what is needed once a run.

    ``done`` comes at most 42 cycles after ``start``; the results stay until the next start.

    Parameters
    ----------
    config
        What the worker has room for.

    Members
    -------
    start : In(1)
        Pulse.
    micro_batches, mini_batches, chunks : In
        Micro-batches of a mini-batch, mini-batches of the run, chunks of an engine.
    precision, stored : In(4), stale : In(1)
        Planes to read and planes in the image; whether the model memory holds two versions.
    total_micro_batches, total_chunks : Out(40)
        Micro-batches of the run; chunks of an engine over the run. Both are below 2^40, see `RunSettings`.
    impossible : Out(1)
        There is no such run: it would have no micro-batch, chunk or plane, or planes that there are not; or its model
        or the lines of a micro-batch are more than the worker holds.
    done : Out(1)
        Pulse.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        super().__init__(
            {
                "start": In(1),
                "micro_batches": In(_MICRO_BITS),
                "mini_batches": In(_MINI_BITS),
                "chunks": In(_CHUNK_BITS),
                "precision": In(_PLANE_BITS),
                "stored": In(_PLANE_BITS),
                "stale": In(1),
                "total_micro_batches": Out(COUNT_BITS),
                "total_chunks": Out(COUNT_BITS),
                "impossible": Out(1),
                "done": Out(1),
            }
        )

    start: Signal
    micro_batches: Signal
    mini_batches: Signal
    chunks: Signal
    precision: Signal
    stored: Signal
    stale: Signal
    total_micro_batches: Signal
    total_chunks: Signal
    impossible: Signal
    done: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        factor = Signal(max(_MICRO_BITS, _CHUNK_BITS), reset_less=True)
        exhausted = Signal()  # factor is 0, worked out while it is shifted
        addend = Signal(COUNT_BITS, reset_less=True)
        lines = Signal(_CHUNK_BITS + _PLANE_BITS, reset_less=True)  # of a micro-batch
        checks = Signal(6, reset_less=True)
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
                    m.d.sync += [
                        factor.eq(self.precision),
                        addend.eq(self.chunks),
                        lines.eq(0),
                        exhausted.eq(0),
                    ]
                    m.next = "LINES"
            with m.State("LINES"):
                m.d.sync += [factor.eq(factor >> 1), addend.eq(addend << 1)]
                with m.If(factor[0]):
                    m.d.sync += lines.eq(lines + addend)
                with m.If(exhausted):
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += checks.eq(
                    Cat(
                        self.total_chunks == 0,
                        lines == 0,
                        lines > self._config.line_fifo_depth,
                        self.precision > self.stored,
                        self.stored > MAX_PRECISION,
                        (self.chunks << self.stale) > self._config.chunks,
                    )
                )
                m.next = "END"
            with m.State("END"):
                m.d.sync += [self.impossible.eq(checks.any()), self.done.eq(1)]
                m.next = "IDLE"
        return m
