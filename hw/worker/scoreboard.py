"""When the forward pass may read the weights of a chunk, and which version of them."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["Scoreboard"]


class Scoreboard(wiring.Component):
    """Lets the forward pass of a mini-batch chase the last backward pass of the one before, chunk by chunk.

    One credit stands for one chunk whose weights are those of the mini-batch to come. A run begins with a credit for
    every chunk; the first micro-batch of a mini-batch spends them, the last backward pass earns them::

        micro-batch     first          others          last backward pass
        credits         C ──▶ 0        0 (not asked)   0 ──▶ C

    Other micro-batches need no credit: their weights do not change before their own sums have come. At the end of a
    run all credits are back, which is how the worker knows that every update is done.

    With ``stale`` a run begins with two credits for every chunk, so the forward pass is a mini-batch ahead and reads
    weights that lack one update: mini-batch k reads version k − 1 (0 and 1 both read version 0). Two versions are
    then in use, each in a half of the model memory: version v + 1 overwrites v − 1, which mini-batch v read to its end
    before its last backward pass began.

    Members
    -------
    start : In(1)
        Pulse before a run.
    reload : In(1)
        Pulse: the model is being loaded or cleared, which is done to the lower half.
    stale : In(1), chunks : In(17)
        Settings; stable.
    spend : In(1)
        Pulse: the forward pass has begun a chunk in the first micro-batch of a mini-batch.
    read_all : In(1)
        Pulse: the forward pass has taken the last line of a mini-batch.
    earn : In(1)
        Pulse: a chunk of the model has been written by the last backward pass of a mini-batch.
    earned_last : In(1)
        With ``earn``: it was the last chunk.
    credit : Out(1)
        A credit is there.
    settled : Out(1)
        All credits are there: no update is outstanding.
    read_half, write_half : Out(1)
        Halves of the model memory for forward passes and for final updates.
    latest_half : Out(1)
        Where the last whole version is.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._credit_bits = config.chunk_bits + 2
        inputs = ("start", "reload", "stale", "spend", "read_all", "earn", "earned_last")
        outputs = ("credit", "settled", "read_half", "write_half", "latest_half")
        super().__init__(
            {name: In(1) for name in inputs} | {name: Out(1) for name in outputs} | {"chunks": In(17)},
        )

    start: Signal
    reload: Signal
    stale: Signal
    chunks: Signal
    spend: Signal
    read_all: Signal
    earn: Signal
    earned_last: Signal
    credit: Signal
    settled: Signal
    read_half: Signal
    write_half: Signal
    latest_half: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        credits = Signal(self._credit_bits)
        all_credits = Signal(self._credit_bits, reset_less=True)
        m.d.sync += all_credits.eq(self.chunks << self.stale)
        m.d.comb += self.settled.eq(credits == all_credits)
        # What is asked for every line is a register of its own.
        with m.If(self.start):
            m.d.sync += [credits.eq(all_credits), self.credit.eq(1)]
        with m.Elif(self.earn & ~self.spend):
            m.d.sync += [credits.eq(credits + 1), self.credit.eq(1)]
        with m.Elif(self.spend & ~self.earn):
            m.d.sync += [credits.eq(credits - 1), self.credit.eq(credits != 1)]

        first_mini_batch = Signal()
        with m.If(self.reload):
            m.d.sync += self.latest_half.eq(0)
        with m.If(self.start):
            m.d.sync += [
                first_mini_batch.eq(1),
                self.read_half.eq(self.latest_half),
                self.write_half.eq(self.latest_half ^ self.stale),
            ]
        with m.Else():
            with m.If(self.read_all):
                m.d.sync += first_mini_batch.eq(0)
                with m.If(self.stale & ~first_mini_batch):
                    m.d.sync += self.read_half.eq(~self.read_half)
            with m.If(self.earn & self.earned_last):
                m.d.sync += [self.latest_half.eq(self.write_half), self.write_half.eq(self.write_half ^ self.stale)]
        return m
