"""Cycles of a mini-batch in simulated RTL beside the least that the architecture allows.

    PYTHONPATH=tests python tests/bench/bench_cycles.py [--config small] [--batch 8 64 …] [--stalls 0.1]

The least is (B/8)·C·P cycles of lines plus what separates the last line of a mini-batch from the first of the next:
the way of the sums (last line in, dot products, AllReduce, loss, first backward line: L) and then one chunk's way
through gradient and update to the weights that the next line needs (K). Both follow from pairs of runs: the cycles
that more mini-batches take are those of the steady state, without the beginning and the end of a run.

With --stalls every channel of every memory port pauses in that part of all cycles, at random and apart from the others.
The run is then simulated without stalls too; the loss is what part more cycles it takes with them. However it is run,
the weights are compared with those of the emulator.

The last line says how many cycles are simulated in a second, in runs alone: without building or starting the simulator,
and without reading and writing its memories.
"""

import time
from typing import Any

import numpy as np
from support.random_image import random_image
from support.script import parser_of, show

from p4sgd.host.configuration import named_config
from p4sgd.host.devices import Device
from p4sgd.host.devices.faults import simulated_faults
from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.devices.session import Session
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim.emulator import EmulatedDevice


def layout_for(config: WorkerConfig, options: Any, batch: int) -> ImageLayout:
    """Layout of as many mini-batches as the longer run has."""
    return ImageLayout(config, options.features, options.mini_batches[1] * batch, options.precision)


def settings_for(layout: ImageLayout, options: Any, batch: int, mini_batches: int) -> RunSettings:
    """A run of so many mini-batches."""
    return RunSettings(
        FeatureFormat(options.precision, options.precision, False),
        layout.chunks,
        batch // BANKS,
        mini_batches,
        get_loss("logistic").label_mode,
        rate_mantissa=128,
        rate_exponent=20,
        workers=options.workers,
        stale=options.stale,
    )


Results = list[tuple[list[dict[str, int]], list[list[IntArray]]]]
"""For each mini-batch size the counters of worker 0 and the weights of all, after few mini-batches and after many."""


def run_all(device: Device, options: Any) -> tuple[Results, float]:
    """Run everything on a device; returns the results and the cycles in a second (an emulator has none)."""
    session = Session(device)
    session.load_table(get_loss("logistic").table())
    results: Results = []
    cycles, seconds = 0, 0.0
    for batch in options.batch:
        layout = layout_for(device.workers[0].config, options, batch)
        session.upload([random_image(layout, worker) for worker in range(options.workers)])
        counters, weights = [], []
        for mini_batches in options.mini_batches:
            session.configure(settings_for(layout, options, batch, mini_batches))
            begin = time.perf_counter()
            counters += session.run(ModelSource.ZERO).counters[:1]
            seconds += time.perf_counter() - begin
            weights.append(session.read_weights())
        cycles += sum(counted["CYCLES"] for counted in counters)
        results.append((counters, weights))
    device.close()
    return results, cycles / seconds


def main() -> None:
    """Print one table."""
    parser = parser_of(
        __doc__, features=1024, precision=8, workers=1, stale=False, stalls=0.0, seed=0, batch=[8, 16, 64, 256]
    )
    parser.add_argument("--config", default="small")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--mini-batches", type=int, nargs=2, default=[2, 4], help="of the two runs of a pair")
    options = parser.parse_args()
    config = named_config(options.config, options.set, hardware=True).config
    chances = [0.0, simulated_faults({"memory_stall": options.stalls})["memory_stall"]] if options.stalls else [0.0]
    results, rate = [], 0.0
    for chance in chances:
        device = RtlDevice(config, options.workers, seed=options.seed, memory_stall=chance)
        result, rate = run_all(device, options)
        results.append(result)
    expected, _ = run_all(EmulatedDevice(config, options.workers), options)
    rows = []
    few, many = options.mini_batches
    for case, batch in enumerate(options.batch):
        lines = batch // BANKS * layout_for(config, options, batch).chunks * options.precision
        smooth = None
        for chance, result in zip(chances, results, strict=True):
            (before, after), weights = result[case]
            period = {name: (after[name] - before[name]) / (many - few) for name in after}
            cycles = period["CYCLES"]
            smooth = smooth or cycles
            same = np.array_equal(weights, expected[case][1]) and np.any(weights[1])
            row = (
                str(batch),
                f"{chance:.2%}",
                str(lines),
                f"{cycles:.1f}",
                f"{cycles - lines:.1f}",
                f"{lines / cycles:.4f}",
                f"{cycles / smooth - 1:.2%}",
                *(f"{period[f'CYCLES_{name}']:.1f}" for name in ("BUSY", "MEMORY", "NETWORK", "CHAINING")),
                "same" if same else "DIFFER",
            )
            rows.append(row)
    columns = ("B", "stalls", "lines", "cycles", "beyond lines", "efficiency", "loss")
    show(f"{options}", (*columns, "busy", "memory", "network", "chaining", "weights"), rows)
    print(f"{rate:,.0f} cycles simulated in a second")


if __name__ == "__main__":
    main()
