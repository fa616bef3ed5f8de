"""Search for precision, mini-batch and L2 penalty: training runs for each choice, measured on held-out samples.

The samples are divided several times; in each division all choices hold out the same samples, so that the differences
of their scores are less noisy than the scores. After each division only the better half goes on (successive halving:
Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, 2016). The choice that
nobody has tuned takes part to the end, and nothing that scores less is preferred. Each choice has the time that boards
are predicted to take for it, too.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from p4sgd.host import devices, training
from p4sgd.host.data import Dataset
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.errors import UserError
from p4sgd.host.losses import LOSSES, Probabilistic, Task
from p4sgd.host.losses.log_link import LogLink
from p4sgd.host.report.cycles import epoch_cycles
from p4sgd.host.run.training_run import TrainingRun
from p4sgd.host.training import ResultSet, StopReason, TrainingOptions
from p4sgd.host.training.dealing.units import deal_units
from p4sgd.host.training.metrics import score_activations
from p4sgd.host.training.preparation import encode_table, prepare
from p4sgd.host.training.prepared import Placement, Prepared, PreparedData
from p4sgd.hw.spec.config import CLOCK_NS, WorkerConfig

_OF_CLASSES = ("accuracy", "balanced_accuracy", "auc", "average_precision", "f1", "loss")
_OF_NUMBERS = ("r2", "mse", "rmse", "mae", "loss")

_FALLS = {"loss", "log_loss", "deviance", "mse", "rmse", "mae"}
"""Metrics of which less is better."""

_KEPT = 6
"""Choices that go on in any case, if there are as many."""

_ALIKE = 1.05
"""Times count as alike if they differ by no more than this factor: the prediction is not more exact."""


@dataclass(frozen=True)
class Trial:
    """The training runs with one choice, each with another division of the samples.

    ``scores`` are those of the runs on held-out samples, which are not used to choose the epoch either: so are the
    scores of what ``p4sgd train`` does with these options. ``l2`` is the strength of the penalty, of several rows the
    least, ``epochs`` are those to the best one, and rates those of the first epoch, ``None`` if classes have their own.
    ``board_ms`` is the mean time on boards, in ms, ``None`` if they cannot hold the columns.
    """

    options: TrainingOptions
    metric: str
    scores: tuple[float, ...] = ()
    l2: float = 0.0
    epochs: tuple[int, ...] = ()
    rates: tuple[float | None, ...] = ()
    board_ms: float | None = None

    @property
    def score(self) -> float:
        return float(np.mean(self.scores)) if self.scores else math.nan

    @property
    def merit(self) -> float:
        """The score, or its opposite if less of the metric is better."""
        return -self.score if self.metric in _FALLS else self.score

    @property
    def picked(self) -> dict[str, Any]:
        return {name: getattr(self.options, name) for name in ("precision", "batch", "l2")}

    def to_json(self) -> dict[str, Any]:
        """As plain data; ``spread`` is the standard deviation of the scores."""
        return {
            **self.picked,
            "learning_rates": list(self.rates),
            "epochs": list(self.epochs),
            "score": self.score,
            "scores": list(self.scores),
            "spread": float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else None,
            "board_ms": self.board_ms,
        }


def metrics_of(options: TrainingOptions) -> tuple[str, ...]:
    """The metrics by which models of a loss can be compared, the first by default."""
    loss = LOSSES[options.loss]
    if loss.task is Task.CLASSIFICATION:
        return (*(["log_loss"] if isinstance(loss, Probabilistic) else []), *_OF_CLASSES)
    if isinstance(loss, LogLink):
        return ("deviance", "d2", *_OF_NUMBERS)
    return ("loss", *_OF_NUMBERS[:-1]) if options.loss == "quantile" else _OF_NUMBERS


def check_metric(options: TrainingOptions, metric: str | None) -> str:
    """The metric to compare by, by default that of the loss; `UserError` if the loss has no such metric."""
    known = metrics_of(options)
    if metric is not None and metric not in known:
        raise UserError(
            f"{metric} is not measured with the loss {options.loss}: choose {', '.join(known)}", field="metric"
        )
    return metric or known[0]


def choices(options: TrainingOptions, grid: Mapping[str, Sequence[Any]]) -> list[TrainingOptions]:
    """The options as they are, and those for all other combinations, the last of the grid's fields changing fastest."""
    if options.penalties[0] is not None:  # else the default is none of the grid's
        options = dataclasses.replace(options, l2=options.penalties[0])
    combined = itertools.product(*grid.values())
    found = [dataclasses.replace(options, **dict(zip(grid, each, strict=True))) for each in combined]
    return [options, *(each for each in found if each != options)]


def runs_of(count: int, splits: int) -> int:
    """Number of runs that `tune` makes of so many choices."""
    return sum(itertools.islice(_survivors(count), splits))


