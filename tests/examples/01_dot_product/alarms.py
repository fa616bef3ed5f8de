"""A design that raises an alarm for each of eight samples whose dot product with fixed weights is above a limit."""

import numpy as np
from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from p4sgd.hw.datapath.forward import DotProduct
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, WEIGHT, round_half_up
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.hw.verilog import to_verilog
from p4sgd.sim import golden

CONFIG = WorkerConfig(lanes=8, chunks=2)
FORM = FeatureFormat(stored=4, precision=4, signed=False)


class Alarms(wiring.Component):
    """``weights`` are eight `WEIGHT` integers, ``limit`` is an `ACTIVATION` integer; features are those of `FORM`."""

    def __init__(self, weights: list[int], limit: int) -> None:
        self._weights, self._limit = weights, limit
        ports = {
            "start": In(1),  # pulse before the first line
            "lines": In(stream.Signature(CONFIG.line_bits)),  # four planes for each eight samples
            "valid": Out(1),  # pulse: `alarms` are those of the next eight samples
            "alarms": Out(8),
        }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.dot_product = dot = DotProduct(CONFIG)
        wiring.connect(m, wiring.flipped(self.lines), dot.lines)
        # One chunk of eight features: its weights are all that is ever read, so they may be constants.
        m.d.comb += [port.eq(weight) for port, weight in zip(dot.weights.data, self._weights, strict=True)]
        m.d.comb += [
            *(dot.precision.eq(FORM.precision), dot.signed.eq(FORM.signed), dot.chunks.eq(1)),
            *(dot.micro_batches.eq(1), dot.start.eq(self.start), dot.kept.ready.eq(1)),
            *(dot.permit_micro_batch.eq(1), dot.permit_chunk.eq(1)),
        ]
        limit = self._limit << FORM.fraction  # dots have this many more fraction bits
        m.d.sync += self.valid.eq(dot.dots.valid)
        m.d.sync += self.alarms.eq(Cat(each > limit for each in dot.dots.payload))
        return m


def main() -> None:
    """Simulate it with random samples, and compare with NumPy."""
    rng = np.random.default_rng(1)
    weights, limit = WEIGHT.from_real(rng.normal(size=8)), int(ACTIVATION.from_real(0.25))
    q = rng.integers(0, 16, (64, 8))
    exact = golden.dot(q, weights, 8)
    expected = round_half_up(exact, FORM.forward_shift).sum(axis=1) > limit
    layout = ImageLayout(CONFIG, features=8, samples=64, stored=4, unit=8)
    lines = [int.from_bytes(line.tobytes(), "little") for line in layout.pack_lines(q).reshape(-1, CONFIG.line_bytes)]
    design, found = Alarms(weights.tolist(), limit), []

    async def send(ctx):
        await ctx.tick().repeat(2)
        ctx.set(design.start, 1)
        await ctx.tick()
        ctx.set(design.start, 0)
        ctx.set(design.lines.valid, 1)
        for line in lines:
            ctx.set(design.lines.payload, line)
            await ctx.tick().until(design.lines.ready)
        ctx.set(design.lines.valid, 0)

    async def receive(ctx):
        while len(found) < expected.size:
            (alarms,) = await ctx.tick().sample(design.alarms).until(design.valid)
            found.extend(bool(alarms >> bank & 1) for bank in range(8))

    simulator = Simulator(design)
    simulator.add_clock(4e-9)
    simulator.add_testbench(send)
    simulator.add_testbench(receive)
    simulator.run_until(4e-9 * 1000)
    assert found == expected.tolist()
    print(f"{sum(found)} alarms of {len(found)} samples, as NumPy says")
    print(f"{len(to_verilog(design, 'alarms').splitlines()):,} lines of Verilog")


if __name__ == "__main__":
    main()
