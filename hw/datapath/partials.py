"""Partial activations: the sum over all engines of a worker, clamped."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import RegisteredValidFIFO, ValidSignature
from p4sgd.hw.primitives import AdderTree, Component, overflows, pipeline
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, MAX_PRECISION
from p4sgd.hw.spec.timing import tree_latency

__all__ = ["PartialSum"]


_LOW = 32  # bits of the low half of a sum


class PartialSum(Component):
    """Sum of the engines' rounded dot products, clamped to ±``limit``.

    The sums are too wide for one carry chain, so their halves are added separately. The stages on each bank::

        dots ──▶ register ──▶ FIFO ─┬▶ AdderTree of low halves ───┐
                                    └▶ AdderTree of high halves ──┴▶ carry ───────────┐
                        partials ◀── FIFO ◀── clamp ◀── compare with ±limit ◀─ shift ◀┘

    Throughput is a micro-batch a cycle; ``partials`` come `latency` cycles after the last engine's ``dots``. FIFOs have
    room for all micro-batches in flight, so no stage ever waits.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._tree_latency = tree_latency(config.engines)
        dots = ValidSignature(data.ArrayLayout(signed(config.dot_bits), BANKS))
        ports = {
            # From each engine its `dots` (`DotProduct`), one for each sample of a micro-batch. At most
            # `WorkerConfig.in_flight` micro-batches may be ahead of `partials`.
            "dots": In(dots).array(config.engines),
            # One `ACTIVATION` for each sample of a micro-batch.
            "partials": Out(stream.Signature(data.ArrayLayout(signed(ACTIVATION.width), BANKS))),
            # Settings of the run, stable. The last precision − signed bits of all `dots` are 0 and are dropped.
            "format_precision": In(4),
            "format_signed": In(1),
            "partial_limit": In(ACTIVATION.width - 1),  # largest magnitude of a partial; stable
            "status_partial_clamped": Out(1),  # pulse: a partial was clamped
        }
        super().__init__(ports)

    @staticmethod
    def latency(config: WorkerConfig) -> int:
        """Cycles from the last engine's dot products to the partials."""
        return 2 + tree_latency(config.engines) + 5 + 1

    def elaborate(self, platform: object) -> Module:
        config = self._config
        m = Module()

        # Engines are far apart on the chip, hence the register, and not in step, hence the FIFO.
        queues = []
        for index, engine in enumerate(self.dots):
            queue = RegisteredValidFIFO(BANKS * config.dot_bits, config.in_flight)
            m.submodules[f"dots{index}"] = queue
            came = Signal(name=f"came{index}")
            dots = Signal(BANKS * config.dot_bits, name=f"dots{index}", reset_less=True)
            m.d.sync += [came.eq(engine.valid), dots.eq(engine.payload)]
            m.d.comb += [queue.i.valid.eq(came), queue.i.payload.eq(dots)]
            queues.append(queue)
        taken = Signal()
        m.d.comb += taken.eq(Cat(queue.o.valid for queue in queues).all())
        for queue in queues:
            m.d.comb += queue.o.ready.eq(taken)
        valid = pipeline(m, taken, self._tree_latency + 5, "valid")[-1]

        shift = Signal(range(MAX_PRECISION + 1), reset_less=True)
        lowest = Signal(signed(ACTIVATION.width), reset_less=True)
        m.d.sync += [shift.eq(self.format_precision - self.format_signed), lowest.eq(-self.partial_limit)]

        m.submodules.results = results = RegisteredValidFIFO(BANKS * ACTIVATION.width, config.in_flight)
        clamps = Signal(BANKS, reset_less=True)
        layout = data.ArrayLayout(signed(config.dot_bits), BANKS)
        items = [data.View(layout, queue.o.payload) for queue in queues]
        banks = [
            self._bank(m, bank, [item[bank] for item in items], shift, lowest, clamps[bank]) for bank in range(BANKS)
        ]
        m.d.comb += [
            self.status_partial_clamped.eq(valid & clamps.any()),
            results.i.payload.eq(Cat(banks)),
            results.i.valid.eq(valid),
            self.partials.payload.eq(results.o.payload),
            self.partials.valid.eq(results.o.valid),
            results.o.ready.eq(self.partials.ready),
        ]
        return m

    def _bank(self, m: Module, bank: int, dots: list[Value], shift: Signal, lowest: Signal, clamped: Value) -> Signal:
        """Build one bank; returns its partial. ``clamped`` is set in the same cycle."""
        engines = self._config.engines
        high_bits = self._config.dot_bits - _LOW
        # The tree adds signed numbers: inverting the top bit of a low half subtracts 2^31, which is added after the
        # tree.
        lows = AdderTree(engines, _LOW)
        highs = AdderTree(engines, high_bits)
        m.submodules[f"lows{bank}"] = lows
        m.submodules[f"highs{bank}"] = highs
        for index, dot in enumerate(dots):
            m.d.comb += [
                lows.i[index].eq(Cat(dot[: _LOW - 1], ~dot[_LOW - 1]).as_signed()),
                highs.i[index].eq(dot[_LOW:].as_signed()),
            ]
        low = Signal(lows.out_width, name=f"low_{bank}", reset_less=True)
        high = Signal(signed(highs.out_width), name=f"high_{bank}", reset_less=True)
        total = Signal(signed(highs.out_width + 1 + _LOW), name=f"total_{bank}", reset_less=True)
        shifted = Signal.like(total, name=f"shifted_{bank}", reset_less=True)
        m.d.sync += [
            low.eq(lows.o + (engines << (_LOW - 1))),
            high.eq(highs.o),
            total.eq(Cat(low[:_LOW], (high + (low >> _LOW))[: highs.out_width + 1])),
            shifted.eq(total >> shift),
        ]
        # Only a sum that fits an activation is compared with the limits; of others the sign says which they take.
        flags = ("above", "below", "fits", "negative")
        above, below, fits, negative = (Signal(name=f"{name}_{bank}", reset_less=True) for name in flags)
        value = Signal(signed(ACTIVATION.width), name=f"value_{bank}", reset_less=True)
        narrow = shifted[: ACTIVATION.width].as_signed()
        m.d.sync += [
            above.eq(narrow > self.partial_limit),
            below.eq(narrow < lowest),
            fits.eq(~overflows(shifted, ACTIVATION)),
            negative.eq(shifted[-1]),
            value.eq(narrow),
        ]
        over = Mux(fits, above, ~negative)
        under = Mux(fits, below, negative)
        partial = Signal(signed(ACTIVATION.width), name=f"partial_{bank}", reset_less=True)
        m.d.sync += [
            partial.eq(Mux(over, self.partial_limit, Mux(under, lowest, value))),
            clamped.eq(over | under),
        ]
        return partial
