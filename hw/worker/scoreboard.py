"""Scoreboard of weights: which chunks are final for the next mini-batch, and where each version lies."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["Scoreboard"]


class Scoreboard(wiring.Component):
    """Scoreboard of weights, by which a forward pass follows the backward pass before it chunk by chunk.

    The forward pass of a mini-batch may read a chunk as soon as the last backward pass of the mini-batch before has
    made its weights final. Both passes go through the chunks in order, so a count of the final chunks not yet read
    replaces a bit for each. It is kept as credits: a final update earns one, the first micro-batch of a mini-batch
    spends one for every chunk. A run of C chunks begins with C credits::

        micro-batch     first          others           last backward pass
        credits         C ──▶ 0        0, not needed    0 ──▶ C

    The other micro-batches need no credits, because weights do not change before all sums of the mini-batch have come.
    At the end of a run all credits are back, which tells the engine that every update is done.

    With ``stale`` a run begins with 2·C credits, so the forward pass may be a mini-batch ahead, on weights that lack
    one update: mini-batch k reads version k − 1, or 0 for the first two. Two versions are then in use, one in each half
    of the model memory. Version v + 1 overwrites version v − 1, which mini-batch v has read to its end before its last
    backward pass begins.
    """

    start: In(1)  # pulse before a run
    reload: In(1)  # pulse: the model is being loaded or cleared, in the lower half
    # Settings of the run, stable.
    stale: In(1)
    chunks: In(17)
    spend: In(1)  # pulse: the forward pass has begun a chunk in the first micro-batch of a mini-batch
    read_all: In(1)  # pulse: the forward pass has taken the last line of a mini-batch
    earn: In(1)  # pulse: a final update has written a chunk
    earned_last: In(1)  # with `earn`: it was the last chunk, so a version is complete
    credit: Out(1)  # at least one credit: the weights of the next chunk are final
    settled: Out(1)  # all credits are back: no update is outstanding
    # Halves of the model memory: for forward passes, for final updates, and that of the latest complete version.
    read_half: Out(1)
    write_half: Out(1)
    latest_half: Out(1)

    def __init__(self, config: WorkerConfig) -> None:
        self._credit_bits = config.chunk_bits + 2
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        credits = Signal(self._credit_bits)
        all_credits = Signal(self._credit_bits, reset_less=True)
        m.d.sync += all_credits.eq(self.chunks << self.stale)
        m.d.comb += self.settled.eq(credits == all_credits)
        # `credit` is tested for every line, so it is a register instead of a comparison with 0.
        with m.If(self.start):
            m.d.sync += [credits.eq(all_credits), self.credit.eq(1)]
        with m.Elif(self.earn & ~self.spend):
            m.d.sync += [credits.eq(credits + 1), self.credit.eq(1)]
        with m.Elif(self.spend & ~self.earn):
            m.d.sync += [credits.eq(credits - 1), self.credit.eq(credits != 1)]

        # Without `stale` both halves stay the same. With it they alternate: readers change to the other half when they
        # have read a mini-batch to its end, but not after the first, because the second reads version 0 too; writers
        # change when a version is complete.
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
