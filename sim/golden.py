"""Golden model of the hardware: one bit-exact NumPy function per stage.

All integers are int64, which no sum overflows: |q| < 2^8, |w| ≤ 2^31 and at most 2^24 features that are not 0 stay
below 2^63. This code is meant to be read; :mod:`p4sgd.sim.emulator` computes the same results faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import (
    ACTIVATION,
    DELTA,
    FACTOR,
    IMPORTANCE,
    LABEL,
    MARGIN,
    RESIDUAL,
    SHRINK,
    WEIGHT,
    IntArray,
    round_half_up,
)
from p4sgd.hw.spec.run import VALUE_FRACTION, LabelMode, LossTable, RunSettings


@dataclass
class Flags:
    """Sticky flags, as in the STATUS register."""

    partial_clamped: bool = False
    residual_saturated: bool = False
    weight_saturated: bool = False


def read_planes(q: IntArray, stored: int, precision: int) -> IntArray:
    """Features that a run at ``precision`` P reads: the P most significant of ``stored`` S bits, rounded down."""
    return q >> (stored - precision)


def dot(q: IntArray, w: IntArray, unit: int) -> IntArray:
    """Forward: exact dot products of features (samples, features) and weights (features,) over each unit.

    Unit i is features i·unit up to (i + 1)·unit, the last may have fewer; shape (samples, units).
    """
    return np.stack([q[:, i : i + unit] @ w[i : i + unit] for i in range(0, w.size, unit)], axis=-1)


def activation(t: IntArray, settings: RunSettings) -> IntArray:
    """Round 1: a worker's share of the activation from its units' exact dot products, (samples, units) to (samples,).

    The sum of rounded numbers does not depend on how units are dealt to workers.
    """
    result: IntArray = round_half_up(t, settings.features.forward_shift).sum(axis=-1)
    return result


def partial(a: IntArray, settings: RunSettings, flags: Flags, *, limit: int | None = None) -> IntArray:
    """Partial activations (`ACTIVATION`): a worker's share, clamped to ±``limit`` (`partial_limit`)."""
    limit = settings.partial_limit if limit is None else limit
    clamped = np.clip(a, -limit, limit)
    flags.partial_clamped |= bool(np.any(clamped != a))
    return clamped


def all_reduce(partials: Sequence[IntArray]) -> IntArray:
    """AllReduce: sum of the partials over all workers. It fits `ACTIVATION` because every partial is clamped."""
    result: IntArray = np.sum(np.stack(partials), axis=0, dtype=np.int64)
    return result


def residual(z: IntArray, y: IntArray, table: LossTable, mode: LabelMode, flags: Flags) -> IntArray:
    """Round 2: `RESIDUAL` g = s·ψ(s·z − o) − c from `ACTIVATION` sums z and `LABEL` labels y of the same shape."""
    sign = np.where(y < 0, -1, 1) if mode.sign else np.ones_like(y)
    argument = sign * z - (y if mode.offset else 0)
    margin = MARGIN.saturate(argument)
    value = sign * table(margin) - ((y if mode.constant else 0) << (VALUE_FRACTION - LABEL.fraction))
    rounded = round_half_up(value, VALUE_FRACTION - RESIDUAL.fraction)
    flags.residual_saturated |= MARGIN.overflows(argument) or RESIDUAL.overflows(rounded)
    return RESIDUAL.saturate(rounded)


def factor(importances: IntArray, settings: RunSettings) -> IntArray:
    """Round 2: `FACTOR` integers, mantissa of the learning rate times `IMPORTANCE` integers."""
    return round_half_up(importances * settings.rate_mantissa, IMPORTANCE.fraction - FACTOR.fraction)


def delta(g: IntArray, settings: RunSettings, importances: IntArray | None = None) -> IntArray:
    """Round 2: δ = g · factor (`DELTA`); factors are the mantissa if samples have no weights, and δ is exact."""
    if importances is None:
        return g * settings.rate_mantissa
    return round_half_up(g * factor(importances, settings), FACTOR.fraction)


