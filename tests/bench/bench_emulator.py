"""Samples per second of the emulated device, on dense data.

    PYTHONPATH=tests python tests/bench/bench_emulator.py [--features 30 784 4096] [--batch 16 64 256 1024]

An epoch is a run of the device (`Device.wait`) within `p4sgd.host.training.train`. The row "whole epoch" adds what the
trainer does besides: registers, weights, and the losses of the model. Reading, scaling and packing are left out.

All take turns of a few epochs in one process; the first turn is not counted, and the table has medians over the epochs.
CPU time, which other programs disturb little, comes first, and in brackets the time that has passed. Every number of
threads gets processes of its own, in which no library may use more.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from support.script import CONSOLE, Cost, alone, parser_of, show, time_training

from p4sgd.host.data import Dataset
from p4sgd.host.errors import UserError
from p4sgd.host.training import TrainingOptions
from p4sgd.hw.spec.config import WorkerConfig


def measure(features: int, batch: int, threads: int, chosen: Any) -> tuple[dict[str, Cost], list[str]]:
    """Cost of a sample by row of the table, and who is left out; in a process of its own."""
    rng = np.random.default_rng(0)
    values = rng.random((chosen.samples, features), np.float32)
    score = values @ rng.normal(size=features)
    labels = np.where(score > np.median(score), 1.0, -1.0)
    data, epochs = Dataset(values, labels, "random"), max(2, min(20, 100_000_000 // values.size))
    contenders: dict[str, Callable[[], None]] = {}
    costs: dict[str, list[Cost]] = {}

    def add_emulator(planes: int, workers: int) -> None:
        options = TrainingOptions(
            loss=chosen.loss,
            epochs=epochs + 1,
            batch=batch,
            learning_rate=1 / features,
            schedule="constant",
            scaling="minmax",
            precision=planes,
            workers=workers,
        )
        name = f"p4sgd P={planes} W={workers}"

        def turn() -> None:
            _, runs, whole = time_training(data, options, WorkerConfig.u280())
            costs.setdefault(name, []).extend(runs)
            if (planes, workers) == (chosen.planes[0], chosen.workers[0]):
                costs.setdefault(f"{name}, whole epoch", []).extend(whole)

        contenders[name] = turn

    for planes in chosen.planes:
        for workers in chosen.workers:
            add_emulator(planes, workers)
    missing = []
    for name, turn in list(contenders.items()):
        try:
            turn()
        except UserError as error:
            missing.append(f"{name} is left out: {error}")
            del contenders[name]
    costs.clear()
    for _ in range(chosen.turns):
        for turn in contenders.values():
            turn()
    return {row: Cost.median(each) for row, each in costs.items()}, missing


def main() -> None:
    """Print one table for each number of features and of threads."""
    parser = parser_of(
        __doc__,
        samples=20_000,
        features=[30, 784, 4096],
        batch=[16, 64, 256, 1024],
        planes=[8, 4, 1],
        workers=[1, 8],
        threads=[1, 2],
        loss="logistic",
        turns=3,
    )
    chosen = parser.parse_args()
    for threads in chosen.threads:
        os.environ |= {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "OPENBLAS", "NUMBA")}
        CONSOLE.print(f"{threads} threads")
        for features in chosen.features:
            title = f"{chosen.samples:,} × {features:,}: thousand samples a second of CPU time (of time that passed)"
            rows: dict[str, list[str]] = {}
            for batch in chosen.batch:
                costs, missing = alone(measure, features, batch, threads, chosen)
                for row, cost in costs.items():
                    speeds = (chosen.samples / 1000 / seconds for seconds in (cost.cpu, cost.wall))
                    rows.setdefault(row, []).append("{:,.1f} ({:,.1f})".format(*speeds))
            show(
                title, ("", *(f"B = {batch}" for batch in chosen.batch)), ([row, *cells] for row, cells in rows.items())
            )
            CONSOLE.print(*missing, sep="\n", highlight=False)


if __name__ == "__main__":
    main()
