"""Activations as the hardware's features give them, without the rounding of activations."""

from collections.abc import Sequence

import numpy as np

from p4sgd.host.image import Image
from p4sgd.host.launch.communicator import ALONE, Communicator
from p4sgd.host.losses.loss import FloatArray
from p4sgd.hw.spec.fixed import WEIGHT, IntArray
from p4sgd.hw.spec.run import FeatureFormat
from p4sgd.sim import kernels

__all__ = ["quantised_activations"]


def quantised_activations(
    images: Sequence[Image],
    weights: Sequence[IntArray],
    features: FeatureFormat,
    samples: int,
    communicator: Communicator = ALONE,
) -> FloatArray:
    """z of the first ``samples`` samples: the exact dot products of stored features and integer weights.

    Parameters
    ----------
    images
        Those of the workers of this process.
    weights
        For each worker of the job int64 `WEIGHT` integers in the order of its image's features.
    features
        Planes that are read.
    samples
        Samples without padding.
    communicator
        The ranks that have the other images.

    Returns
    -------
    float64 (samples,); rounded only where a dot product exceeds 53 bits.
    """
    total = np.zeros(samples, np.int64)
    for image in images:
        layout, values = image.layout, weights[image.worker]
        padded = np.zeros(layout.padded_features)
        padded[: layout.features] = values
        lines = tuple(image.lines(memory) for memory in range(layout.config.labels_memory))
        dealt = np.ascontiguousarray(layout.deal(padded), np.float64)
        total += kernels.activations(lines, features.precision, features.signed, dealt)[:samples]
    total = communicator.all_sum(total)
    result: FloatArray = np.ldexp(total.astype(np.float64), -(WEIGHT.fraction + features.fraction))
    return result
