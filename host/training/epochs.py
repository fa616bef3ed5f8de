"""The loop over epochs, for one row of the model: run the workers, measure the weights, keep the best ones.

A run of the workers is one epoch, after which the host reads the weights and measures them (`epoch_metrics.py`).
"""

import ctypes
import dataclasses
import functools
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice, takewhile
from typing import Any

import numpy as np

from p4sgd.host.data import Dataset
from p4sgd.host.data.scaling import CENTRED, REACH
from p4sgd.host.errors import P4sgdError, option
from p4sgd.host.losses import Task
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.checkpoint import Best, State, Weights
from p4sgd.host.training.class_weights import rounding_remark
from p4sgd.host.training.epoch_metrics import EpochMetrics, Measured
from p4sgd.host.training.events import ConvergenceRemark, EpochRecord, Events, Remarks
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.prepared import Prepared, join
from p4sgd.host.training.rate import Convergence, LearningRateSchedule, choose_rate, smallest_rate
from p4sgd.host.training.result import StopReason, TrainingResult
from p4sgd.host.training.search import search_rate
from p4sgd.host.training.start import Start
from p4sgd.host.training.workers import Workers
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.registers import ModelSource

_FLAG_REMARKS = {
    "partial_clamped": "activations were clamped, at a limit that depends on the number of workers",
    "residual_saturated": "residuals were saturated at ±128",
    "weight_saturated": "weights were saturated at ±256",
}

_version = functools.cache(importlib.metadata.version)  # which reads a file

_MANY = 1 << 20
"""Columns from which on freed memory is given back."""

_COARSE = 0.01
"""Relative error of the first learning rate above which there is a remark."""


def release_memory(columns: int) -> None:
    """Give freed memory back to the system: arrays of millions of columns may not fit into the gaps between others."""
    if columns < _MANY:  # the system would have to clear it again
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)


