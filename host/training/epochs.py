"""The loop over epochs, for one row of the model: run the workers, measure the weights, keep the best ones.

A run of the workers is one epoch, after which the host reads the weights and measures them (`epoch_metrics.py`).
"""

import ctypes
import dataclasses
import importlib.metadata
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from p4sgd.host.data import Dataset
from p4sgd.host.data.scaling import CENTRED, REACH
from p4sgd.host.devices.session import Session
from p4sgd.host.distributed.communicator import SINGLE_PROCESS, broadcast, raise_on_all
from p4sgd.host.errors import P4sgdError, option
from p4sgd.host.image.entries import first_samples
from p4sgd.host.losses import Loss, Task
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.checkpoint import Best, State, Weights
from p4sgd.host.training.class_weights import rounding_remark
from p4sgd.host.training.convergence import Convergence
from p4sgd.host.training.dealing.columns import choose_hot
from p4sgd.host.training.epoch_metrics import EpochMetrics, Measured
from p4sgd.host.training.events import EpochRecord, Events
from p4sgd.host.training.prepared import Prepared, join
from p4sgd.host.training.rate import Rate, choose_penalties, choose_rate, run_settings, smallest_rate
from p4sgd.host.training.result import Remarks, StopReason, TrainingResult
from p4sgd.host.training.schedule import LearningRateSchedule
from p4sgd.host.training.search import samples_of_trials, search_rate
from p4sgd.host.training.start import Start
from p4sgd.host.training.workers import Workers
from p4sgd.hw.spec.config import BANKS
from p4sgd.hw.spec.registers import ModelSource
from p4sgd.hw.spec.run import RunSettings
from p4sgd.sim.sparse.data_parallel import SampleRanks

_FLAG_REMARKS = {
    "partial_clamped": "activations were clamped, at a limit that depends on the number of workers: a lower "
    "learning rate or more l2 keeps them smaller",
    "residual_saturated": "residuals were saturated at ±128: a lower learning rate keeps activations smaller",
    "weight_saturated": "weights were saturated at ±256: a lower learning rate or more l2 keeps them smaller",
}

_ONE_SIGNED_BIT = "one bit of a signed feature has no +1, so training reads positive features as 0"


