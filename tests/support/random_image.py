"""An image without data behind it."""

import numpy as np

from p4sgd.host.devices.worker_image import WorkerImage
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import LABEL
from p4sgd.hw.spec.image import ImageLayout


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
