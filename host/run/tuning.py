"""Search for precision, mini-batch and L2 penalty: a training run for each choice, measured on held-out samples.

All runs hold out the same samples. Each has the time that boards are predicted to take for it, too.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from p4sgd.host import devices, training
from p4sgd.host.data import Dataset
from p4sgd.host.data.identity import DataIdentity, identify
from p4sgd.host.data.sample_weights import average
from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES, Task, get_loss
from p4sgd.host.losses.log_link import LogLink
from p4sgd.host.report.cycles import epoch_cycles
from p4sgd.host.run.training_run import TrainingRun
from p4sgd.host.training import ResultSet, StopReason, TrainingOptions, TrainingResult
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.preparation import prepare
from p4sgd.host.training.prepared import Placement, Prepared, PreparedData
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig

_ALIKE = 1.05
"""Times count as alike if they differ by no more than this factor: the prediction is not more exact."""


@dataclass(frozen=True)
class Trial:
    """A training run with one choice.

    The ``epochs`` of its options are those to its best one, whose time on boards, in ms, is ``None`` if they cannot
    hold the columns; the rate is that of the first, ``None`` if classes have their own; the score is the metric that
    `metric_of` names, on the held-out samples, with its standard error.
    """

    options: TrainingOptions
    learning_rate: float | None
    metrics: Mapping[str, float]
    score: float
    error: float
    board_ms: float | None

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **{name: getattr(self.options, name) for name in ("precision", "batch", "l2")},
            "learning_rate": self.learning_rate,
            "epoch": self.options.epochs,
            "score": self.score,
            "error": self.error,
            "board_ms": self.board_ms,
            "metrics": dict(self.metrics),
        }


def metric_of(options: TrainingOptions) -> str:
    """What models are compared by: ``accuracy``, ``r2``, or ``d2`` where predictions are e^z."""
    if get_loss(options.loss).task is Task.CLASSIFICATION:
        return "accuracy"
    return "d2" if isinstance(LOSSES[options.loss], LogLink) else "r2"


def check_data(source: str) -> None:
    """Refuse a folder of prepared data."""
    from p4sgd.host.streaming.folder import is_prepared

    if is_prepared(source):
        raise UserError(f"{source}: was prepared for one precision: p4sgd tune needs the data themselves")


def choices(options: TrainingOptions, grid: Mapping[str, Sequence[Any]]) -> list[TrainingOptions]:
    """Options for all combinations, the last of the grid's fields changing fastest."""
    combined = itertools.product(*grid.values())
    return [dataclasses.replace(options, **dict(zip(grid, each, strict=True))) for each in combined]


def tune(run: TrainingRun, chosen: Sequence[TrainingOptions]) -> Iterator[Trial]:
    """Train and measure a model for each choice, one after another; nothing is written.

    The run is on the emulator, on data that are not prepared, with held-out samples; the chosen options differ from its
    own in precision, mini-batch and L2 penalty. Data are prepared once for choices that follow each other and differ in
    the L2 penalty alone. Raises as `p4sgd.host.training.train`, and `KeyboardInterrupt` on Ctrl-C.
    """
    data = run.data
    assert isinstance(data, Dataset), "see check_data"
    if data.target_names:
        raise UserError(f"{data.name}: has several targets, of which models do not compare: name one --label-column")
    if not run.options.validation_fraction:
        raise UserError("models are compared on held-out samples: --validation-fraction must be above 0")
    prepared = _PreparedOnce(data, run.options)
    for options in chosen:
        with contextlib.closing(devices.open_device(run.device, run.config, options.workers)) as device:
            result = training.train(prepared, options, device)
        if result.stopped is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        yield _trial(result, options, data.feature_count)


