"""Search for the initial learning rate: short trials on a sample, in the arithmetic of the hardware.

The norms of the samples do not tell which rate suits the data. Centred features bear rates many times larger than
features with a common mean, classes that overlap need smaller ones, and the limit for large mini-batches is another
than that for small ones. A few hundred updates show all of it.

The trials start from zero weights and take the same mini-batches. They compute what a single worker would, to the bit,
so the rate depends on the data and on the options of the problem alone, whoever has the columns.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from p4sgd.host.devices.session import of_job
from p4sgd.host.distributed.communicator import broadcast
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Loss
from p4sgd.host.losses.loss import FloatArray, Task
from p4sgd.host.training.metrics import decoded_features, fit_intercept, penalty
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.preparation import Prepared
from p4sgd.host.training.rate import (
    automatic_rate,
    choose_penalties,
    choose_rate,
    largest_rate,
    run_settings,
    smallest_rate,
)
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import SHRINK, WEIGHT, IntArray
from p4sgd.hw.spec.run import RunSettings
from p4sgd.sim import golden, kernels

__all__ = ["search_rate", "try_rates"]

_POWERS = range(-6, 7)
"""Powers of 2 by which the rates of the trials differ from `automatic_rate`."""

_UPDATES = (256, 1024)
"""Least and most updates of a trial; in between it is an epoch. The least is enough to see what diverges: what grows by
2 % in an update grows 160-fold in 256."""

_VALUES = 1 << 26
"""Number of values (samples · features) that a trial computes with, unless `_SAMPLES` samples have more."""

_SAMPLES = 512
"""Number of samples that a trial may always take, repeated ones counted each time."""

_KEPT_VALUES = 1 << 25
"""Number of values of the samples that are trained on, and of those for scores, unless `_KEPT_SAMPLES` have more."""

_KEPT_SAMPLES = 64
"""Number of different samples that may always be used."""

_SCORED = 1024
"""Largest number of samples on which a trial is scored."""

_ALIKE = 1.01
"""Rates are alike if their scores differ by no more than this factor."""

_SEPARATED = 0.05
"""Classes count as separated by a score of at most this part of the loss of a constant model."""

_LOOKS = 8
"""How often a trial is scored in its second half."""


def search_rate(prepared: Prepared, options: TrainingOptions, loss: Loss, constant_loss: float) -> float:
    """The learning rate with the best score in `try_rates`, or twice that if its score is at most 1 % worse.

    Of rates that are alike for so short a time, the larger one goes further in directions in which the loss is flat;
    the schedule lowers it when only noise is left. Where trials separate the classes, it is the least rate that does:
    the loss would fall for ever, with weights that only grow and predict other samples worse.

    Parameters
    ----------
    prepared
        The training set. All ranks call this and get the same rate.
    options
        Options of the training run.
    loss
        The loss.
    constant_loss
        Training loss of the best constant model.
    """
    rates, scores = try_rates(prepared, options, loss)
    if loss.task is Task.CLASSIFICATION:
        for rate, score in zip(rates, scores, strict=True):
            if score <= _SEPARATED * constant_loss:
                return rate
    best = int(np.argmin(scores))
    following = best + 1
    if following < len(rates) and 0 < scores[following] <= _ALIKE * scores[best]:
        best = following
    return rates[best]


def try_rates(prepared: Prepared, options: TrainingOptions, loss: Loss) -> tuple[list[float], list[float]]:
    """Train with several learning rates for a short time.

    A trial takes as many mini-batches as an epoch has, but at least 256, so that it repeats those of a small training
    set, and at most 1,024. Of wide data it takes smaller mini-batches, which bear no larger rates; from 131,072
    features on it takes 64 of 8 samples. Samples of at most 2^25 values are used, or 64 if these have more, and as many
    again for scores; further updates repeat them. All 13 trials take some tenths of a second for a thousand samples of
    30 features.

    Parameters
    ----------
    prepared, options, loss
        See `search_rate`.

    Returns
    -------
    Learning rates in ascending order, and the score of each: the objective, with a fitted intercept as in the metrics,
    on up to 1,024 samples after those that were trained on, and not more than these (on the same ones, if there are no
    others). It is the mean over eight moments in the second half of the trial, because it depends on the last few
    samples before each.
    """
    form, width = prepared.features, prepared.space.count
    most = max(_SAMPLES, _VALUES // width)
    batch = min(options.batch, max(BANKS, most // _UPDATES[0] // BANKS * BANKS))
    epoch = -(-prepared.samples // batch)
    updates = min(max(_UPDATES[0], min(epoch, _UPDATES[1])), most // batch)
    kept = max(_KEPT_SAMPLES, _KEPT_VALUES // width) // batch
    rates = broadcast(prepared.communicator, _candidates(prepared, options, loss, batch))
    settings = []
    for wanted in rates:
        rate = choose_rate(wanted, batch, form)
        penalties = choose_penalties(rate.actual, *prepared.penalties(options))
        settings.append(
            run_settings(
                dataclasses.replace(options, batch=batch),
                form,
                rate,
                penalties,
                chunks=1,
                # Of the samples and the padding that there are: another batch may not divide them.
                mini_batches=min(epoch, updates, max(1, kept), prepared.images[0].labels.size // batch),
                workers=1,
                unit=prepared.unit,
            )
        )
    trials = _Trials(prepared, settings, loss)
    moments = sorted({updates - updates * moment // (2 * _LOOKS) for moment in range(_LOOKS)})
    scores = np.zeros(len(rates))
    for begin, end in itertools.pairwise([0, *moments]):
        trials.train(range(begin, end))
        scores += trials.scores(options) / len(moments)
    return rates, broadcast(prepared.communicator, scores.tolist())


def _candidates(prepared: Prepared, options: TrainingOptions, loss: Loss, batch: int) -> list[float]:
    """Learning rates to try, as far as the registers of rate, L2 shrink and L1 threshold can hold them."""
    form = prepared.features
    least = max(smallest_rate(size, form) for size in (batch, options.batch))
    most = min(largest_rate(size, form) for size in (batch, options.batch))
    for name, strength, limit in zip(("l2", "l1"), prepared.penalties(options), (SHRINK, WEIGHT), strict=True):
        if strength == 0:
            continue
        # A little less than the limit, because the rate is rounded by up to 0.4 %.
        largest = 0.99 * float(limit.to_real(limit.maximum))
        most = min(most, largest / strength)
        if most < least:
            chosen = getattr(options, name)
            bound = chosen * (largest / least / strength)
            if bound == 0:
                raise UserError(f"the features are too small for a penalty of raw coefficients: leave {name} out")
            raise UserError(f"{name} {chosen:g} is too large for these data: choose at most {bound:.3g}")
    middle = min(max(least, automatic_rate(loss, prepared.mean_square)), most)
    rates = [middle * 2.0**power for power in _POWERS]
    return [rate for rate in rates if rate == middle or least <= rate <= most]


class _Trials:
    """Training runs with settings that differ in learning rate and penalties only, all in one go.

    Sums over ranks are those of all trials at once. They are clamped like those of a single worker.
    """

    def __init__(self, prepared: Prepared, settings: Sequence[RunSettings], loss: Loss) -> None:
        self._prepared = prepared
        self._ranks = prepared.communicator
        self._settings = settings
        self._first = first = settings[0]
        self._loss = loss
        self._table = broadcast(self._ranks, loss.table())
        trained = first.batch * first.mini_batches
        rows = min(trained, prepared.samples)
        begin = min(rows, prepared.samples - rows)
        self._scored = slice(begin, begin + min(rows, _SCORED))
        self._y = prepared.coding.real(prepared.train_labels[self._scored])
        self._labels = prepared.images[0].labels[:trained].astype(np.int64)
        samples = max(trained, self._scored.stop)
        self._features = decoded_features(prepared.images, prepared.features)
        # Rows of these samples: where decoded features are not kept, they are decoded for all trials at once.
        self._rows, _ = self._features.rows(0, -(-samples // BANKS) * BANKS)
        self._weights = [np.zeros(self._features.count) for _ in settings]
        # Weights of forward passes; with staleness those before the last update.
        self._read = [w.copy() for w in self._weights] if first.stale else self._weights

    def train(self, updates: range) -> None:
        """Do some updates of all trials; their numbers may exceed that of mini-batches."""
        if self._ranks.size > 1:
            for number in updates:
                self._update(number)
            return
        first, units = self._first, self._features.layout[0]
        layout, limits = (units, np.array([0, units.size - 1])), np.array([first.partial_limit])  # of a single worker
        others, unused = np.empty(0), (np.zeros(1, np.bool_), np.zeros(1, np.bool_))
        number = updates.start
        while number < updates.stop:
            begin = number % first.mini_batches
            end = min(begin + updates.stop - number, first.mini_batches)
            number += end - begin
            rows = slice(begin * first.batch, end * first.batch)
            features, labels = self._rows[rows], self._labels[rows]
            for settings, weights, read in zip(self._settings, self._weights, self._read, strict=True):
                kernels.train(features, labels, layout, settings, self._table, limits, weights, read, others, unused)

    def _update(self, number: int) -> None:
        """Train all trials on a mini-batch, of whose columns every rank has some."""
        first, form, flags = self._first, self._first.features, golden.Flags()
        begin = number % first.mini_batches * first.batch
        rows = slice(begin, begin + first.batch)
        z = golden.partial(self._dots(rows, self._read, form.forward_shift), first, flags)
        residuals = golden.residual(
            z, np.broadcast_to(self._labels[rows], z.shape), self._table, first.label_mode, flags
        )
        for settings, weights, read, g in zip(self._settings, self._weights, self._read, residuals, strict=True):
            deltas = golden.delta(g, settings)
            if settings.stale:
                read[:] = weights
            columns = 0, weights.size
            kernels.backward(self._rows, begin, columns, deltas, form, settings.gradient_shift, weights)
            kernels.regularize(weights, settings.shrink, settings.threshold)

    def scores(self, options: TrainingOptions) -> FloatArray:
        """The objective of each trial now: float64 (trials,)."""
        exact = self._dots(self._scored, self._weights, 0)
        fraction = WEIGHT.fraction + self._first.features.fraction
        scores = np.empty(len(exact))
        for trial, z in enumerate(np.ldexp(exact.astype(np.float64), -fraction)):
            intercept = fit_intercept(self._loss, z, self._y) if options.bias else 0.0
            scores[trial] = self._loss.value(z + intercept, self._y).mean()
            if options.l2 > 0 or options.l1 > 0:
                weights = self._prepared.join(of_job(self._own(self._weights[trial]), self._ranks))
                scores[trial] += penalty(weights[: self._prepared.space.count], *self._prepared.penalties(options))
        return scores

    def _own(self, weights: FloatArray) -> list[IntArray]:
        """Weights of a trial for each of this process's workers, in the order of its features."""
        own, begin = [], 0
        for image, columns in zip(self._prepared.images, self._features.columns, strict=True):
            scattered = np.zeros(image.layout.padded_features, np.int64)
            scattered[columns] = weights[begin : begin + columns.size]
            begin += columns.size
            own.append(image.layout.unpad(image.layout.gather(scattered.reshape(image.layout.config.engines, -1))))
        return own

    def _dots(self, rows: slice, weights: Sequence[FloatArray], shift: int) -> IntArray:
        """Sums over all units of their dot products, divided by 2^shift and rounded: int64 (trials, samples)."""
        form, layout, samples = self._first.features, self._features.layout, rows.stop - rows.start
        no_limits, unused = np.full(layout[1].size - 1, np.iinfo(np.int64).max), np.zeros(layout[1].size - 1, np.bool_)
        totals = [
            kernels.partials(self._rows, rows.start, layout, form, shift, w, no_limits, unused, samples)
            for w in weights
        ]
        return self._ranks.all_sum(np.stack(totals))
