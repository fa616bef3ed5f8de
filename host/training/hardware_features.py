"""Features as the hardware reads them: their linear map, their means, and the norms of samples.

The search for the learning rate begins at a rate that follows from the norms. The means show what rounding adds to
activations. Values are computed one by one and integers added, so every division of the samples gives the same bits.
"""

import mmap
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

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

_BLOCK_VALUES = 1 << 18
"""Number of values that are scaled at once."""

_BLOCK_STORED = 1 << 15
"""Number of stored values of sparse features that are scaled at once, each of which takes some 60 bytes meanwhile."""

_SUM_FRACTION = 31
"""Fraction bits of a value in `feature_sums`: the sums of 2^32 samples fit int64."""


class HardwareMap(NamedTuple):
    """Linear map of raw features to what the hardware reads: slope · feature + offset, rounded. ``slope`` is float64
    (features,), ``offset`` too or with the bias last, ``mixing`` that of `p4sgd.host.precondition.Whitening`, float64
    (features, BLOCK + 1), if there is one."""

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
    return bias_integer(stored, signed) / 2.0 ** (stored - int(signed))


def square_norms(features: Features, scaling: Scaling | Whitening) -> FloatArray:
    """Squared norms of scaled samples, with values beyond the range clamped as in training: float64 (samples,)."""
    squares = np.empty(features.shape[0])
    for part, scaled in _scaled(features, scaling):
        squares[part] = np.einsum("ij,ij->i", scaled, scaled)
    return squares


def feature_sums(features: Features, scaling: Scaling | Whitening) -> IntArray:
    """Sums over samples of their scaled features, clamped as in training: int64 (features,), in steps of 2^-31."""

    def integers(clamped: FloatArray) -> IntArray:
        clamped *= 2.0**_SUM_FRACTION
        return np.rint(clamped, out=clamped).astype(np.int64)

    samples, count = features.shape
    sums = np.zeros(count, np.int64)
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        for _, scaled in _scaled(features, scaling):
            sums += integers(scaled).sum(axis=0)
        return sums
    zero = integers(_clamp(scaling, scaling.zero.copy()))
    step = max(1, _BLOCK_STORED * samples // max(1, features.nnz))
    for first in range(0, samples, step):
        part = features[first : first + step]
        np.add.at(sums, part.indices, integers(_clamp(scaling, scaling.apply_stored(part))) - zero[part.indices])
    sums += samples * zero
    return sums


def clamped_activations(features: Features, scaling: Scaling | Whitening, weights: FloatArray) -> FloatArray:
    """The dot product of every raw sample's scaled features, clamped as in training but not rounded, with the weights:
    float64 (samples,)."""
    samples = features.shape[0]
    z = np.empty(samples)
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        for rows, scaled in _scaled(features, scaling):
            z[rows] = np.einsum("ij,j->i", scaled, weights)
        return z
    zero = scaling.zero
    step = max(1, _BLOCK_STORED * samples // max(1, features.nnz))
    for first in range(0, samples, step):
        part = features[first : first + step]
        values = _clamp(scaling, scaling.apply_stored(part)) - _clamp(scaling, zero[part.indices])
        clamped = type(part)((values, part.indices, part.indptr), shape=part.shape)
        z[first : first + step] = np.asarray(clamped @ weights)
    if zero.any():
        z += float((_clamp(scaling, zero.copy()) * weights).sum())
    return z


def _clamp(scaling: Scaling | Whitening, values: FloatArray) -> FloatArray:
    """Clamp scaled values in place, as in training."""
    return np.clip(values, -float(scaling.signed), 1.0, out=values)


def _scaled(features: Features, scaling: Scaling | Whitening) -> Iterator[tuple[slice, FloatArray]]:
    """Scaled and clamped samples, (samples, features), block by block; of sparse ones only stored values are scaled."""
    samples, count = features.shape
    step = max(1, _BLOCK_VALUES // count)
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        for first in range(0, samples, step):  # the order of a sum depends on that of the values in memory
            scaled = np.ascontiguousarray(scaling.apply(features[first : first + step]))
            yield slice(first, first + step), _clamp(scaling, scaled)
        return
    # One array for all, because a single sample may have millions of features.
    dense = np.empty((min(step, samples), count))
    dense[:] = scaling.zero
    _clamp(scaling, dense)
    for first in range(0, samples, step):
        part = features[first : first + step]
        stored = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr)), part.indices
        zeros = dense[stored]
        dense[stored] = _clamp(scaling, scaling.apply_stored(part))
        yield slice(first, first + step), dense[: part.shape[0]]
        dense[stored] = zeros


def hardware_means(
    sums: Callable[[slice], IntArray], samples: int, scaling: Scaling | Whitening, options: TrainingOptions
) -> FloatArray:
    """``means`` of `Prepared`, from the `feature_sums` of all samples, which are asked for block by block."""
    means = np.full(scaling.scale.size + options.bias, _bias_value(options.stored, scaling.signed))
    features = means[: scaling.scale.size]
    for block in column_blocks(features.size):
        np.divide(sums(block), samples * 2.0**_SUM_FRACTION, out=features[block])
    features *= full_value(options.stored, scaling.signed)
    return means


def mean_square(squares: FloatArray, *, bias: bool, weights: FloatArray | None = None) -> float:
    """Mean squared norm of a sample's scaled features and bias, from `square_norms` of the first samples; weighted if
    samples have weights, of which there may be more, unless these all weigh 0."""
    own = None if weights is None or not weights[: squares.size].any() else weights[: squares.size]
    return average(squares, own) + float(bias)
