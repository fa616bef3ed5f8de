"""The stages between forward and backward pass, compiled.

Partial activations are clamped and added up; the loss makes δ of the sums."""

from typing import Any

import numpy as np

from p4sgd.hw.spec.fixed import FACTOR, IMPORTANCE, LABEL, MARGIN, RESIDUAL, SLOPE, IntArray
from p4sgd.hw.spec.run import VALUE_FRACTION, LossTable, RunSettings
from p4sgd.sim.compiled import compiled
from p4sgd.sim.intrinsics import load_unaliased, store_unaliased

__all__ = ["add_partials", "deltas", "deltas_of", "loss_of"]

# Constants for the compiler, from the formats.
_MARGIN_LOW, _MARGIN_HIGH = MARGIN.minimum, MARGIN.maximum
_RESIDUAL_LOW, _RESIDUAL_HIGH = RESIDUAL.minimum, RESIDUAL.maximum
_SLOPE_FRACTION = SLOPE.fraction
_LABEL_SHIFT = VALUE_FRACTION - LABEL.fraction
_RESIDUAL_SHIFT = VALUE_FRACTION - RESIDUAL.fraction
_RESIDUAL_HALF = (1 << _RESIDUAL_SHIFT) >> 1
_FACTOR_SHIFT, _DELTA_SHIFT = IMPORTANCE.fraction - FACTOR.fraction, FACTOR.fraction
_FACTOR_HALF, _DELTA_HALF = (1 << _FACTOR_SHIFT) >> 1, (1 << _DELTA_SHIFT) >> 1


def loss_of(table: LossTable, settings: RunSettings) -> tuple[Any, ...]:
    """What `deltas_of` takes for a loss: its table, and how labels enter."""
    mode = settings.label_mode
    return (table.shift, table.slope, table.intercept), (mode.sign, mode.offset, mode.constant)


def deltas(
    sums: IntArray, labels: IntArray, importances: IntArray, table: LossTable, settings: RunSettings
) -> tuple[IntArray, bool]:
    """δ of some samples, and whether a margin or a residual was saturated.

    Parameters
    ----------
    sums, labels
        Activations and labels, int64 (samples,).
    importances
        Weights of the samples, int64, as many, or none if the run is not ``weighted``.
    table, settings
        The loss table, and the settings of the run.

    Returns
    -------
    int64 (samples,), and a flag.
    """
    result = np.empty(sums.size, np.int64)
    loss = loss_of(table, settings)
    return result, bool(deltas_of(sums, labels, importances, loss, settings.rate_mantissa, result))


@compiled("the emulator's loops", nogil=True)
def add_partials(totals: Any, limits: Any, clamped: Any, sums: Any) -> None:
    """Clamp the workers' partial activations, and add them up: `golden.partial` and `golden.all_reduce`.

    ``totals`` are int64 (threads, workers, samples), of which the sum over the threads is a worker's partial;
    ``limits``, int64, and ``clamped``, bool, are (workers,), and ``sums`` int64 (samples,).
    """
    for row in range(sums.size):
        sums[row] = 0
        for worker in range(limits.size):
            total, limit = np.int64(0), limits[worker]
            for thread in range(totals.shape[0]):
                total += totals[thread, worker, row]
            if total > limit or total < -limit:
                clamped[worker] = True
                total = limit if total > limit else -limit
            sums[row] += total


@compiled("the emulator's loops", nogil=True)
def deltas_of(sums: Any, labels: Any, importances: Any, loss: Any, mantissa: int, deltas: Any) -> bool:
    """Round 2, as `golden.residual` and `golden.delta`; returns whether a margin or a residual was saturated.

    ``loss`` is that of `loss_of`. ``deltas``, int64 or float64 (samples,), must share no memory with the other arrays.
    """
    (shift, slope, intercept), (sign, offset, constant) = loss
    saturated = False
    for row in range(np.uint64(sums.size)):  # an index that may be negative would keep the compiler from using vectors
        y = load_unaliased(labels, row)
        factor = -1 if sign and y < 0 else 1
        x = factor * load_unaliased(sums, row) - (y if offset else 0)
        margin = min(max(x, _MARGIN_LOW), _MARGIN_HIGH)
        segment = np.uint64(min(max((margin >> shift) + slope.size // 2, 0), slope.size - 1))
        value = factor * (
            load_unaliased(slope, segment) * margin + (load_unaliased(intercept, segment) << _SLOPE_FRACTION)
        )
        value -= (y if constant else 0) << _LABEL_SHIFT
        rounded = (value + _RESIDUAL_HALF) >> _RESIDUAL_SHIFT
        residual = min(max(rounded, _RESIDUAL_LOW), _RESIDUAL_HIGH)
        saturated |= margin != x or residual != rounded
        if importances.size:
            factor = (load_unaliased(importances, row) * mantissa + _FACTOR_HALF) >> _FACTOR_SHIFT
            store_unaliased(deltas, row, (residual * factor + _DELTA_HALF) >> _DELTA_SHIFT)
        else:
            store_unaliased(deltas, row, residual * mantissa)
    return saturated
