"""Partial activations: the sum over all engines of a worker, clamped."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from p4sgd.hw.bus.stream import RegisteredValidFIFO, ValidSignature
from p4sgd.hw.primitives import AdderTree, Component, pipeline
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, MAX_PRECISION
from p4sgd.hw.spec.timing import tree_latency

__all__ = ["PartialSum"]


_LOW = 32  # bits of the low half of a sum


class PartialSum(Component):
    """Sum of the engines' rounded dot products, clamped to ±``limit``.

    The sums are too wide for one carry chain, so their halves are added separately. The stages on each bank::

        dots ──▶ register ──▶ FIFO ─┬▶ AdderTree of low halves ───┐
                                    └▶ AdderTree of high halves ──┴▶ carry ──▶ shift, compare with ±limit ─┐
                                                                             partials ◀── clamp into FIFO ◀┘

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
        return 2 + tree_latency(config.engines) + 2 + 1

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
        valid = pipeline(m, taken, self._tree_latency + 2, "valid")[-1]

        shift = Signal(range(MAX_PRECISION + 1), reset_less=True)
        kept = Signal(MAX_PRECISION, reset_less=True)  # bit i is set unless a shift drops bit i
        lowest = Signal(signed(ACTIVATION.width), reset_less=True)
        m.d.sync += [
            shift.eq(self.format_precision - self.format_signed),
            kept.eq(Const(-1, signed(MAX_PRECISION)) << shift),
            lowest.eq(-self.partial_limit),
        ]

        m.submodules.results = results = RegisteredValidFIFO(BANKS * ACTIVATION.width, config.in_flight)
        clamps = Signal(BANKS)
        layout = data.ArrayLayout(signed(config.dot_bits), BANKS)
        items = [data.View(layout, queue.o.payload) for queue in queues]
        banks = [
            self._bank(m, bank, [item[bank] for item in items], (shift, kept, lowest), clamps[bank])
            for bank in range(BANKS)
        ]
        m.d.sync += self.status_partial_clamped.eq(valid & clamps.any())
        m.d.comb += [
            results.i.payload.eq(Cat(banks)),
            results.i.valid.eq(valid),
            self.partials.payload.eq(results.o.payload),
            self.partials.valid.eq(results.o.valid),
            results.o.ready.eq(self.partials.ready),
        ]
        return m

    def _bank(self, m: Module, bank: int, dots: list[Value], settings: tuple[Signal, ...], clamped: Value) -> Value:
        """Build one bank; returns its partial, which no register holds; ``clamped`` is set in the same cycle."""
        shift, kept, lowest = settings
        engines = self._config.engines
        # The tree adds signed numbers: inverting the top bit of a low half subtracts 2^31, which is added after the
        # tree.
        lows = AdderTree(engines, _LOW)
        highs = AdderTree(engines, self._config.dot_bits - _LOW)
        m.submodules[f"lows{bank}"] = lows
        m.submodules[f"highs{bank}"] = highs
        for index, dot in enumerate(dots):
            m.d.comb += [
                lows.i[index].eq(Cat(dot[: _LOW - 1], ~dot[_LOW - 1]).as_signed()),
                highs.i[index].eq(dot[_LOW:].as_signed()),
            ]
        width = max(highs.out_width + 1 + _LOW, ACTIVATION.width + MAX_PRECISION)
        total = Signal(signed(width), name=f"total_{bank}", reset_less=True)
        top = lows.o[_LOW - 1]
        carry = (lows.o >> _LOW) + Mux(top, (engines + 1) // 2, engines // 2)
        m.d.sync += total.eq(Cat(lows.o[: _LOW - 1], top ^ (engines % 2), highs.o + carry).as_signed())
        # Only a sum that fits an activation is compared with the limits; of others the sign says which they take. It
        # fits if its bits from the activation's sign on are equal, of which the lowest differ with the shift.
        narrow = (total >> shift)[: ACTIVATION.width].as_signed()
        high = total[ACTIVATION.width - 1 :]
        changes = high[1:] ^ high[:-1]
        flags = ("above", "below", "fits", "negative")
        above, below, fits, negative = (Signal(name=f"{name}_{bank}", reset_less=True) for name in flags)
        value = Signal(signed(ACTIVATION.width), name=f"value_{bank}", reset_less=True)
        m.d.sync += [
            above.eq(narrow > self.partial_limit),
            below.eq(narrow < lowest),
            fits.eq(~(changes & (kept | -1 << MAX_PRECISION)).any()),
            negative.eq(total[-1]),
            value.eq(narrow),
        ]
        over = Mux(fits, above, ~negative)
        under = Mux(fits, below, negative)
        m.d.comb += clamped.eq(over | under)
        return Mux(over, self.partial_limit, Mux(under, lowest, value)).as_signed()
