"""Link faults and pauses of workers in the simulated cluster (``--fault``); `memory` has the stalls of memory."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.axi import FrameBeat


class Noise(wiring.Component):
    """Random number generator: a 32-bit number every cycle, by xorshift32 (Marsaglia, "Xorshift RNGs", 2003).

    Generators of different numbers ``instance`` have different sequences for the same seed.
    """

    seed: In(32)  # stable; taken in the first cycle after reset
    value: Out(32)

    def __init__(self, instance: int) -> None:
        self._instance = instance
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # A multiple of 2^32 / golden ratio spreads instance numbers over all bits. Of the states only 0, which xorshift
        # never leaves, is replaced: replacing more of them would give several seeds the same sequence.
        salt = ((self._instance + 1) * 0x9E3779B9) & 0xFFFFFFFF
        started, first, a, b = Signal(), Signal(32), Signal(32), Signal(32)
        m.d.comb += [first.eq(self.seed ^ salt), a.eq(self.value ^ (self.value << 13)), b.eq(a ^ (a >> 17))]
        m.d.sync += [started.eq(1), self.value.eq(b ^ (b << 5))]
        with m.If(~started):
            m.d.sync += self.value.eq(Mux(first == 0, 1, first))
        return m


_DEPTH = 256

_WEATHER = 4000  # instance number of the first link's generator for bursts; smaller ones belong to links and memories


class Link(wiring.Component):
    """A cable that delivers frames after at least ``delay`` cycles, and randomly loses, duplicates and reorders them::

        i ─┬─▶ in `delay` cycles ───────────▶┬─▶ o
           └─▶ 4 to 1024 cycles later ──────▶┘

    Most frames take the upper path, which keeps their order. A reordered frame takes the lower one, and a duplicated
    frame takes both. Like a cable, a link is always ready: a frame that finds its buffer full is lost. The number
    ``instance``, below 500, selects its random numbers.
    """

    i: In(stream.Signature(FrameBeat))
    o: Out(stream.Signature(FrameBeat))
    seed: In(32)
    # Chances of a frame in 1/65536, LINK_CHANCES; a lost frame is neither duplicated nor reordered.
    loss: In(16)
    duplication: In(16)
    reordering: In(16)
    # Gilbert-Elliott model: a burst begins or ends before a frame, and the chance of loss within it, instead of `loss`.
    burst_begin: In(16)
    burst_end: In(16)
    burst_loss: In(16)
    stall: In(8)  # chance per cycle that a frame that is due waits for another cycle, in 1/256
    hold: In(1)  # deliver no further frames; one that is offered already stays

    def __init__(self, delay: int, instance: int) -> None:
        if not 4 <= delay < 1 << 15:
            raise ValueError(f"delay must be 4 to 32767 cycles, not {delay}")
        self._delay = delay
        self._instance = instance
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.noise = noise = Noise(self._instance)
        m.submodules.fate = fate = Noise(500 + self._instance)
        m.submodules.weather = weather = Noise(_WEATHER + self._instance)
        m.d.comb += [noise.seed.eq(self.seed), fate.seed.eq(self.seed), weather.seed.eq(self.seed)]
        now = Signal(16)
        m.d.sync += now.eq(now + 1)
        bad = Signal()  # whether the last frame was in a burst
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
        """One of the two paths: the queue of its frames, and whether the first of them is due."""
        entry = data.StructLayout({"beat": FrameBeat, "due": 16})
        m.submodules[name] = queue = SyncFIFOBuffered(width=entry.size, depth=_DEPTH)
        sent = data.View(entry, queue.w_data)
        waiting = data.View(entry, queue.r_data)
        m.d.comb += [sent.beat.eq(self.i.payload), sent.due.eq(due), queue.w_en.eq(enter)]
        return queue, queue.r_rdy & ~(now - waiting.due)[15]


PAUSE_BITS = 12
"""A pause lasts 1 to 2^12 cycles, uniformly distributed."""


class Pause(wiring.Component):
    """Random pauses of up to ``2**bits`` cycles; ``instance`` is the number of its random number generator."""

    seed: In(32)
    chance: In(16)  # chance per cycle that a pause begins, in 1/65536
    paused: Out(1)

    def __init__(self, instance: int, bits: int = PAUSE_BITS) -> None:
        self._instance = instance
        self._bits = bits
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.noise = noise = Noise(self._instance)
        left = Signal(self._bits)  # cycles after this one
        m.d.comb += noise.seed.eq(self.seed)
        with m.If(self.paused):
            m.d.sync += [left.eq(left - 1), self.paused.eq(left != 0)]
        with m.Elif(noise.value[:16] < self.chance):
            m.d.sync += [left.eq(noise.value[16:]), self.paused.eq(1)]
        return m
