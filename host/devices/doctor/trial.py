"""A small job of which the exact result is known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4sgd.host.devices.device import Device
from p4sgd.host.devices.session import Session
from p4sgd.host.losses import get_loss
from p4sgd.hw.spec.config import BANKS, WorkerConfig
from p4sgd.hw.spec.fixed import LABEL, IntArray
from p4sgd.hw.spec.image import ImageLayout
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import FeatureFormat, RunSettings
from p4sgd.sim import golden

__all__ = ["Trial"]

_PATIENCES = 50
"""Longest time of a run, by the patience of a worker."""

_FEATURES = FeatureFormat(stored=4, precision=4, signed=False)
_LOSS = "squared"


@dataclass(frozen=True)
class _Image:
    """A worker's slice of the job's data; ``q`` are features, int64 (8, features)."""

    layout: ImageLayout
    signed: bool
    labels: npt.NDArray[np.int32]
    q: IntArray

    def lines(self, number: int) -> npt.NDArray[np.uint8]:
        """As `p4sgd.host.devices.session.WorkerImage` has it."""
        result: npt.NDArray[np.uint8] = self.layout.pack_lines(self.q)[number]
        return result


class Trial:
    """A job whose runs are one AllReduce each, loaded into the workers.

    Parameters
    ----------
    device, session
        The cluster, and a session on it.

    Attributes
    ----------
    weights : list of int64 arrays
        What the golden model makes of the runs so far, for each worker.
    """

    def __init__(self, device: Device, session: Session) -> None:
        configs = [worker.config for worker in device.workers]
        self._session = session
        self._images = _images(configs)
        self._table = get_loss(_LOSS).table(configs[0].table_segments)
        self._settings = _settings(self._images)
        self._source = ModelSource.ZERO
        self.weights: list[IntArray] = [np.zeros(image.layout.features, np.int64) for image in self._images]
        session.upload(self._images)
        session.load_table(self._table)
        session.configure(self._settings)

    def run(self) -> tuple[dict[str, int], ...]:
        """Run all workers once; returns the counters of each.

        Raises
        ------
        P4sgdError
            As `Session.run`.
        """
        counters = self._session.run(self._source, timeout_s=_PATIENCES * self._session.network.patience_s).counters
        self._source = ModelSource.KEEP
        features, labels = [image.q for image in self._images], self._images[0].labels.astype(np.int64)
        self.weights = golden.train(features, labels, self.weights, self._table, self._settings).weights
        return counters


def _images(configs: Sequence[WorkerConfig]) -> list[_Image]:
    """A chunk of features for every engine, and labels of −1 and 1."""
    rng = np.random.default_rng(0)
    labels = rng.choice(LABEL.from_real([-1.0, 1.0]), BANKS).astype(np.int32)
    sizes = [config.engines * config.lanes for config in configs]
    return [
        _Image(
            ImageLayout(config, size, BANKS, _FEATURES.stored),
            _FEATURES.signed,
            labels,
            rng.integers(0, 1 << _FEATURES.precision, (BANKS, size)),
        )
        for config, size in zip(configs, sizes, strict=True)
    ]


def _settings(images: Sequence[_Image]) -> RunSettings:
    """A learning rate of which the weights change in every run and stay small, for any number of features."""
    features = sum(image.layout.features for image in images)
    return RunSettings(
        features=_FEATURES,
        chunks=1,
        micro_batches=1,
        mini_batches=1,
        label_mode=get_loss(_LOSS).label_mode,
        rate_mantissa=1,
        rate_exponent=features.bit_length() + 3,
        workers=len(images),
    )
