"""Features as the hardware reads them: their linear map, their means, and the norms of samples.

The search for the learning rate begins at a rate that follows from the norms. The means show what rounding adds to
activations.
"""

import mmap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Scaling
from p4sgd.host.data.matrix import Features
from p4sgd.host.data.quantization import feature_values, full_value
from p4sgd.host.data.sample_weights import average
from p4sgd.host.data.scaling import bias_integer
from p4sgd.host.data.statistics import column_blocks
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.precondition import Whitening
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.fixed import IntArray

_SAMPLED_VALUES = 1 << 22
"""Number of values from which the mean norm of a sample is computed."""

_BLOCK_VALUES = 1 << 18
"""Number of values that are scaled at once."""

_BLOCK_STORED = 1 << 15
"""Number of stored values of sparse features that are scaled at once, each of which takes some 60 bytes meanwhile."""

_SUM_FRACTION = 31
"""Fraction bits of a value in `feature_sums`: the sums of 2^32 samples fit int64."""


class HardwareMap(NamedTuple):
    """Linear map of raw features to what the hardware reads: slope · feature + offset, rounded.

    Parameters
    ----------
    slope, offset
        float64 (features,), and (features,) or (features + 1,) with the bias last.
    mixing
        float64 (features, BLOCK + 1): mixes these numbers, see `p4sgd.host.precondition.Whitening.mixing`; ``None``
        without preconditioning.
    """

    slope: FloatArray
    offset: FloatArray
    mixing: FloatArray | None


def hardware_values(scaling: Scaling | Whitening, options: TrainingOptions) -> HardwareMap:
    """The map that a scaling and the options of a run make."""
    slope, offset = feature_values(scaling.scale, scaling.offset, options.stored, scaling.signed)
    mixing = None
    if isinstance(scaling, Whitening):
        one = full_value(options.stored, scaling.signed)
        offset = offset - one * scaling.middle
        mixing = scaling.mixing
        mixing[:, -1] *= one
    if options.bias:
        # Zeros that take memory only where others are written; `numpy.zeros` may write those of millions of columns.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        extended = np.frombuffer(mmap.mmap(-1, (offset.size + 1) * offset.itemsize, flags=private))
        if offset.any():
            extended[:-1] = offset
        extended[-1] = _bias_value(options.stored, scaling.signed)
        offset = extended
    return HardwareMap(slope, offset, mixing)


def _bias_value(stored: int, signed: bool) -> float:
    """The bias as the hardware reads it from all planes."""
    return bias_integer(stored, signed) / 2.0 ** (stored - int(signed))


def sampled(samples: int, features: int) -> int:
    """Number of samples, the first ones in random order, from which `mean_square` is computed."""
    return max(1, min(samples, _SAMPLED_VALUES // features))


def square_norms(features: Features, scaling: Scaling | Whitening) -> FloatArray:
    """Squared norms of scaled samples, with values beyond the range clamped as in training: float64 (samples,).

    The bits of a norm do not depend on the samples beside it, so that every division of the samples gives the same.
    """
    squares = np.empty(features.shape[0])
    step = max(1, _BLOCK_VALUES // features.shape[1])
    for first, scaled in zip(range(0, squares.size, step), _scaled(features, scaling, step), strict=True):
        squares[first : first + step] = np.einsum("ij,ij->i", scaled, scaled)
    return squares


def _scaled(features: Features, scaling: Scaling | Whitening, step: int) -> Iterator[npt.NDArray[np.float64]]:
    """Scaled samples, (step, features), clamped as in training; of sparse ones only stored values are scaled."""

    def clip(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.clip(values, -float(scaling.signed), 1.0, out=values)

    parts: Iterator[Any] = (features[first : first + step] for first in range(0, features.shape[0], step))
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        for part in parts:  # the order of a sum depends on that of the values in memory
            yield clip(np.ascontiguousarray(scaling.apply(part)))
        return
    # One array for all, because a single sample may have millions of features.
    dense = np.empty((min(step, features.shape[0]), features.shape[1]))
    dense[:] = scaling.zero
    clip(dense)
    for part in parts:
        places = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr)), part.indices
        zeros = dense[places]
        dense[places] = clip(scaling.apply_stored(part))
        yield dense[: part.shape[0]]
        dense[places] = zeros


def feature_sums(features: Features, scaling: Scaling | Whitening) -> IntArray:
    """Sums over samples of their scaled features, clamped as in training: int64 (features,), in steps of 2^-31.

    Every value is rounded by itself and the sums are exact, so that every division of the samples gives the same.
    """

    def integers(scaled: npt.NDArray[np.float64]) -> IntArray:
        np.clip(scaled, -float(scaling.signed), 1.0, out=scaled)
        scaled *= 2.0**_SUM_FRACTION
        return np.rint(scaled, out=scaled).astype(np.int64)

    samples, count = features.shape
    sums = np.zeros(count, np.int64)
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        step = max(1, _BLOCK_VALUES // count)
        for first in range(0, samples, step):
            sums += integers(scaling.apply(features[first : first + step])).sum(axis=0)
        return sums
    zero = integers(scaling.zero.copy())
    step = max(1, _BLOCK_STORED * samples // max(1, features.nnz))
    for first in range(0, samples, step):
        part = features[first : first + step]
        np.add.at(sums, part.indices, integers(scaling.apply_stored(part)) - zero[part.indices])
    sums += samples * zero
    return sums


def clamped_activations(features: Features, scaling: Scaling | Whitening, weights: FloatArray) -> FloatArray:
    """The dot product of every raw sample's scaled features, clamped as in training, with the weights: float64
    (samples,).

    Nothing is rounded. The bits of a product do not depend on the samples beside it, so that every division of the
    samples gives the same.
    """
    samples, count = features.shape
    z = np.empty(samples)
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        step = max(1, _BLOCK_VALUES // count)
        for first, scaled in zip(range(0, samples, step), _scaled(features, scaling, step), strict=True):
            z[first : first + step] = np.einsum("ij,j->i", scaled, weights)
        return z
    low, zero = -float(scaling.signed), scaling.zero
    step = max(1, _BLOCK_STORED * samples // max(1, features.nnz))
    for first in range(0, samples, step):
        part = features[first : first + step]
        values = np.clip(scaling.apply_stored(part), low, 1.0) - np.clip(zero[part.indices], low, 1.0)
        clamped = type(part)((values, part.indices, part.indptr), shape=part.shape)
        z[first : first + step] = np.asarray(clamped @ weights)
    if zero.any():
        z += float((np.clip(zero, low, 1.0) * weights).sum())
    return z


def hardware_means(
    sums: Callable[[slice], IntArray], samples: int, scaling: Scaling | Whitening, options: TrainingOptions
) -> npt.NDArray[np.float64]:
    """``means`` of `Prepared`, from the `feature_sums` of all samples, which are asked for block by block."""
    means = np.full(scaling.scale.size + options.bias, _bias_value(options.stored, scaling.signed))
    features = means[: scaling.scale.size]
    for block in column_blocks(features.size):
        np.divide(sums(block), samples * 2.0**_SUM_FRACTION, out=features[block])
    features *= full_value(options.stored, scaling.signed)
    return means


def mean_square(squares: FloatArray, *, bias: bool, weights: FloatArray | None = None) -> float:
    """Mean squared norm of a sample's scaled features and bias, from `square_norms` of the first samples.

    It is weighted if samples have weights, of which there may be more, unless these all weigh 0.
    """
    own = None if weights is None or not weights[: squares.size].any() else weights[: squares.size]
    return average(squares, own) + float(bias)
