"""A cable between two ends, which may lose frames."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.sim.cluster.noise import Noise

__all__ = ["Link"]

_DEPTH = 64


class Link(wiring.Component):
    """Delivers frames in order, ``delay`` cycles or more after they were sent; loses some on purpose.

    Like a cable it is always ready: a frame that finds its buffer full is lost.

    Parameters
    ----------
    delay
        Cycles from end to end, MACs included.
    instance
        Number of the link, for its random numbers.

    Members
    -------
    i : In(stream of FrameBeat)
    o : Out(stream of FrameBeat)
    seed : In(32)
    loss : In(16)
        Chance that a frame is lost, in 1/65536.
    stall : In(8)
        Chance that a frame waits another cycle before it is delivered, in 1/256.
    """

    def __init__(self, delay: int, instance: int) -> None:
        if not 4 <= delay < 1 << 15:
            raise ValueError(f"delay must be 4 to 32767 cycles, not {delay}")
        self._delay = delay
        self._instance = instance
        super().__init__(
            {
                "i": In(stream.Signature(FrameBeat)),
                "o": Out(stream.Signature(FrameBeat)),
                "seed": In(32),
                "loss": In(16),
                "stall": In(8),
            }
        )

    i: stream.Interface
    o: stream.Interface
    seed: Signal
    loss: Signal
    stall: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.noise = noise = Noise(self._instance)
        m.d.comb += noise.seed.eq(self.seed)
        entry = data.StructLayout({"beat": FrameBeat, "due": 16})
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=entry.size, depth=_DEPTH)
        sent = data.View(entry, fifo.w_data)
        waiting = data.View(entry, fifo.r_data)
        now = Signal(16)
        due = Signal()
        m.d.sync += now.eq(now + 1)
        # A whole frame is one beat here, so losing a beat loses a frame.
        m.d.comb += [
            self.i.ready.eq(1),
            sent.beat.eq(self.i.payload),
            sent.due.eq(now + self._delay - 1),
            fifo.w_en.eq(self.i.valid & (noise.value[:16] >= self.loss)),
            due.eq(fifo.r_rdy & ~(now - waiting.due)[15] & (noise.value[16:24] >= self.stall)),
        ]
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [self.o.valid.eq(due), self.o.payload.eq(waiting.beat)]
            m.d.comb += fifo.r_en.eq(due)
        return m
