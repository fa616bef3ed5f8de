"""Round 1: from the dot products of all engines to partial activations."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from p4sgd.hw.forward.adder_tree import AdderTree, tree_latency
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, MAX_PRECISION, WEIGHT

__all__ = ["PartialSum"]

_LOW = 32
_BASE_SHIFT = WEIGHT.fraction - ACTIVATION.fraction


class PartialSum(wiring.Component):
    """Adds the dot products of the engines, rounds half up to `ACTIVATION`, clamps to ±``limit``.

    Sums are wider than one carry chain, so low and high halves are added apart. The stages on each bank, each ending
    in a register::

        AdderTree of low halves ──▶ + half ──┐
        AdderTree of high halves ────────────┴▶ carry ──▶ >> shift ──▶ compare with ±limit ──▶ clamp ──▶ FIFO

    One micro-batch a cycle; `latency` cycles from the last engine's ``dots`` to ``partials``.

    Members
    -------
    dots : In(stream of ArrayLayout(signed(dot_bits), 8)).array(engines)
        One item of each engine makes one partial.
    partials : Out(stream of ArrayLayout(ACTIVATION, 8))
    precision : In(4), signed : In(1)
        Settings; stable. The shift is 7 + precision − signed.
    limit : In(31)
        Largest magnitude of a partial; stable.
    clamped : Out(1)
        Pulse: a partial was clamped.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._depth = 8
        self._tree_latency = tree_latency(config.engines)
        self.latency = self._tree_latency + 5 + 2
        super().__init__(
            {
                "dots": In(stream.Signature(data.ArrayLayout(signed(config.dot_bits), BANKS))).array(config.engines),
                "partials": Out(stream.Signature(data.ArrayLayout(signed(ACTIVATION.width), BANKS))),
                "precision": In(4),
                "signed": In(1),
                "limit": In(ACTIVATION.width - 1),
                "clamped": Out(1),
            }
        )

    dots: list[stream.Interface]
    partials: stream.Interface
    precision: Signal
    signed: Signal
    limit: Signal
    clamped: Signal

    def elaborate(self, platform: object) -> Module:
        m = Module()

        # An item is taken from all engines at once, when the FIFO is sure to have room for the result.
        room = Signal(range(self._depth + 1), init=self._depth)
        taken = Signal()
        m.d.comb += taken.eq(Cat(engine.valid for engine in self.dots).all() & (room != 0))
        for engine in self.dots:
            m.d.comb += engine.ready.eq(taken)
        m.d.sync += room.eq(room - taken + (self.partials.valid & self.partials.ready))
        valid = taken
        for stage in range(self._tree_latency + 5):
            later = Signal(name=f"valid{stage}")
            m.d.sync += later.eq(valid)
            valid = later

        shift = Signal(range(MAX_PRECISION + 1), reset_less=True)  # beyond _BASE_SHIFT
        half = Signal(_BASE_SHIFT + MAX_PRECISION, reset_less=True)
        m.d.sync += [
            shift.eq(self.precision - self.signed),
            half.eq(Const(1 << (_BASE_SHIFT - 1)) << shift),
        ]

        m.submodules.results = results = SyncFIFOBuffered(width=BANKS * ACTIVATION.width, depth=self._depth)
        clamps = Signal(BANKS, reset_less=True)
        banks = [self._bank(m, bank, shift, half, clamps[bank]) for bank in range(BANKS)]
        m.d.comb += [
            self.clamped.eq(valid & clamps.any()),
            results.w_data.eq(Cat(banks)),
            results.w_en.eq(valid),
            self.partials.payload.eq(results.r_data),
            self.partials.valid.eq(results.r_rdy),
            results.r_en.eq(self.partials.ready),
        ]
        return m

    def _bank(self, m: Module, bank: int, shift: Signal, half: Signal, clamped: Value) -> Signal:
        """Build one bank; returns its partial, with ``clamped`` in the same cycle."""
        engines = self._config.engines
        high_bits = self._config.dot_bits - _LOW
        lows = AdderTree(engines, _LOW + 1)
        highs = AdderTree(engines, high_bits)
        m.submodules[f"lows{bank}"] = lows
        m.submodules[f"highs{bank}"] = highs
        for index, engine in enumerate(self.dots):
            m.d.comb += [
                lows.i[index].eq(engine.payload[bank][:_LOW]),  # unsigned
                highs.i[index].eq(engine.payload[bank][_LOW:].as_signed()),
            ]
        low = Signal(signed(lows.out_width + 1), name=f"low_{bank}", reset_less=True)
        high = Signal(signed(highs.out_width), name=f"high_{bank}", reset_less=True)
        total = Signal(signed(highs.out_width + 1 + _LOW), name=f"total_{bank}", reset_less=True)
        rounded = Signal(signed(len(total) - _BASE_SHIFT), name=f"rounded_{bank}", reset_less=True)
        m.d.sync += [
            low.eq(lows.o + half),
            high.eq(highs.o),
            total.eq(Cat(low[:_LOW], (high + (low >> _LOW))[: highs.out_width + 1])),
            rounded.eq(total[_BASE_SHIFT:].as_signed() >> shift),
        ]
        # Where it fits the width of an activation, compare; where not, its sign says which limit it takes.
        over = Signal(name=f"over_{bank}", reset_less=True)
        under = Signal(name=f"under_{bank}", reset_less=True)
        value = Signal(signed(ACTIVATION.width), name=f"value_{bank}", reset_less=True)
        narrow = rounded[: ACTIVATION.width].as_signed()
        top = rounded[ACTIVATION.width - 1 :]
        fits = top.all() | ~top.any()
        m.d.sync += [
            over.eq(Mux(fits, narrow > self.limit, ~rounded[-1])),
            under.eq(Mux(fits, narrow + self.limit < 0, rounded[-1])),
            value.eq(narrow),
        ]
        partial = Signal(signed(ACTIVATION.width), name=f"partial_{bank}", reset_less=True)
        m.d.sync += [
            partial.eq(Mux(over, self.limit, Mux(under, -self.limit, value))),
            clamped.eq(over | under),
        ]
        return partial
