"""Features as the hardware reads them: their linear map, their means, from which follows what rounding adds to
activations, and the norms of samples, from which the first learning rate follows. Every division of the samples into
blocks gives the same bits."""

import mmap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from p4sgd.host.data import Scaling
from p4sgd.host.data.matrix import Features
from p4sgd.host.data.quantization import feature_values, full_value, quantize, steps
from p4sgd.host.data.sample_numbers import average
from p4sgd.host.data.scaling import bias_integer
from p4sgd.host.data.statistics import column_blocks
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.precondition import Whitening
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.fixed import IntArray
from p4sgd.hw.spec.run import FeatureFormat

_BLOCK_VALUES = 1 << 18
"""Number of values that are scaled at once."""

_BLOCK_STORED = 1 << 15
"""Number of stored values of sparse features that are scaled at once, each of which takes some 60 bytes meanwhile."""

_SUM_FRACTION = 31
"""Fraction bits of a value in `feature_sums`: the sums of 2^32 samples fit int64."""


class HardwareMap(NamedTuple):
    """Linear map of raw features to what the hardware reads: slope · feature + offset, rounded. ``offset`` is float64
    (features,), or with the bias last, ``mixing`` that of `p4sgd.host.precondition.Whitening`, if there is one."""

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
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        for rows, scaled in _scaled(features, scaling):
            squares[rows] = np.einsum("ij,ij->i", scaled, scaled)
        return squares
    # One array for all blocks, because a single sample may have millions of features.
    step = max(1, _BLOCK_VALUES // features.shape[1])
    dense = np.empty((min(step, features.shape[0]), features.shape[1]))
    dense[:] = scaling.zero
    _clamp(scaling, dense)
    for first in range(0, features.shape[0], step):
        part = features[first : first + step]
        stored = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr)), part.indices
        zeros = dense[stored]
        dense[stored] = _clamp(scaling, scaling.apply_stored(part))
        scaled = dense[: part.shape[0]]
        squares[first : first + step] = np.einsum("ij,ij->i", scaled, scaled)
        dense[stored] = zeros
    return squares


def feature_sums(features: Features, scaling: Scaling | Whitening) -> IntArray:
    """Sums over samples of their scaled features, clamped as in training: int64 (features,), in steps of 2^-31."""

    def integers(clamped: FloatArray) -> IntArray:
        clamped *= 2.0**_SUM_FRACTION
        return np.rint(clamped, out=clamped).astype(np.int64)

    sums = np.zeros(features.shape[1], np.int64)
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        for _, scaled in _scaled(features, scaling):
            sums += integers(scaled).sum(axis=0)
        return sums
    zero = integers(_clamp(scaling, scaling.zero.copy()))
    for _, part, values in _stored(features, scaling):
        np.add.at(sums, part.indices, integers(values) - zero[part.indices])
    sums += features.shape[0] * zero
    return sums


def clamped_activations(features: Features, scaling: Scaling | Whitening, weights: FloatArray) -> FloatArray:
    """The dot product of every raw sample's scaled features, clamped as in training but not rounded, with the weights:
    float64 (samples,)."""
    z = np.empty(features.shape[0])
    if isinstance(features, np.ndarray) or isinstance(scaling, Whitening):
        for rows, scaled in _scaled(features, scaling):
            z[rows] = np.einsum("ij,j->i", scaled, weights)
        return z
    zero = scaling.zero
    for rows, part, values in _stored(features, scaling):
        values -= _clamp(scaling, zero[part.indices])
        z[rows] = np.asarray(type(part)((values, part.indices, part.indptr), shape=part.shape) @ weights)
    if zero.any():
        z += float((_clamp(scaling, zero.copy()) * weights).sum())
    return z


def _clamp(scaling: Scaling | Whitening, values: FloatArray) -> FloatArray:
    return np.clip(values, -float(scaling.signed), 1.0, out=values)


def _scaled(features: Features, scaling: Scaling | Whitening) -> Iterator[tuple[slice, FloatArray]]:
    step = max(1, _BLOCK_VALUES // features.shape[1])
    for first in range(0, features.shape[0], step):  # the order of a sum depends on that of the values in memory
        scaled = np.ascontiguousarray(scaling.apply(features[first : first + step]))
        yield slice(first, first + step), _clamp(scaling, scaled)


def _stored(features: Any, scaling: Scaling) -> Iterator[tuple[slice, Any, FloatArray]]:
    """Samples of a `csr_array`, block by block, and their stored values, scaled and clamped."""
    for rows, part in _stored_blocks(features):
        yield rows, part, _clamp(scaling, scaling.apply_stored(part))


def _stored_blocks(features: Any) -> Iterator[tuple[slice, Any]]:
    step = max(1, _BLOCK_STORED * features.shape[0] // max(1, features.nnz))
    for first in range(0, features.shape[0], step):
        yield slice(first, first + step), features[first : first + step]


def reading_errors(features: Features, scaling: Scaling, stored: int) -> FloatArray:
    """Sum of squares of what clamping and rounding change of each scaled feature of these samples: float64
    (features,)."""
    one = steps(stored, scaling.signed)

    def squares(exact: FloatArray) -> FloatArray:
        changed: FloatArray = exact - quantize(exact, stored, scaling.signed) / one
        return changed * changed

    errors: FloatArray = np.zeros(features.shape[1])
    if isinstance(features, np.ndarray):
        size = max(1, _BLOCK_VALUES // features.shape[1])
        for first in range(0, features.shape[0], size):
            errors += squares(scaling.apply(features[first : first + size])).sum(axis=0)
        return errors
    zero = squares(scaling.zero)
    for _, part in _stored_blocks(features):
        np.add.at(errors, part.indices, squares(scaling.apply_stored(part)) - zero[part.indices])
    errors += features.shape[0] * zero
    return errors


def hardware_means(
    sums: Callable[[slice], IntArray], samples: int, form: FeatureFormat, count: int, total: int
) -> FloatArray:
    """Mean over the samples of what the hardware reads, float64 (total,), of so many features and maybe the bias, from
    the `feature_sums` of all samples, block by block."""
    means = np.full(total, _bias_value(form.stored, form.signed))
    features = means[:count]
    for block in column_blocks(count):
        np.divide(sums(block), samples * 2.0**_SUM_FRACTION, out=features[block])
    features *= full_value(form.stored, form.signed)
    return means


def mean_square(squares: FloatArray, *, bias: bool, weights: FloatArray | None = None) -> float:
    """Mean squared norm of a sample's scaled features and bias, from `square_norms` of the first samples; weighted if
    samples have weights, of which there may be more, unless these all weigh 0."""
    own = None if weights is None or not weights[: squares.size].any() else weights[: squares.size]
    return average(squares, own) + float(bias)