class RowTraining:
    """The training of a row, on workers that have the features already if another row was trained before.

    It goes on from a ``state``, an empty one if the row is new, and calls ``keep`` when that has changed, to write a
    checkpoint. ``held_out`` are samples that are not trained on, with their labels, by name. The images go with the
    ``last`` row. A ``hint`` is the learning rate of the row before.
    """

    def __init__(
        self,
        workers: Workers,
        prepared: Prepared,
        held_out: Mapping[str, tuple[Dataset, FloatArray]],
        state: State,
        start: Start,
        events: Events,
        remarks: Remarks,
        keep: Callable[[], None] | None,
        *,
        last: bool,
        hint: float | None = None,
    ) -> None:
        self._workers, self._options = workers, workers.options
        self._state, self._start, self._last = state, start, last
        self._events, self._remarks, self._keep = events, remarks, keep
        options = self._options
        (self._coding,) = prepared.targets.coding.rows
        self._loss = prepared.targets.loss(options, prepared.name)
        for remark in (*prepared.remarks, rounding_remark(prepared.targets.terms(self._loss).weights)):
            remarks.add(remark)
        workers.begin(prepared, self._loss, state, remarks)
        ranks = workers.sample_ranks
        for remark in _settings_remarks(options, prepared, 1 if ranks is None else ranks.size, stream=not start.refit):
            remarks.add(remark)
        self._metrics = EpochMetrics(prepared, options, self._loss, held_out, refit=options.bias and start.refit)
        automatic = options.learning_rate is None
        constant_loss, before = self._metrics.constant_loss, len(start.history)
        if not start.refit:  # of a stream a few samples may all be like a constant, or unlike those before
            constant_loss = max(constant_loss, float(self._loss.value(np.zeros(1), np.ones(1))[0]))
            if (own := start.weights) is not None:
                began = self._metrics.of_epoch(Weights(own), prepared.split(own))
                constant_loss = max(constant_loss, began["train_loss"])
        self._convergence = Convergence(state.history, constant_loss, automatic=automatic, before=before)
        self._hint = hint
        self._found_rate: float | None = None
        first = state.first_rate or options.learning_rate or self._automatic_rate()
        batch = options.batch * prepared.mean_weight
        actual = choose_rate(first, batch, prepared.features).actual  # raises if the hardware has no such rate
        if abs(actual / first - 1) > _COARSE:
            remark = f"the learning rate is {actual:.3g} instead of {first:.3g}: it is near the smallest possible"
            remarks.add(remark, own=True)
        state.first_rate = first
        smallest = smallest_rate(batch, prepared.features)
        self._schedule = LearningRateSchedule(
            options.schedule, first, options.power, smallest, options.patience, state.divisor
        )

    @property
    def _prepared(self) -> Prepared:
        """The training set as it is dealt to the workers now."""
        return self._workers.prepared

    def run(self) -> TrainingResult:
        """Train to the end; raises as `p4sgd.host.training.train`."""
        state, options, workers = self._state, self._options, self._workers
        for record in state.history:
            self._events.epoch(record)
        tried = -1  # an epoch that began with all workers that could be had
        try:
            while state.epoch < options.epochs and not state.ends_early(options):
                try:
                    if state.epoch > tried:
                        tried = state.epoch
                        workers.take_in()
                    self._epoch()
                except P4sgdError as error:
                    workers.adopt(error)
            stopped = StopReason.EPOCHS
            if state.ends_early(options):
                stopped = StopReason.CONVERGED if options.patience is None else StopReason.PATIENCE
        except KeyboardInterrupt:
            if state.best is None:
                raise
            stopped = StopReason.INTERRUPTED
        assert state.best is not None
        best = state.best
        summary = self._summary()
        try:
            model, metrics, activations = self._measure(best)
        except KeyboardInterrupt:
            stopped = StopReason.INTERRUPTED
            model, metrics, activations = self._measure(best)
        measured = dataclasses.replace(state.history[best.epoch - 1], metrics=metrics).to_json()
        measured.pop("counters")
        training = summary | {"epoch": best.epoch, "stopped": stopped.value, "metrics": measured}
        seen = state.history[best.epoch - 1].metrics["train_loss"]
        parted = self._metrics.loss_remark(model, seen, metrics["train_loss"])
        self._remarks.add(parted or self._metrics.sum_remark(*activations["train"]), own=True, passing=True)
        last_remark, more_epochs = self._last_remark(stopped)
        self._remarks.add(last_remark, own=True, passing=True)
        return TrainingResult(
            model=dataclasses.replace(model, training=training),
            metrics=metrics,
            history=tuple(state.history),
            best_epoch=best.epoch,
            monitored=self._metrics.monitored,
            stopped=stopped,
            remarks=self._remarks.all,
            summary=summary | workers.to_json(),
            more_epochs=more_epochs,
            next_start=self._next_start(best),
            activations=activations,
            weights=self._metrics.weights,
        )

    def _epoch(self) -> None:
        session = self._workers.open()
        source, prepared, state = self._workers.source or ModelSource.ZERO, self._prepared, self._state
        self._metrics.read_from(prepared)
        epoch, batch = state.epoch + 1, self._options.batch
        settings, learning_rate, remarks = prepared.settings(
            self._options, self._loss, self._schedule.rate(epoch), batch, -(-prepared.samples // batch)
        )
        if self._schedule.divisor == 1:  # what is lost at the end, at a lower rate, does not matter
            for remark in remarks:
                self._remarks.add(remark, own=True)
        session.configure(settings)
        if source is not ModelSource.KEEP:
            session.plan_packets()
        begin = time.perf_counter()
        report = session.run(source)
        seconds = time.perf_counter() - begin
        counters = report.counters
        self._workers.look_at(counters)
        if (ranks := self._workers.sample_ranks) is not None:
            counters = tuple(prepared.communicator.all_gather(dict(ranks.counts)))
            ranks.counts.clear()
        shards, parts = prepared.shards, session.read_weights()
        weights = Weights(partial(join, shards, parts), (shards, parts))
        record = EpochRecord(
            epoch=epoch,
            learning_rate=learning_rate,
            metrics=self._metrics.of_epoch(weights, parts),
            seconds=seconds,
            samples_per_second=prepared.samples / seconds,
            flags=tuple(sorted(report.flags)),
            counters=counters,
        )
        self._remark_flags(record)
        # In this order, so that Ctrl-C between the two leaves no best epoch without a record.
        state.history.append(record)
        state.weights = following = self._score(record, weights)
        self._remarks.add(self._convergence.divergence_remark(), own=True)
        if self._keep is not None:
            self._keep()
        self._events.epoch(record)
        self._workers.source = ModelSource.KEEP
        if following is not weights:
            session.write_weights(prepared.split(following.values))
            self._workers.source = ModelSource.MEMORY

    def _score(self, record: EpochRecord, weights: Weights) -> Weights:
        """Keep the weights if they are the best so far, adapt the rate, and return the weights for the next epoch."""
        state, best = self._state, self._state.best
        alike = takewhile(lambda each: each.learning_rate == record.learning_rate, reversed(state.history))
        scores = [each.metrics[self._metrics.monitored] for each in islice(alike, 3)][::-1]
        score = scores[-1]
        progress = best is None or self._schedule.is_progress(scores, best.score, self._options.tolerance)
        if best is None or score < best.score:
            state.best = best = Best(record.epoch, score, weights)
        state.idle = 0 if progress else state.idle + 1
        state.count_stalled(self._options.tolerance)
        if self._convergence.diverged(record) and not self._schedule.lowest:
            self._schedule.lower(self._automatic_rate())
            state.idle, state.stalled = 0, 0
            weights = best.weights
            if self._convergence.diverged(state.history[best.epoch - 1]):
                first = self._start.weights
                weights = Weights(np.zeros(self._prepared.shards[0].total, np.int32) if first is None else first)
        elif self._schedule.adapt(state.idle, record.epoch - best.epoch):
            weights = best.weights
        state.first_rate, state.divisor = self._schedule.first, self._schedule.divisor
        return weights

    def _automatic_rate(self) -> float:
        """The automatic learning rate, searched for when it is first needed."""
        if self._found_rate is None:
            constant_loss, ranks = self._metrics.constant_loss, self._workers.sample_ranks
            self._found_rate = search_rate(self._prepared, self._options, self._loss, constant_loss, ranks, self._hint)
        return self._found_rate

    def _measure(self, best: Best) -> Measured:
        """Measure the best model. Data and model are large enough, so the images of the last row go before."""
        self._metrics.read_rounded(best.weights)
        weights = best.weights.values
        if self._last:
            self._workers.release()
            self._metrics.read_from(self._prepared)
        release_memory(self._prepared.space.count)
        return self._metrics.finish(weights)

    def _next_start(self, best: Best) -> Start:
        """What other samples may be trained from: the best weights, or those that the next epoch would start from."""
        state = self._state
        weights = state.weights if best.epoch == state.epoch else best.weights
        assert weights is not None
        return Start(
            coding=self._coding,
            scaling=self._prepared.scaling,
            weights=weights.values,
            rate=self._schedule.first / self._schedule.divisor,
            history=tuple(state.history),
            options=self._options,
            refit=self._start.refit,
        )

    def _remark_flags(self, record: EpochRecord) -> None:
        if not record.flags or self._convergence.diverged(record):  # there is a remark about that
            return
        known = {flag for other in self._state.history if not self._convergence.diverged(other) for flag in other.flags}
        for flag in record.flags:
            if flag not in known:
                remedy = "a lower learning rate or more l2 keeps them smaller"
                self._remarks.add(f"epoch {record.epoch}: {_FLAG_REMARKS[flag]}: {remedy}", own=True)

    def _last_remark(self, stopped: StopReason) -> tuple[str | None, int | None]:
        """A remark on the course of the run, and an estimate of the epochs that are missing to convergence."""
        remark = self._convergence.divergence_remark(self._schedule.rate(self._state.epoch + 1))
        if remark is not None or not self._start.refit:
            return remark, None  # losses of other samples, as of `partial_fit`, do not compare
        options, monitored = self._options, self._metrics.monitored
        if (overfits := self._overfitting()) is not None:
            return overfits, None
        more_epochs = self._convergence.more_epochs(monitored, adaptive=options.schedule == "adaptive")
        if more_epochs is None or stopped is not StopReason.EPOCHS:
            return None, None
        text = f"training has not converged: the {monitored.replace('_', ' ')} still falls; "
        unlimited = self._loss.task is Task.CLASSIFICATION and not any(self._prepared.strengths(options))
        if unlimited and self._convergence.separates:
            text += f"if the classes are separable, it falls for ever where no {option('l2')} limits it"
            return ConvergenceRemark(text), None
        text += f"about {more_epochs} more epoch{'s' * (more_epochs > 1)} would end it"
        return ConvergenceRemark(text), more_epochs

    def _overfitting(self) -> str | None:
        """A remark if samples that are not trained on are predicted worse by the last epochs."""
        for name in ("validation", "test"):
            found = self._convergence.overfits(f"{name}_loss")
            if found is not None:
                (l2, _), samples = self._prepared.strengths(self._options), self._prepared.samples
                more = option("l2", float(f"{10 * max(l2, 1 / samples):.2g}"))
                epoch, rise = found
                return (
                    f"the {name} loss was least after epoch {epoch} and is {rise:.0%} higher in the end, while the "
                    f"train loss fell: the model learns the training samples by heart: try {more}"
                )
        return None

    def _summary(self) -> dict[str, Any]:
        prepared = self._prepared
        configs = [dataclasses.asdict(shard.config) for shard in prepared.shards]
        return {
            "p4sgd": _version("p4sgd"),
            "data": prepared.name,
            "samples": prepared.samples,
            "validation_samples": 0 if prepared.validation is None else prepared.validation.samples,
            "features": prepared.space.count,
            "device": self._workers.device.name,
            "configuration": configs if any(each != configs[0] for each in configs) else configs[0],
            "units": [shard.units.size for shard in prepared.shards],
            "learning_rate": self._state.history[0].learning_rate,
            "scaling": prepared.scaling.kind,
            "scaling_reason": prepared.scaling.reason,
            "whitening_times": prepared.whitening_times and vars(prepared.whitening_times),
            "signed": prepared.features.signed,
            "l2": prepared.strengths(self._options)[0],
            "labels": self._coding.to_json(),
            "options": self._options.to_json(),
        }


def _settings_remarks(
    options: TrainingOptions, prepared: Prepared, sample_ranks: int, *, stream: bool
) -> Iterator[str]:
    """Remarks on options that do not suit each other, the data, or the ranks that divide the samples."""
    form, batch, samples = prepared.features, options.batch, prepared.samples
    if sample_ranks > batch // BANKS:
        yield f"a mini-batch of {batch} is enough for {batch // BANKS} of {sample_ranks} ranks: use a larger one"
    if options.precondition != "none" and options.penalties[0]:
        yield "l2 acts on the weights of whitened features, which are not those of the data"
    centred = prepared.scaling.kind in CENTRED
    apart = 2 * REACH[form.stored] / 2**form.precision
    if form.signed and form.precision == 1:
        # With a single stored plane these kinds divide at the centre and are unsigned.
        remedy = "store a single plane" if centred else "use the scaling minmax"
        yield f"training reads positive features as 0, one bit has no +1: {remedy}, or use a precision of at least 2"
    elif form.precision < form.stored and centred and apart > 1:
        what = f"in the {form.precision} of {form.stored} planes that are read, levels are {apart:.2g} deviations apart"
        yield f"{what}: store fewer planes, or use the scaling minmax"
    enough = -(-samples // BANKS) * BANKS
    if batch > enough and not stream:  # it is padded, but the rate is divided by its full size
        what = f"a batch of {batch:,} is larger than the {samples:,} training samples, so that updates are smaller"
        yield f"{what}: a batch of {enough:,} holds all samples"
