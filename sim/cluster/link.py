"""A cable between two ends, which may lose, repeat, reorder and hold frames."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi_stream import FrameBeat
from p4sgd.sim.cluster.noise import Noise
from p4sgd.sim.cluster.protocol import LINK_CHANCES

__all__ = ["Link"]

_DEPTH = 256

_WEATHER = 4000
"""Number of the first link's generator for bursts; those before are taken by links and memories."""


class Link(wiring.Component):
    """Delivers frames ``delay`` cycles or more after they were sent; loses, repeats and reorders some on purpose::

        i ─┬─▶ in `delay` cycles ───────────▶┬─▶ o
           └─▶ 4 to 1024 cycles later ──────▶┘

    Most frames go straight on, in order. One that is to be overtaken takes the detour; one that is to come twice goes
    both ways. Like a cable it is always ready: a frame that finds its buffer full is lost.

    Parameters
    ----------
    delay
        Cycles from end to end, MACs included.
    instance
        Number of the link, below 500, for its random numbers.

    Members
    -------
    i : In(stream of FrameBeat)
    o : Out(stream of FrameBeat)
    seed : In(32)
    loss, duplication, reordering : In(16)
        Chance that a frame is lost, comes twice, or takes the detour, in 1/65536. One that is lost does neither.
    burst_begin, burst_end, burst_loss : In(16)
        Chance that a burst begins, or ends, before a frame; within one frames are lost with the last chance instead of
        ``loss`` (Gilbert-Elliott).
    stall : In(8)
        Chance that a frame waits another cycle before it is delivered, in 1/256.
    hold : In(1)
        Deliver nothing, but what was being delivered.
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
                "stall": In(8),
                "hold": In(1),
            }
            | {name: In(16) for name in LINK_CHANCES}
        )

    i: stream.Interface
    o: stream.Interface
    seed: Signal
    loss: Signal
    duplication: Signal
    reordering: Signal
    burst_begin: Signal
    burst_end: Signal
    burst_loss: Signal
    stall: Signal
    hold: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.noise = noise = Noise(self._instance)
        m.submodules.fate = fate = Noise(500 + self._instance)
        m.submodules.weather = weather = Noise(_WEATHER + self._instance)
        m.d.comb += [noise.seed.eq(self.seed), fate.seed.eq(self.seed), weather.seed.eq(self.seed)]
        now = Signal(16)
        m.d.sync += now.eq(now + 1)
        bad = Signal()  # in the last frame
        is_bad = bad ^ (weather.value[:16] < Mux(bad, self.burst_end, self.burst_begin))
        with m.If(self.i.valid):
            m.d.sync += bad.eq(is_bad)
        # A whole frame is one beat here, so losing a beat loses a frame.
        arrives = self.i.valid & (noise.value[:16] >= Mux(is_bad, self.burst_loss, self.loss))
        overtaken = fate.value[:16] < self.reordering
        repeated = fate.value[16:] < self.duplication
        soon = now + self._delay - 1
        late = soon + 4 + (noise.value[24:] << 2)
        straight, straight_is_due = self._path(m, "straight", arrives & (repeated | ~overtaken), soon, now)
        detour, detour_is_due = self._path(m, "detour", arrives & (repeated | overtaken), late, now)
        goes = (noise.value[16:24] >= self.stall) & ~self.hold
        m.d.comb += self.i.ready.eq(1)
        with m.If(~self.o.valid | self.o.ready):
            m.d.comb += [
                straight.r_en.eq(goes & straight_is_due),
                detour.r_en.eq(goes & detour_is_due & ~straight_is_due),
            ]
            m.d.sync += [
                self.o.valid.eq(straight.r_en | detour.r_en),
                self.o.payload.eq(Mux(straight_is_due, straight.r_data, detour.r_data)),  # the beat is the lower part
            ]
        return m

    def _path(self, m: Module, name: str, enter: Value, due: Value, now: Signal) -> tuple[SyncFIFOBuffered, Value]:
        """A way for frames, first in, first out: the queue, and whether its next frame is due."""
        entry = data.StructLayout({"beat": FrameBeat, "due": 16})
        m.submodules[name] = queue = SyncFIFOBuffered(width=entry.size, depth=_DEPTH)
        sent = data.View(entry, queue.w_data)
        waiting = data.View(entry, queue.r_data)
        m.d.comb += [sent.beat.eq(self.i.payload), sent.due.eq(due), queue.w_en.eq(enter)]
        return queue, queue.r_rdy & ~(now - waiting.due)[15]