class _PreparedOnce(PreparedData):
    """A data set that is prepared again only if another option than the L2 penalty has changed."""

    def __init__(self, data: Dataset, options: TrainingOptions) -> None:
        self._data = data
        self._last: tuple[TrainingOptions, Prepared] | None = None
        self.name, self.space, self.communicator = data.name, data.space, data.communicator
        self.samples = data.samples - data.held_out(options.validation_fraction)
        self.weighted = data.sample_weights is not None

    @cached_property
    def identity(self) -> DataIdentity:  # type: ignore[override]  # hashes all values, for checkpoints
        return identify(self._data)

    def load(self, options: TrainingOptions, placement: Placement) -> Prepared:
        key = dataclasses.replace(options, l2=0.0)
        if self._last is None or self._last[0] != key:
            self._last = None  # before there is another one
            self._last = key, prepare(self._data, options, placement)
        return self._last[1]


def choose(trials: Sequence[Trial]) -> tuple[int, int]:
    """The indices of the best trial, and of the one to prefer; `UserError` if no score is a number.

    The best has the best score, and of several the least time. Preferred is the fastest on boards of those whose score
    is less than a standard error below that (Breiman et al., Classification and Regression Trees, 1984), or the best of
    those that take up to 5 % longer. Without times it is the best.
    """
    scored = [place for place, trial in enumerate(trials) if math.isfinite(trial.score)]
    if not scored:
        raise UserError("no model can be measured on the held-out samples: hold out more of them")
    times = [math.inf if trial.board_ms is None else trial.board_ms for trial in trials]

    def merit(place: int) -> tuple[float, float]:
        return trials[place].score, -times[place]

    best = max(scored, key=merit)
    error = trials[best].error
    enough = trials[best].score - (error if math.isfinite(error) else 0.0)
    good = [place for place in scored if trials[place].score >= enough]
    least = min(times[place] for place in good)
    return best, max((place for place in good if times[place] <= _ALIKE * least), key=merit)


def _trial(result: TrainingResult | ResultSet, options: TrainingOptions, features: int) -> Trial:
    (z, labels), weights = result.activations["validation"], result.weights["validation"]
    coding = result.model.labels
    predicted = coding.predictions(z)
    mean = np.full_like(labels, np.average(labels, axis=0, weights=weights))
    model, epochs = result.model.rows[0], result.best_epoch
    if isinstance(result, ResultSet):
        epochs = sum(row.best_epoch for row in result.rows)
    loss = get_loss(model.loss, model.loss_parameters)
    if coding.task is Task.CLASSIFICATION:
        errors, of_mean = (predicted != labels).astype(np.float64), np.ones_like(labels)
    elif isinstance(loss, LogLink):
        errors, of_mean = loss.deviance(labels, predicted), loss.deviance(labels, mean)
    else:
        errors, of_mean = (predicted - labels) ** 2, (labels - mean) ** 2
    errors, of_mean = (each.reshape(labels.shape[0], -1).mean(axis=1) for each in (errors, of_mean))  # of all targets
    shares = np.ones_like(errors) if weights is None else weights
    shares = shares / shares.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.sum((shares * (errors - average(errors, weights))) ** 2)  # of the weighted mean
        error = float(np.sqrt(variance) / np.float64(average(of_mean, weights)))
    return Trial(
        options=dataclasses.replace(options, epochs=result.best_epoch),
        learning_rate=result.summary.get("learning_rate"),
        metrics=result.metrics,
        score=result.metrics[f"validation_{metric_of(options)}"],
        error=error,
        board_ms=_board_ms(options, result.summary["samples"], features, epochs),
    )


def _board_ms(options: TrainingOptions, samples: int, features: int, epochs: int) -> float | None:
    """Predicted time of some epochs on so many U280 as there are workers, in ms; ``None`` if they have no room."""
    configs = [WorkerConfig.u280()] * options.workers
    try:
        shards = deal_units(features, options, configs)
    except UserError:
        return None
    cycles = epoch_cycles(options, configs, [shard.units.size for shard in shards], samples, features)
    return sum(cycles.values()) * epochs * CLOCK_NS / 1e6