def release_memory() -> None:
    """Give freed memory back to the system: arrays of millions of columns may not fit into the gaps between others."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)


class RowTraining:
    """The training of a row, on workers that have the features already if another row was trained before.

    Parameters
    ----------
    prepared
        The training set, for this row.
    held_out
        Samples that are not trained on, with their labels, by name.
    state
        The state that it starts from, an empty one if the run is new.
    tell
        See `Remarks`.
    keep
        Called when the state has changed, to write a checkpoint.
    last
        Whether no other row follows.
    """

    def __init__(
        self,
        workers: Workers,
        prepared: Prepared,
        held_out: Mapping[str, tuple[Dataset, FloatArray]],
        state: State,
        start: Start,
        events: Events,
        tell: Callable[[str, bool, bool], None],
        keep: Callable[[], None] | None,
        *,
        last: bool,
    ) -> None:
        self._workers = workers
        self._last = last
        self._options = options = workers.options
        self._ranks = prepared.communicator
        self._events = events
        self._keep = keep
        self._state = state
        self._start = start
        self.remarks = Remarks(state.remarks, tell)
        (self._coding,) = prepared.targets.coding.rows
        self._loss: Loss = options.loss_for(self._coding.scale, prepared.name)
        for remark in (*prepared.remarks, rounding_remark(prepared.targets.weights)):
            self.remarks.add(remark)
        sample_ranks = workers.sample_ranks
        workers.begin(prepared, self._loss, state, self.remarks)
        if sample_ranks is not None and workers.session is None:
            # Dense data have no heat: every sample may have every feature.
            heat = prepared.heat.count() if prepared.heat else np.full(prepared.space.count, prepared.samples)
            total, size = prepared.shards[0].total, sample_ranks.size
            sample_ranks.hot, remark = choose_hot(
                heat, total, prepared.samples, options, size, network=sample_ranks.packets
            )
            if sample_ranks.size == 1:
                remark = (
                    "--parallel data divides the samples among processes, and there is only one: start N of them with "
                    "mpiexec -n N, or leave it out, which is faster"
                )
            self.remarks.add(remark)
        self._tell_settings(prepared)
        self._metrics = EpochMetrics(prepared, options, self._loss, held_out, refit=options.bias and start.refit)
        automatic = options.learning_rate is None
        self._convergence = Convergence(state.history, self._metrics.constant_loss, automatic=automatic)
        self._found_rate: float | None = None
        first = state.first_rate or options.learning_rate or self._automatic_rate()
        self._batch = options.batch * prepared.mean_weight
        choose_rate(first, self._batch, prepared.features)  # raises if it is outside the range of the hardware
        state.first_rate = first
        smallest = smallest_rate(self._batch, prepared.features)
        self._schedule = LearningRateSchedule(
            options.schedule, first, options.power, smallest, options.patience, state.divisor
        )

    @property
    def _prepared(self) -> Prepared:
        """What is trained on, as it is dealt to the workers now."""
        return self._workers.prepared

    def run(self) -> TrainingResult:
        """Train to the end; raises as `p4sgd.host.training.train`."""
        opened: tuple[Session, ModelSource] | None = None
        state, options = self._state, self._options
        for record in state.history:
            self._events.epoch(record)
        tried = -1  # an epoch that began with all workers that could be had
        try:
            while state.epoch < options.epochs and not state.out_of_patience(options):
                try:
                    if state.epoch > tried:
                        tried = state.epoch
                        opened = self._workers.take_in() or opened
                    session, source = opened or self._workers.open()
                    self._metrics.read_from(self._prepared)
                    opened = session, self._epoch(session, source)
                except P4sgdError as error:
                    opened = self._workers.adopt(error)
            stopped = StopReason.PATIENCE if state.out_of_patience(options) else StopReason.EPOCHS
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
        last_remark, more_epochs = self._last_remark(stopped)
        if last_remark is not None:
            self.remarks.add_passing(last_remark, own=True)
        return TrainingResult(
            model=dataclasses.replace(model, training=training),
            metrics=metrics,
            history=tuple(state.history),
            best_epoch=best.epoch,
            monitored=self._metrics.monitored,
            stopped=stopped,
            remarks=self.remarks.all,
            summary=summary | self._workers.to_json(),
            more_epochs=more_epochs,
            next_start=self._next_start(best),
            activations=activations,
        )

    def _measure(self, best: Best) -> Measured:
        """Measure the best model. Data and model are large enough, so the images of the last row go before."""
        self._metrics.read_rounded(best.weights)
        weights = best.weights.values
        if self._last:
            self._workers.release()
            self._metrics.read_from(self._prepared)
        release_memory()
        return self._metrics.finish(weights)

    def _last_remark(self, stopped: StopReason) -> tuple[str | None, int | None]:
        """A remark on the course of the run, and an estimate of the epochs that are missing to convergence."""
        remark = self._convergence.last_remark(self._schedule.rate(self._state.epoch + 1))
        if remark is not None or stopped is not StopReason.EPOCHS:
            return remark, None
        options, monitored = self._options, self._metrics.monitored
        more_epochs = self._convergence.more_epochs(monitored, adaptive=options.schedule == "adaptive")
        if more_epochs is None:
            return None, None
        remark = f"training has not converged: the {monitored.replace('_', ' ')} still falls; "
        if self._loss.task is Task.CLASSIFICATION and not any(options.penalties) and self._convergence.separates:
            return f"{remark}if the classes are separable, it falls for ever where no {option('l2')} limits it", None
        return remark + f"about {more_epochs} more epoch{'s' * (more_epochs > 1)} would end it", more_epochs

    def _next_start(self, best: Best) -> Start | None:
        """What other samples may be trained from: the best weights, or those that the next epoch would start from."""
        prepared, state = self._prepared, self._state
        weights = state.weights if best.epoch == state.epoch else best.weights
        assert weights is not None
        return Start(
            coding=self._coding,
            scaling=prepared.scaling,
            weights=weights.values,
            rate=self._schedule.first / self._schedule.divisor,
            history=tuple(state.history),
            options=self._options,
            refit=self._start.refit,
        )

    def _epoch(self, session: Session, source: ModelSource) -> ModelSource:
        """Train an epoch; returns where the weights of the next one come from."""
        epoch = self._state.epoch + 1
        rate = choose_rate(self._schedule.rate(epoch), self._batch, self._prepared.features)
        session.configure(self._settings(rate))
        if source is not ModelSource.KEEP:
            session.plan_packets()
        begin = time.perf_counter()
        report = session.run(source)
        seconds = time.perf_counter() - begin
        counters = report.counters
        if (ranks := self._workers.sample_ranks) is not None:
            counters = tuple(self._ranks.all_gather(dict(ranks.counts)))
            ranks.counts.clear()
        shards, parts = self._prepared.shards, session.read_weights()
        weights = Weights(partial(join, shards, parts), (shards, parts))
        metrics = self._metrics.of_epoch(weights, parts)
        record = EpochRecord(
            epoch=epoch,
            learning_rate=rate.actual,
            metrics=metrics,
            seconds=seconds,
            samples_per_second=self._prepared.samples / seconds,
            flags=tuple(sorted(report.flags)),
            counters=counters,
        )
        self._tell_flags(record)
        # In this order, so that Ctrl-C between the two leaves no best epoch without a record.
        self._state.history.append(record)
        self._state.weights = following = self._score(record, weights)
        self.remarks.add(self._convergence.divergence_remark(), own=True)
        if self._keep is not None:
            self._keep()
        self._events.epoch(record)
        if following is weights:
            return ModelSource.KEEP
        session.write_weights(self._prepared.split(following.values))
        return ModelSource.MEMORY

    def _settings(self, rate: Rate) -> RunSettings:
        if rate.coarse:
            self.remarks.add(
                f"the learning rate is {rate.actual:.3g} instead of {rate.wanted:.3g}: it is near the smallest "
                "possible",
                own=True,
            )
        penalties = choose_penalties(rate.actual, *self._prepared.penalties(self._options))
        if self._schedule.divisor == 1:  # what is lost at the end, at a lower rate, does not matter
            for remark in penalties.remarks:
                self.remarks.add(remark, own=True)
        samples = self._prepared.samples
        return run_settings(
            self._options,
            self._prepared.features,
            rate,
            penalties,
            chunks=max(image.layout.chunks for image in self._prepared.images),
            mini_batches=-(-samples // self._options.batch),
            workers=len(self._prepared.shards),
            unit=self._prepared.unit,
            weighted=self._prepared.weighted,
        )

    def _score(self, record: EpochRecord, weights: Weights) -> Weights:
        """Keep the weights if they are the best so far, adapt the rate, and return the weights for the next epoch."""
        state, best = self._state, self._state.best
        score = record.metrics[self._metrics.monitored]
        progress = best is None or self._schedule.is_progress(score, best.score, self._options.tolerance)
        if best is None or score < best.score:
            state.best = best = Best(record.epoch, score, weights)
        state.idle = 0 if progress else state.idle + 1
        if self._convergence.diverged(record) and not self._schedule.lowest:
            self._schedule.lower(self._automatic_rate())
            state.idle = 0
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
            prepared, ranks = self._prepared, self._workers.sample_ranks
            if ranks is None:
                self._found_rate = search_rate(prepared, self._options, self._loss, self._metrics.constant_loss)
            else:
                self._found_rate = self._rate_of_one_rank(ranks)
        return self._found_rate

    def _rate_of_one_rank(self, ranks: SampleRanks) -> float:
        """The automatic rate, which rank 0 searches for with the samples of all that it needs."""
        prepared, options = self._prepared, self._options
        image = first_samples(prepared.images[0], samples_of_trials(prepared, options), ranks)
        found = 0.0

        def search() -> None:
            nonlocal found
            assert image is not None
            alone = dataclasses.replace(prepared, images=[image], communicator=SINGLE_PROCESS)
            found = search_rate(alone, options, self._loss, self._metrics.constant_loss)

        raise_on_all(self._ranks, None if image is None else search)
        return broadcast(self._ranks, found)

    def _tell_settings(self, prepared: Prepared) -> None:
        """Remark on options that do not suit each other, the data, or the ranks."""
        options, sample_ranks, form = self._options, self._workers.sample_ranks, prepared.features
        parts = options.batch // BANKS
        if sample_ranks is not None and sample_ranks.size > parts:
            self.remarks.add(
                f"a mini-batch of {options.batch} is enough for {parts} of {sample_ranks.size} ranks: use a larger one"
            )
        if options.precondition != "none" and options.penalties[0] > 0:
            self.remarks.add("l2 acts on the weights of whitened features, which are not those of the data")
        if form.signed and form.precision == 1:
            # With a single stored plane these kinds divide at the centre and are unsigned.
            remedy = "store a single plane" if prepared.scaling.kind in CENTRED else "use the scaling minmax"
            self.remarks.add(f"{_ONE_SIGNED_BIT}: {remedy}, or use a precision of at least 2")
        elif form.precision < form.stored and prepared.scaling.kind in CENTRED:
            apart = 2 * REACH[form.stored] / 2**form.precision
            if apart > 1:
                self.remarks.add(
                    f"in the {form.precision} of {form.stored} planes that are read, levels are {apart:.2g} deviations "
                    f"apart: store fewer planes, or use the scaling minmax"
                )
        batch, samples = options.batch, prepared.samples
        enough = -(-samples // BANKS) * BANKS
        if batch > enough:  # it is padded, but the rate is divided by its full size
            self.remarks.add(
                f"a batch of {batch:,} is larger than the {samples:,} training samples: updates are only "
                f"{samples / batch:.2g} of their size; a batch of {enough:,} holds all samples"
            )

    def _tell_flags(self, record: EpochRecord) -> None:
        if self._convergence.diverged(record):  # there is a remark about that
            return
        known = {flag for other in self._state.history if not self._convergence.diverged(other) for flag in other.flags}
        for flag in record.flags:
            if flag not in known:
                self.remarks.add(f"epoch {record.epoch}: {_FLAG_REMARKS[flag]}", own=True)

    def _summary(self) -> dict[str, Any]:
        prepared = self._prepared
        configs = [dataclasses.asdict(shard.config) for shard in prepared.shards]
        label = prepared.space.label_column
        return {
            "p4sgd": importlib.metadata.version("p4sgd"),
            "data": prepared.name,
            **({} if label is None else {"label_column": label}),
            "samples": prepared.samples,
            "validation_samples": 0 if prepared.validation is None else prepared.validation.samples,
            "features": prepared.space.count,
            "device": self._workers.device.name,
            "configuration": configs if any(each != configs[0] for each in configs) else configs[0],
            "units": [shard.units.size for shard in prepared.shards],
            "learning_rate": self._state.history[0].learning_rate,
            "scaling": prepared.scaling.kind,
            "scaling_reason": prepared.scaling.reason,
            "whitening_times": None if prepared.whitening_times is None else prepared.whitening_times.to_json(),
            "signed": prepared.features.signed,
            "labels": prepared.targets.coding.to_json(),
            "options": self._options.to_json(),
        }
