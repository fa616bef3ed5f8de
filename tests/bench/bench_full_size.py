"""An epoch of real data on simulated RTL of a board's size: how long it takes, and whether the emulator agrees.

    python tests/bench/bench_full_size.py [digits:3 breast_cancer …] [--config u280] [--workers 1] [--batch 64]

Both devices train with the same options; the weights are compared bit for bit. Compiling the simulator, minutes at a
board's size, is not counted, nor is reading the data.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from p4sgd.host.data import read_dataset
from p4sgd.host.devices import open_device
from p4sgd.host.training import TrainingOptions, train
from p4sgd.hw.spec.config import PRESETS


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", default=["digits:3", "breast_cancer"])
    parser.add_argument("--config", choices=PRESETS, default="u280")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--precision", type=int, default=TrainingOptions().precision)
    parser.add_argument("--batch", type=int, default=TrainingOptions().batch)
    options = parser.parse_args()
    chosen = replace(
        TrainingOptions(), epochs=1, workers=options.workers, precision=options.precision, batch=options.batch
    )
    table = Table(title=f"{options}")
    for column in ("data", "samples", "features", "loss", "rtl s", "emulator s", "weights"):
        table.add_column(column, justify="right")
    for name in options.data:
        data = read_dataset(name)
        weights, seconds, loss = [], [], 0.0
        for device_name in ("rtl", "emulator"):
            device = open_device(device_name, PRESETS[options.config](), options.workers)
            try:
                begin = time.perf_counter()
                result = train(data, chosen, device)
                seconds.append(time.perf_counter() - begin)
            finally:
                device.close()
            weights.append(result.model.weights)
            loss = result.metrics["train_loss"]
        table.add_row(
            name,
            str(data.samples),
            str(data.feature_count),
            f"{loss:.4f}",
            *(f"{second:.1f}" for second in seconds),
            "same" if np.array_equal(*weights) and weights[0].any() else "DIFFER",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
