"""Cycles of simulated mini-batches, beside the formula; and what losses of frames cost."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from p4sgd.host.devices.rtl import RtlDevice
from p4sgd.host.devices.session import Session
from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.host.errors import P4sgdError
from p4sgd.host.experiments.experiment import Cell, Chart, Finding, Source, Table, experiment
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import LABEL
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import UNITS, FeatureFormat, RunSettings
from p4sgd.hw.spec.timing import mini_batch_cycles

CONFIG = WorkerConfig(engines=2, ports=2, lanes=8, chunks=64, line_fifo_depth=512, slots=64)
"""A worker that is small, but has enough slots for the round trip of its sums."""

_MINI_BATCHES = (4, 8)
"""Of two runs: their difference is the time of mini-batches without the start and the end of a run."""


def random_image(layout: ImageLayout, seed: int) -> WorkerImage:
    """An image of random bits: what the hardware computes from it takes as long as anything else."""
    rng = np.random.default_rng(seed)
    labels = np.random.default_rng(0).choice([-1, 1], layout.micro_batches * BANKS)  # of every worker the same
    return WorkerImage(
        layout=layout,
        labels=(labels << LABEL.fraction).astype(np.int32),
        port_lines=tuple(
            rng.integers(0, 256, layout.lines_shape, np.uint8) for _ in range(layout.config.labels_memory)
        ),
    )


def settings_of(
    layout: ImageLayout, batch: int, mini_batches: int, workers: int, *, stale: bool = False
) -> RunSettings:
    """A run of so many mini-batches with the logistic loss, and with all planes of the image."""
    return RunSettings(
        features=FeatureFormat(layout.stored, layout.stored, False),
        chunks=layout.chunks,
        micro_batches=batch // BANKS,
        mini_batches=mini_batches,
        label_mode=get_loss("logistic").label_mode,
        rate_mantissa=128,
        rate_exponent=20,
        workers=workers,
        unit=layout.unit,
        stale=stale,
    )


def simulate(
    device: RtlDevice, chunks: int, precision: int, batch: int, runs: Sequence[int]
) -> tuple[list[int], float]:
    """Cycles of a simulated run of each number of mini-batches, and the seconds of all runs."""
    features = chunks * device.config.engines * device.config.lanes
    layout = ImageLayout(device.config, features, max(runs) * batch, precision, UNITS[0])
    session, workers = Session(device), len(device.workers)
    session.load_table(get_loss("logistic").table())
    session.upload([random_image(layout, worker) for worker in range(workers)])
    cycles, seconds = [], 0.0
    for mini_batches in runs:
        session.configure(settings_of(layout, batch, mini_batches, workers))
        begin = time.perf_counter()
        cycles.append(session.run(ModelSource.ZERO).counters[0]["CYCLES"])
        seconds += time.perf_counter() - begin
    return cycles, seconds


def compare(quick: bool) -> Finding:
    """Simulated cycles of mini-batches beside those of the formula."""
    from p4sgd.sim.cluster.prediction import network_cycles

    counts = [2] if quick else [1, 2, 4, 8, 16]
    cases = (
        [(32, 4, 16), (32, 8, 64), (2, 3, 64)]
        if quick
        else [
            (chunks, precision, batch)
            for chunks, precision in ((1, 1), (2, 3), (32, 1), (32, 4), (32, 8))
            for batch in (8, 16, 64, 128)
        ]
    )
    of_many = cases if quick else [case for case in cases if case[-1] == 64]  # their simulators are slow
    rows: list[list[Cell]] = []
    cycles, seconds = 0, 0.0
    try:
        for engines in counts:
            device = RtlDevice(replace(CONFIG, engines=engines), 1)
            for chunks, precision, batch in cases if engines <= 4 else of_many:
                found, took = simulate(device, chunks, precision, batch, _MINI_BATCHES)
                cycles, seconds = cycles + sum(found), seconds + took
                simulated = (found[1] - found[0]) / (_MINI_BATCHES[1] - _MINI_BATCHES[0])
                modelled = mini_batch_cycles(device.config, batch, chunks, precision, network_cycles(1))
                rows.append([engines, chunks, precision, batch, modelled, simulated, simulated / modelled - 1])
            device.close()
    except P4sgdError as error:
        return Finding(sentences=[f"The formula was not compared with the RTL: {error}."])
    columns = ("engines", "chunks an engine", "planes", "B", "formula, cycles", "RTL, cycles", "difference", "source")
    worst = max(abs(float(row[-1] or 0)) for row in rows)
    return Finding(
        [Table("Formula and RTL, one worker of 8 lanes", columns, [[*row, Source.SIMULATED] for row in rows])],
        [
            f"The simulated RTL takes the cycles of the formula within {worst:.2%}, in {len(rows)} cases, at "
            f"{cycles / seconds:,.0f} cycles a second of this machine."
        ],
    )


@experiment("E10", "Lost frames", "How much throughput is left on links that lose frames?")
def losses(quick: bool) -> Finding:
    """E10: mini-batches a second by the part of the frames that links lose."""
    workers = 1 if quick else 2  # one is simulated in E3, too
    chances = (0.0, 0.001, 0.01) if quick else (0.0, 1e-4, 0.001, 0.01, 0.05)
    batch, count = 64, 100 if quick else 400
    rows: list[list[Cell]] = []
    try:
        device = RtlDevice(CONFIG, workers)
    except P4sgdError as error:
        return Finding(skipped=f"{error}")
    base = 0.0
    for chance in chances:
        device.inject_faults(link_loss=chance)
        period = simulate(device, 16, 4, batch, [count])[0][0] / count
        base = base or period
        rows.append([chance, period, base / period, Source.SIMULATED])
    device.close()
    last = rows[-1]
    return Finding(
        [
            Table(
                f"Workers of 2 engines with 8 lanes: {workers}; B = {batch}, 16 chunks an engine, 4 planes",
                ("lost frames", "mini-batch, cycles", "throughput", "source"),
                rows,
                [Chart("lost frames", "throughput")],
                f"Means of {count} mini-batches. Packets are sent again after 2,500 cycles.",
            )
        ],
        [f"If links lose {last[0]:.1%} of the frames, {float(last[2] or 0):.0%} of the throughput is left."],
    )