def gradient(q: IntArray, d: IntArray) -> IntArray:
    """Backward pass: exact gradient of a micro-batch, from features (8, features) and δ (8,); shape (features,)."""
    result: IntArray = d @ q
    return result


def update(w_next: IntArray, g: IntArray, settings: RunSettings, flags: Flags) -> IntArray:
    """Round 3: subtract the rounded gradient from the weights (`WEIGHT`, saturating)."""
    updated = w_next - round_half_up(g, settings.gradient_shift)
    flags.weight_saturated |= WEIGHT.overflows(updated)
    return WEIGHT.saturate(updated)


def regularize(w: IntArray, settings: RunSettings, *, exempt: int | None = None) -> IntArray:
    """End of a mini-batch: L2 shrinkage, then L1 soft thresholding. Both move weights towards 0: no overflow.

    The weight number ``exempt``, that of the bias, stays as it is.
    """
    shrunk = w - round_half_up(w * settings.shrink, SHRINK.fraction)
    result: IntArray = np.sign(shrunk) * np.maximum(np.abs(shrunk) - settings.threshold, 0)
    if exempt is not None:
        result[exempt] = w[exempt]
    return result


@dataclass
class Trained:
    """Final weights and sticky flags of each worker."""

    weights: list[IntArray]
    flags: list[Flags]


def train(
    q: Sequence[IntArray],
    y: IntArray,
    weights: Sequence[IntArray],
    table: LossTable,
    settings: RunSettings,
    importances: IntArray | None = None,
    *,
    exempt: tuple[int, int] | None = None,
    note: Callable[[str, int, IntArray], None] = lambda *_: None,
) -> Trained:
    """Train all workers for one run.

    Parameters
    ----------
    q, weights
        Of each worker, features, P-bit integers from `read_planes`, (samples, features of the shard), and initial
        `WEIGHT` integers, (features of the shard,), unit by unit; all units but the job's last have ``settings.unit``.
    y, importances
        `LABEL` labels, and, if the run is ``weighted``, `IMPORTANCE` integers up to 1: (samples,), a multiple of 8.
        Samples after the last whole mini-batch are not used.
    exempt
        Worker and feature of the weight that penalties leave alone, that of the bias.
    note
        Called with the numbers of each micro-batch as they are computed: a stage, a worker and an array. Stages are
        ``dot`` (exact, a row a sample), ``partial``, ``sum``, ``delta``, ``gradient`` and ``weight``, the latest ones.
    """
    w = [np.array(worker, dtype=np.int64) for worker in weights]
    read = w  # weights of forward passes: w, or with staleness the w before the last update
    flags = [Flags() for _ in q]
    for mini_batch in range(settings.mini_batches):
        w_next = [worker.copy() for worker in w]
        for micro_batch in range(settings.micro_batches):
            first = (mini_batch * settings.micro_batches + micro_batch) * BANKS
            rows = slice(first, first + BANKS)
            partials = []
            for i in range(settings.workers):
                t = dot(q[i][rows], read[i], settings.unit)
                partials.append(partial(activation(t, settings), settings, flags[i]))
                note("dot", i, t)
                note("partial", i, partials[i])
            z = all_reduce(partials)
            for i in range(settings.workers):
                g = residual(z, y[rows], table, settings.label_mode, flags[i])
                d = delta(g, settings, None if importances is None else importances[rows])
                exact = gradient(q[i][rows], d)
                w_next[i] = update(w_next[i], exact, settings, flags[i])
                if micro_batch == settings.micro_batches - 1:
                    bias = exempt[1] if exempt is not None and exempt[0] == i else None
                    w_next[i] = regularize(w_next[i], settings, exempt=bias)
                for stage, values in (("sum", z), ("delta", d), ("gradient", exact), ("weight", w_next[i])):
                    note(stage, i, values)
        w, read = w_next, w if settings.stale else w_next
    return Trained(w, flags)


assert ACTIVATION.fraction == LABEL.fraction == MARGIN.fraction, "z and o must have the same binary point"
assert DELTA.fraction == RESIDUAL.fraction
