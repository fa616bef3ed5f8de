"""A mini-batch of logistic regression on two workers, step by step, and then on a device."""

import contextlib
import sys

import numpy as np

from p4sgd.host.devices import open_device
from p4sgd.host.devices.session import Session
from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec.config import WorkerConfig
from p4sgd.hw.spec.fixed import ACTIVATION, LABEL, RESIDUAL, WEIGHT
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim import golden

WORKERS, FEATURES, SAMPLES = 2, 16, 16  # features of each worker
CONFIG = WorkerConfig.tiny()
LOSS = get_loss("logistic")
SETTINGS = RunSettings(
    features=FeatureFormat(stored=4, precision=4, signed=False),
    chunks=2,
    micro_batches=SAMPLES // 8,
    mini_batches=1,
    label_mode=LOSS.label_mode,
    rate_mantissa=128,  # the learning rate by the batch is 128 · 2^-10
    rate_exponent=10,
    workers=WORKERS,
    unit=8,
)


def by_hand(q: list[np.ndarray], y: np.ndarray, weights: list[np.ndarray]) -> list[np.ndarray]:
    """The weights after a mini-batch: what engines, switch and loss unit do, one after another."""
    table, flags, updated = LOSS.table(), golden.Flags(), list(weights)
    for first in range(0, SAMPLES, 8):
        rows = slice(first, first + 8)
        # Forward: each worker's dot products are rounded, and clamped so that their sum cannot overflow.
        dots = [golden.dot(q[i][rows], weights[i], SETTINGS.unit) for i in range(WORKERS)]
        partials = [golden.partial(golden.activation(each, SETTINGS), SETTINGS, flags) for each in dots]
        z = golden.all_reduce(partials)  # the switch
        # Backward: from sums to residuals by the loss table, times the learning rate, times the features.
        g = golden.residual(z, y[rows], table, SETTINGS.label_mode, flags)
        delta = golden.delta(g, SETTINGS)
        updated = [
            golden.update(updated[i], golden.gradient(q[i][rows], delta), SETTINGS, flags) for i in range(WORKERS)
        ]
        print(f"sample {first}: partials {[f'{ACTIVATION.to_real(each[0]):.4f}' for each in partials]},", end=" ")
        print(f"z = {ACTIVATION.to_real(z[0]):.4f}, residual {RESIDUAL.to_real(g[0]):.4f}")
    return updated


def on_device(name: str, q: list[np.ndarray], y: np.ndarray, weights: list[np.ndarray]) -> list[np.ndarray]:
    """The same by a device, which knows memory and registers only."""
    layout = ImageLayout(CONFIG, FEATURES, SAMPLES, SETTINGS.features.stored, SETTINGS.unit)
    images = [
        WorkerImage(layout=layout, labels=y.astype(np.int32), port_lines=tuple(layout.pack_lines(each))) for each in q
    ]
    with contextlib.closing(open_device(name, CONFIG, WORKERS)) as device:
        session = Session(device)
        session.upload(images)
        session.load_table(LOSS.table())
        session.configure(SETTINGS)
        session.write_weights([layout.scatter(layout.pad(each)) for each in weights])
        session.run(ModelSource.MEMORY)
        return [layout.unpad(layout.gather(each)) for each in session.read_weights()]


def main(device: str = "emulator") -> None:
    """Train by hand and on a device, and compare."""
    rng = np.random.default_rng(1)
    q = [rng.integers(0, 16, (SAMPLES, FEATURES)) for _ in range(WORKERS)]
    y = rng.choice([-1, 1], SAMPLES) << LABEL.fraction
    weights = [WEIGHT.from_real(rng.normal(size=FEATURES) / 8) for _ in range(WORKERS)]
    expected, got = by_hand(q, y, weights), on_device(device, q, y, weights)
    assert all(map(np.array_equal, got, expected))
    assert not any(map(np.array_equal, got, weights))
    print(f"{device}: {sum(each.size for each in got)} weights are equal to the last bit")


if __name__ == "__main__":
    main(*sys.argv[1:])
