"""An image without data behind it."""

import numpy as np

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import LABEL
from p4sgd.hw.spec.image import ImageLayout


class RandomImage:
    """An image of random bits: what the hardware computes from it takes as long as anything else."""

    signed = False
    importances = None
    exempt = None
    starts = None

    def __init__(self, layout: ImageLayout, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.layout = layout
        labels = np.random.default_rng(0).choice([-1, 1], layout.micro_batches * BANKS)  # of every worker the same
        self.labels = (labels << LABEL.fraction).astype(np.int32)
        self._lines = [rng.integers(0, 256, layout.lines_shape, np.uint8) for _ in range(layout.config.labels_memory)]

    def lines(self, number: int) -> np.ndarray:
        """As of `p4sgd.host.image.Image`."""
        return self._lines[number]
