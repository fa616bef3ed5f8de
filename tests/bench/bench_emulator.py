"""Samples per second of the emulated device beside scikit-learn's SGDClassifier, on the same dense data, in one run.

    python tests/bench/bench_emulator.py [--samples 20000] [--features 4096] [--epochs 3]

The emulator's time is that of whole epochs through the device: registers, run, weights read back. Preparing the image
is reported apart. Memory is what the process holds more than before the images were made, beside the stored planes.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import SGDClassifier

from p4sgd.host.data import Dataset, Scaling
from p4sgd.host.devices import open_device
from p4sgd.host.devices.session import Session
from p4sgd.host.image import partition, prepare_images
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import LABEL
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, RunSettings, choose_unit

CONFIG = WorkerConfig.u280()


def resident_bytes() -> int:
    """Memory of this process, in bytes, without what is only mapped."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def random_data(samples: int, features: int) -> Dataset:
    """Uniform features and the labels of a hidden plane."""
    rng = np.random.default_rng(0)
    values = rng.random((samples, features), np.float32)
    score = values @ rng.normal(size=features)
    return Dataset(values, np.where(score > np.median(score), 1.0, -1.0), "random")


def emulated(
    samples: int, features: int, precision: int, workers: int, batch: int, epochs: int
) -> tuple[float, float, float]:
    """Samples per second, seconds to prepare, and bytes held per byte of stored planes; in a process of its own."""
    data = random_data(samples, features)
    loss = get_loss("logistic")
    before = resident_bytes()
    begin = time.perf_counter()
    labels = LABEL.from_real(data.labels)
    scaling = Scaling.fit(data.features, "minmax")
    shards = partition(features, [CONFIG] * workers, bias=True, unit=choose_unit(features + 1))
    images = prepare_images(data, labels, scaling, shards, stored=precision, batch=batch)
    prepared = time.perf_counter() - begin
    device = open_device("emulator", CONFIG, workers)
    session = Session(device)
    session.upload(images)
    session.load_table(loss.table())
    settings = RunSettings(
        FeatureFormat(precision, precision, scaling.signed),
        images[0].layout.chunks,
        batch // 8,
        -(-data.samples // batch),
        loss.label_mode,
        rate_mantissa=128,
        rate_exponent=20,
        workers=workers,
        unit=shards[0].unit,
    )
    session.configure(settings)
    session.run(ModelSource.ZERO)  # compiles
    begin = time.perf_counter()
    for _ in range(epochs):
        session.run(ModelSource.KEEP)
        session.read_weights()
    seconds = time.perf_counter() - begin
    stored = sum(image.layout.lines_bytes * CONFIG.labels_memory for image in images)
    held = (resident_bytes() - before) / stored
    device.close()
    return data.samples * epochs / seconds, prepared, held


def scikit_learn(data: Dataset, dtype: type, epochs: int) -> float:
    """Samples per second of ``SGDClassifier.partial_fit``, one call an epoch."""
    features = np.asarray(data.features, dtype)
    model = SGDClassifier(loss="log_loss")
    model.partial_fit(features[:8], data.labels[:8], classes=[-1, 1])
    begin = time.perf_counter()
    for _ in range(epochs):
        model.partial_fit(features, data.labels)
    return data.samples * epochs / (time.perf_counter() - begin)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    data = random_data(options.samples, options.features)
    rivals = {
        name: scikit_learn(data, dtype, options.epochs)
        for name, dtype in (("float32", np.float32), ("float64", np.float64))
    }
    best = max(rivals.values())
    table = Table(title=f"{options.samples} × {options.features}, {options.epochs} epochs")
    for column in ("what", "samples/s", "× the faster SGDClassifier", "prepare s", "memory / planes"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, speed in rivals.items():
        table.add_row(f"SGDClassifier {name}", f"{speed:,.0f}", f"{speed / best:.2f}", "", "")
    del data
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for precision, workers, batch in product((8, 4, 1), (1, 4), (64, 1024)):
            sizes = options.samples, options.features
            speed, prepared, held = pool.submit(emulated, *sizes, precision, workers, batch, options.epochs).result()
            table.add_row(
                f"emulator P={precision} W={workers} B={batch}",
                f"{speed:,.0f}",
                f"{speed / best:.2f}",
                f"{prepared:.1f}",
                f"{held:.2f}",
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
