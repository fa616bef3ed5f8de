"""Search for the initial learning rate: short trials on a sample, in the arithmetic of the hardware.

The norms of the samples alone do not determine a good rate: centred features, overlapping classes and the size of
mini-batches change it. All trials start from zero weights and take the same mini-batches. They compute what a single
worker would, to the bit, so the rate does not depend on who has which columns.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from p4sgd.host.data.sample_numbers import average
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, broadcast, raise_on_all
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Loss
from p4sgd.host.losses.loss import FloatArray, Task
from p4sgd.host.training.epoch_metrics import Near, decoded_features, fit_intercept, penalty
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.prepared import Prepared
from p4sgd.host.training.rate import DIVERGED, automatic_rate, largest_rate, smallest_rate
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.fixed import LABEL, SHRINK, WEIGHT, IntArray, round_half_up
from p4sgd.hw.spec.run import RunSettings
from p4sgd.sim import golden
from p4sgd.sim.dense import DenseFeatures
from p4sgd.sim.features import new_model
from p4sgd.sim.model import Model, Targets
from p4sgd.sim.sparse.data_parallel import SampleRanks

_POWERS = range(-6, 7)
"""Powers of 2 by which the rates of the trials differ from `automatic_rate`."""

_UPDATES = (256, 1024)
"""Least and most updates of a trial; in between it is an epoch. The least is enough to see what diverges: what grows by
2 % in an update grows 160-fold in 256."""

# Values that a trial computes with (a sample has `Prepared.width`), repeated ones counted each time, unless so many
# samples have more; and values of different samples, for training and for scores each, unless so many have more.
_VALUES, _SAMPLES = 1 << 26, 512
_KEPT_VALUES, _KEPT_SAMPLES = 1 << 25, 64

_SCORED = 1024
"""Largest number of samples on which a trial is scored."""

_ALIKE = 1.01
"""Rates are alike if their scores differ by no more than this factor."""

_SEPARATED = 0.05
"""Classes count as separated by a score of at most this part of the loss of a constant model."""

_REPEATED = 1 << 18
"""Most values of dense samples that are repeated, so that a call of the loops goes through them more than once: it
takes as long as training on some hundred of them."""

_LOOKS = 8
"""How often a trial is scored in its second half."""


def search_rate(
    prepared: Prepared,
    options: TrainingOptions,
    loss: Loss,
    constant_loss: float,
    sample_ranks: SampleRanks | None = None,
    hint: float | None = None,
) -> float:
    """The learning rate that `best_rate` chooses; ``constant_loss`` is the training loss of the best constant model.
    All ranks call this and get the same rate. Where ``sample_ranks`` divide the samples, rank 0 searches, with those of
    all that it needs.

    An epoch of more updates than a trial gets a lower rate: the best constant rate falls with the root of the number of
    updates (Nemirovski, Juditsky, Lan and Shapiro, Robust stochastic approximation, 2009, section 2.2).

    The first trials have the rate nearest to ``hint``, that of a row with the same features, or `automatic_rate`, and
    those on each side. More follow until there are some on each side of the chosen one and of the best, and as long as
    all diverge: scores rise from the best one on.
    """
    if sample_ranks is None:
        trials = Trials(prepared, options, loss)
        rates, place = trials.rates, trials.middle
        if hint is not None:
            distances = [abs(math.log(rate / (hint * math.sqrt(trials.epoch)))) for rate in rates]
            place = distances.index(min(distances))
        wanted = range(place - 1, place + 2)
        found: dict[int, tuple[float, float]] = {}
        while new := [each for each in wanted if each not in found and 0 <= each < len(rates)]:
            found |= zip(new, trials.run(new), strict=True)
            low, high = min(found), max(found) + 1
            scores, first_scores = zip(*(found[each] for each in range(low, high)), strict=True)
            chosen = best_rate(rates[low:high], scores, first_scores, loss.task, constant_loss)
            place = rates.index(chosen)
            if all(_diverged(score, constant_loss) for score in first_scores):
                place = low
            wanted = range(min(place, low + int(np.argmin(scores))) - 1, place + 2)
        return max(chosen / math.sqrt(trials.epoch), rates[0])
    from p4sgd.host.image.repartition import first_samples

    batch, _, mini_batches = _trial_size(prepared, options)
    needed = min(batch * mini_batches + _SCORED, prepared.samples)
    image, rate = first_samples(prepared.images[0], needed, sample_ranks), list[float]()

    def search() -> None:
        assert image is not None
        alone = dataclasses.replace(prepared, images=[image], communicator=SINGLE_PROCESS)
        rate.append(search_rate(alone, options, loss, constant_loss, hint=hint))

    raise_on_all(prepared.communicator, None if image is None else search)
    return broadcast(prepared.communicator, rate)[0]


def best_rate(
    rates: Sequence[float], scores: Sequence[float], first_scores: Sequence[float], task: Task, constant_loss: float
) -> float:
    """The learning rate with the best score, or twice that if its score is at most 1 % worse: the larger one goes
    further in directions in which the loss is flat. Where trials separate the classes, it is the least rate that does:
    the loss would fall for ever, with weights that only grow and predict other samples worse.

    Rates with which the first epoch would count as diverged are left out, unless all are: trials of few samples have
    many epochs, in which weights may recover from a step that was too large, but a run goes back after one.
    """
    diverged = [_diverged(score, constant_loss) for score in first_scores]
    if not all(diverged):
        scores = [math.inf if out else score for score, out in zip(scores, diverged, strict=True)]
    if task is Task.CLASSIFICATION:
        for rate, score in zip(rates, scores, strict=True):
            if score <= _SEPARATED * constant_loss:
                return rate
    best = int(np.argmin(scores))
    if best + 1 < len(rates) and 0 < scores[best + 1] <= _ALIKE * scores[best]:
        best += 1
    return rates[best]


def _diverged(score: float, constant_loss: float) -> bool:
    return not score <= DIVERGED * constant_loss


def _trial_size(prepared: Prepared, options: TrainingOptions) -> tuple[int, int, int]:
    """Samples of a trial's mini-batch, its updates, and the number of different mini-batches among them."""
    width = prepared.width
    most = max(_SAMPLES, _VALUES // width)
    batch = min(options.batch, max(BANKS, most // _UPDATES[0] // BANKS * BANKS))
    epoch = -(-prepared.samples // batch)
    updates = min(max(_UPDATES[0], min(epoch, _UPDATES[1])), most // batch)
    kept = max(_KEPT_SAMPLES, _KEPT_VALUES // width) // batch
    # Of the samples and the padding that there are: another batch may not divide them.
    return batch, updates, min(epoch, updates, max(1, kept), prepared.images[0].labels.size // batch)


def _candidates(prepared: Prepared, options: TrainingOptions, loss: Loss, batch: int) -> tuple[list[float], int]:
    """Learning rates that may be tried, as far as the registers of rate, L2 shrink and L1 threshold can hold them, in
    ascending order, and the index of the one nearest to `automatic_rate`."""
    form = prepared.features
    sizes = [size * prepared.mean_weight for size in (batch, options.batch)]
    least = max(smallest_rate(size, form) for size in sizes)
    most = min(largest_rate(size, form) for size in sizes)
    names = ("l2", "l1") if options.alpha is None else ("alpha", "alpha")
    for name, strength, limit in zip(names, prepared.penalties(options), (SHRINK, WEIGHT), strict=True):
        # A little less than the limit, because the rate is rounded by up to 0.4 %.
        largest = 0.99 * float(limit.to_real(limit.maximum))
        most = min(most, largest / strength) if strength else most
        if most < least:
            chosen = getattr(options, name)
            bound = chosen * (largest / least / strength)
            if bound == 0:
                raise UserError(f"the features are too small for a penalty of raw coefficients: leave {name} out")
            raise UserError(f"{name} {chosen:g} is too large for these data: choose at most {bound:.3g}")
    middle = min(max(least, automatic_rate(loss, prepared.mean_square)), most)
    rates = [middle * 2.0**power for power in _POWERS]
    rates = [rate for rate in rates if rate == middle or least <= rate <= most]
    return rates, rates.index(middle)


class Trials:
    """Short training runs that differ in learning rate and penalties only, with one of the ``rates``, in ascending
    order, of which that at ``middle`` is tried first.

    A trial takes as many mini-batches as an epoch has, but at least 256, so that it repeats those of a small training
    set, and at most 1,024. Of wide data it takes smaller mini-batches, which bear no larger rates; from 131,072 values
    a sample on, it takes 64 of 8 samples.
    """

    def __init__(self, prepared: Prepared, options: TrainingOptions, loss: Loss) -> None:
        self._prepared, self._options, self._loss = prepared, options, loss
        self._penalties = prepared.penalties(options)
        self._ranks = prepared.communicator
        self._batch, self._updates, self._mini_batches = _trial_size(prepared, options)
        self.epoch = max(1.0, -(-prepared.samples // self._batch) / self._updates)
        """Updates of an epoch for each of a trial, if there are more."""
        self.rates, self.middle = broadcast(self._ranks, _candidates(prepared, options, loss, self._batch))
        self._first = first = self._settings(self.middle)
        trained = first.batch * first.mini_batches
        rows = min(trained, prepared.samples)
        begin = min(rows, prepared.samples - rows)
        self._scored = slice(begin, begin + min(rows, _SCORED))
        self._terms = prepared.targets.terms(loss).of(self._scored)
        groups, times = decoded_features(prepared.images, prepared.features), 1
        if trained >= prepared.samples and all(isinstance(features, DenseFeatures) for _, features in groups):
            most = _REPEATED // (trained * prepared.width)
            times = max(1, min(-(-self._updates // first.mini_batches), most))
        labels, weighing = prepared.images[0].labels[:trained].astype(np.int64), prepared.images[0].importances
        importances = np.empty(0, np.int64) if weighing is None else weighing[:trained].astype(np.int64)
        table = broadcast(self._ranks, loss.table())
        self._targets = Targets(np.tile(labels, times), np.tile(importances, times), table)
        # Not of the image, where a sample of almost no weight has another label.
        self._goals = Targets(LABEL.from_real(loss.label(self._terms.y, self._terms.shift)), importances[:0], table)
        samples = max(trained, self._scored.stop)
        # Where decoded features are not kept, those of these samples are decoded for all trials at once.
        self._groups = [(indices, features.part(-(-samples // BANKS) * BANKS, times)) for indices, features in groups]
        self._alone = self._ranks.size == len(self._groups) == 1  # there is nothing to sum

    def run(self, which: Sequence[int]) -> list[tuple[float, float]]:
        """Train with these of the rates, and score each twice.

        The first score is the objective, with a fitted intercept, on samples after those that were trained on, if there
        are others. It is the mean over eight moments in the second half of the trial, because it depends on the last
        few samples before each. The other is that after the first epoch, or at the first of these moments if that is
        earlier.
        """
        moments = {self._updates - self._updates * moment // (2 * _LOOKS) for moment in range(_LOOKS)}
        looks = sorted({min(-(-self._prepared.samples // self._batch), *moments), *moments})
        found = list[tuple[float, float]]()
        # Trials in one process are done one by one, which takes less memory.
        for together in [[each] for each in which] if self._alone else [which]:
            scores = dict(zip(looks, self._scores(list(map(self._settings, together)), looks), strict=True))
            means = sum(scores[look] / len(moments) for look in looks if look in moments)
            found += zip(np.asarray(means).tolist(), scores[looks[0]].tolist(), strict=True)
        return broadcast(self._ranks, found)

    def _settings(self, rate: int) -> RunSettings:
        own = self.rates[rate], self._batch, self._mini_batches
        return self._prepared.settings(self._options, self._loss, *own, alone=True)[0]

    def _scores(self, settings: Sequence[RunSettings], looks: Sequence[int]) -> FloatArray:
        """The objective of each trial with these settings after so many updates: float64 (looks, trials)."""
        trials, done = [self._models(each) for each in settings], 0
        batch, scored = self._first.batch, self._scored
        count = self._targets.labels.size // batch
        # Whole micro-batches, of which some samples are left out again.
        groups = slice(scored.start // BANKS * BANKS, -(-scored.stop // BANKS) * BANKS)
        dots, sizes = [], np.zeros((len(looks), len(trials), 3), np.int64)
        for number, look in enumerate(looks):
            while done < look:  # there may be fewer mini-batches than updates
                place = done % count
                several = min(look - done, count - place)
                self._train(trials, slice(place * batch, (place + several) * batch))
                done += several
            dots.append([sum(model.dots(groups) for model in models) for models in trials])
            if any(self._penalties):
                sizes[number] = [sum(model.sizes() for model in models) for models in trials]
        exact = self._ranks.all_sum(np.array(dots))[..., scored.start - groups.start :][..., : self._terms.y.size]
        return self._objectives(exact, self._ranks.all_sum(sizes))

    def _models(self, settings: RunSettings) -> list[Model]:
        """A model for each group of workers, which begins with zeros."""
        images = self._prepared.images
        # The sum is clamped as that of a single worker: in `_train`, or where all columns are, by the model.
        limits = np.array([settings.partial_limit if self._alone else np.iinfo(np.int64).max])
        models = []
        for indices, features in self._groups:
            zeros, exempt = [], list[int | None]()
            for image in (images[index] for index in indices):
                layout, engines = image.layout, image.layout.config.engines
                zeros.append(np.broadcast_to(np.int32(0), (engines, layout.model_bytes // 4)))
                sizes = engines, layout.chunks, layout.config.lanes
                exempt.append(None if image.exempt is None else int(np.ravel_multi_index(image.exempt, sizes)))
            models.append(new_model(features, zeros, settings, self._targets, limits, exempt))
        return models

    def _train(self, trials: Sequence[Sequence[Model]], samples: slice) -> None:
        if self._alone:
            for (model,) in trials:
                model.train(samples)
            return
        for begin in range(samples.start, samples.stop, self._first.batch):
            rows = slice(begin, begin + self._first.batch)
            own = [np.sum([model.forward(rows) for model in models], axis=0) for models in trials]
            sums = golden.partial(self._ranks.all_sum(np.stack(own)), self._first, golden.Flags())
            for models, z in zip(trials, sums, strict=True):
                for model in models:
                    model.backward(rows, z)

    def _objectives(self, exact: IntArray, sizes: IntArray) -> FloatArray:
        """Those of dot products, (looks, trials, samples), and of `Model.sizes`: float64 (looks, trials).

        The loss table says where an intercept is, nearly, unless it lacks a weight or has two halves, for either sign
        of the label: it is found quicker from there."""
        form, mode, (y, weights, _) = self._first.features, self._first.label_mode, self._terms
        z = self._terms.z(exact.astype(np.float64) * 2.0 ** -(WEIGHT.fraction + form.fraction))
        if self._options.bias:
            sums, near = round_half_up(exact, form.forward_shift), [Near() for _ in exact[0]]
            for look, trial in np.ndindex(exact.shape[:2]):
                own, at = z[look, trial], near[trial]
                if not (self._loss.weighs or (mode.sign and mode.offset)):
                    at.place = self._goals.balance(mode, sums[look, trial], weights, at.place)
                own += fit_intercept(self._loss, own, y, weights, near=at)
        values = self._loss.value(z, np.broadcast_to(y, z.shape))
        scores = np.array([[average(each, weights) for each in trials] for trials in values])
        return scores + [[penalty(each, *self._penalties) for each in trials] for trials in sizes]