def _survivors(count: int) -> Iterator[int]:
    while True:
        yield count
        count = max(min(count, _KEPT), -(-count // 2))


def tune(
    run: TrainingRun, chosen: Sequence[TrainingOptions], metric: str, fraction: float, splits: int
) -> Iterator[list[Trial]]:
    """Train and measure models for all choices, of which the first is that to be beaten; nothing is written.

    The run is on the emulator, and a fraction of its data is held out each time; the chosen options differ from its own
    in precision, mini-batch and L2 penalty. Yields the trials after every run. Data are
    prepared once for choices that follow each other and differ in the L2 penalty alone. Raises as
    `p4sgd.host.training.train`, and `KeyboardInterrupt` on Ctrl-C.
    """
    rows = run.rows
    if rows is None:
        raise UserError(f"{run.data.name}: was prepared for one precision: p4sgd tune needs the data themselves")
    if rows.target_names:
        raise UserError(f"{rows.name}: has several targets, of which models do not compare: name one --label-column")
    trials, left = [Trial(options, metric) for options in chosen], list(range(len(chosen)))
    sizes, task = _survivors(len(chosen)), LOSSES[run.options.loss].task
    LabelCoding.fit(task, rows, run.options.positive)  # raises if labels do not suit the loss
    for split in range(splits):
        seed = run.options.seed + split
        left = sorted(_ranked(trials, left)[: next(sizes)])
        data = encode_table(rows, dataclasses.replace(run.options, seed=seed, validation_fraction=fraction))
        rest, held_out = data.split(fraction, seed=seed, stratified=task is Task.CLASSIFICATION)
        prepared = _PreparedOnce(rest)
        for place in left:
            trials[place] = _tried(
                run, trials[place], prepared, held_out, dataclasses.replace(chosen[place], seed=seed)
            )
            yield trials


def _ranked(trials: Sequence[Trial], places: Sequence[int]) -> list[int]:
    """These trials, the one to be beaten first, then the better ones first."""
    merits = [trial.merit for trial in trials]
    return sorted(places, key=lambda place: (place > 0, math.isnan(merits[place]), -merits[place]))


class _PreparedOnce(PreparedData):
    """A data set that is prepared again only if another option than the L2 penalty has changed."""

    def __init__(self, data: Dataset) -> None:
        self._data = data
        self._last: tuple[TrainingOptions, Prepared] | None = None
        self.name, self.space, self.communicator, self.samples = data.name, data.space, data.communicator, data.samples
        self.weighted = data.sample_weights is not None

    def load(self, options: TrainingOptions, placement: Placement) -> Prepared:
        key = dataclasses.replace(options, l2=0.0)
        if self._last is None or self._last[0] != key:
            self._last = None  # before there is another one
            self._last = key, prepare(self._data, options, placement, test=True)
        return self._last[1]


def choose(trials: Sequence[Trial], held_out: float) -> tuple[int, int]:
    """The indices of the best trial, and of the one to prefer; `UserError` if no score is a number.

    Each run has held out a fraction of the samples. Trials with the most scores count. The best has the best mean, and
    of several the least time. Preferred is the fastest on boards, or the best of those that take up to 5 % longer, of
    those whose mean is less than a standard error of the difference below the best (Breiman et al., Classification and
    Regression Trees, 1984). Without times it is the best. Beside the first trial only those count that are not worse
    and have no weaker penalty, or are better by more than such an error: others would bet on chance.
    """
    most = max((len(trial.scores) for trial in trials), default=0)
    scored = [place for place, trial in enumerate(trials) if len(trial.scores) == most and math.isfinite(trial.score)]
    if not scored:
        raise UserError("no model can be measured on the held-out samples: hold out more of them")
    times = [math.inf if trial.board_ms is None else trial.board_ms for trial in trials]

    def merit(place: int) -> tuple[float, float]:
        return trials[place].merit, -times[place]

    def behind(place: int, other: int) -> bool:
        """Whether a trial is worse than another by more than the error."""
        error = difference_error(trials[place], trials[other], held_out)
        return trials[place].merit < trials[other].merit - error

    if 0 in scored:
        plain = trials[0]
        safe = {place for place in scored if trials[place].l2 >= plain.l2 and trials[place].merit >= plain.merit}
        scored = [place for place in scored if place in safe or behind(0, place)]
    best = max(scored, key=merit)
    good = [place for place in scored if not behind(place, best)]
    fastest = min(times[place] for place in good)
    return best, max((place for place in good if times[place] <= _ALIKE * fastest), key=merit)


def difference_error(one: Trial, other: Trial, held_out: float) -> float:
    """Standard error of the difference of the mean scores of two trials with the same divisions of the samples, in
    which a fraction is ``held_out``.

    Divisions share samples, so their number counts for less than that of independent ones (Nadeau and Bengio, Inference
    for the generalization error, 2003). 0 if there is one.
    """
    differences = np.subtract(one.scores, other.scores)
    if differences.size < 2:
        return 0.0
    return float(np.std(differences, ddof=1)) * math.sqrt(1 / differences.size + held_out / (1 - held_out))


def _tried(run: TrainingRun, trial: Trial, data: PreparedData, held_out: Dataset, options: TrainingOptions) -> Trial:
    """A trial with another run."""
    with contextlib.closing(devices.open_device(run.device, run.config, options.workers)) as device:
        result = training.train(data, options, device, test=held_out)
    if result.stopped is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    z, labels = result.activations["test"]
    score = score_activations(result.model, z, labels, result.weights["test"], held_out.offsets)[trial.metric]
    rows = result.rows if isinstance(result, ResultSet) else [result]
    epochs, done = sum(row.best_epoch for row in rows), len(trial.scores)
    time = _board_ms(options, result.summary["samples"], data.space.count, epochs)
    if time is not None and trial.board_ms is not None:
        time = (trial.board_ms * done + time) / (done + 1)
    return dataclasses.replace(
        trial,
        scores=(*trial.scores, score),
        l2=min(row.summary["l2"] for row in rows),
        epochs=(*trial.epochs, result.best_epoch),
        rates=(*trial.rates, result.summary.get("learning_rate")),
        board_ms=time,
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
