"""Cross-validation: a training run for each of several folds, on the samples outside of it, measured on those in it.

Whatever is fitted to data (features of a table, scaling, whitening, mean and deviation of the targets, the learning
rate) is fitted to the samples that a run trains on.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4sgd.host.data import Dataset
from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.errors import UserError
from p4sgd.host.losses import Task, get_loss
from p4sgd.host.run.request import TrainingRequest
from p4sgd.host.run.training_run import TrainingRun
from p4sgd.host.training import ResultSet, StopReason, TrainingOptions, TrainingResult
from p4sgd.host.training.events import SILENT, Events
from p4sgd.host.training.metrics import score


@dataclasses.dataclass(frozen=True)
class Fold:
    """One fold: its number from 1, its samples, the run on all others, and the metrics of that model on the fold."""

    number: int
    samples: int
    result: TrainingResult | ResultSet
    metrics: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        result = self.result
        rate = {"learning_rate": result.best.learning_rate} if isinstance(result, TrainingResult) else {}
        about = {"fold": self.number, "samples": self.samples, "epoch": result.best_epoch}
        return about | rate | self.metrics


def check_folds(request: TrainingRequest) -> None:
    """Refuse what does not go with cross-validation."""
    reasons = dict.fromkeys(("resume", "checkpoint", "images"), "it is of one run")
    reasons |= {"test": "folds are the test data", "init": "the model may have been trained on samples of the folds"}
    for name, reason in reasons.items():
        if getattr(request, name) is not None:
            raise UserError(f"--{name} does not go with --folds: {reason}: leave one of them out")
    if request.report is not None and request.out is None:
        raise UserError("--report with --folds needs --out: it is of the model that is trained on all samples")


def split_folds(
    data: Dataset, options: TrainingOptions, folds: int
) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """For each fold the samples outside of it and those in it, divided at random by scikit-learn's `StratifiedKFold`,
    or `KFold` for numbers; `UserError` if there are too few samples, or if the labels do not suit the loss."""
    from sklearn.model_selection import KFold, StratifiedKFold

    seed = options.seed % (1 << 32)  # scikit-learn takes no larger one
    task = get_loss(options.loss).task
    if task is Task.CLASSIFICATION and not data.target_names:
        labels = LabelCoding.fit(task, data, options.positive).labels_of(data)
        there, whose = int(np.unique(labels, return_counts=True)[1].min()), "a class of "
        splitter: KFold | StratifiedKFold = StratifiedKFold(folds, shuffle=True, random_state=seed)
    else:
        labels, there, whose = data.labels, data.samples, ""
        splitter = KFold(folds, shuffle=True, random_state=seed)
    if there < folds:
        remedy = f"choose at most {there}" if there > 1 else "leave --folds out"
        count = f"{there} sample{'s' * (there > 1)}"
        raise UserError(f"{whose}{data.name} has {count}, too few for --folds {folds}: {remedy}")
    return list(splitter.split(np.zeros(data.samples), labels))


class _OfFold(Events):
    """Remarks and warnings of the folds' runs, with the number of the fold; those of several runs come once."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._shown = set[str]()
        self._number = 0

    def fold(self, number: int) -> None:
        self._number = number
        self._events.fold(number)

    def remark(self, text: str) -> None:
        kind, predicted, _ = text.partition("predicted")
        kind = re.sub(r"[\d.,]+", "", kind) if predicted else text  # predictions, and what they are of, differ a little
        if kind not in self._shown:
            self._shown.add(kind)
            self._events.remark(f"fold {self._number}: {text}")

    def warning(self, text: str) -> None:
        self._events.warning(f"fold {self._number}: {text}")


def cross_validate(run: TrainingRun, folds: int, events: Events = SILENT) -> Iterator[Fold]:
    """Train and measure a model for each fold of the data of a run, one after another; nothing is written.

    Of ``events``, ``fold``, ``remark`` and ``warning`` are called. Raises as `split_folds` and `TrainingRun.execute`,
    and `KeyboardInterrupt` on Ctrl-C.
    """
    data = run.rows  # of a table every fold makes features of its own
    if data is None:
        raise UserError(f"{run.data.name}: was prepared as a whole: --folds needs the data themselves")
    data = data.counted()
    own = _OfFold(events)
    for number, (rest, held_out) in enumerate(split_folds(data, run.options, folds), 1):
        own.fold(number)
        request = dataclasses.replace(run.request, data=data.take(rest), reading={}, out=None, report=None)
        result = TrainingRun(request, run.ranks).execute(own)
        if result.stopped is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        metrics = score(result.model, data.take(held_out, f"fold {number} of {data.name}"))
        yield Fold(number, held_out.size, result, metrics)


def summarise(folds: Sequence[Fold]) -> tuple[dict[str, float], dict[str, float]]:
    """Mean and standard deviation over the folds of every metric that is a number, NaN if it is not in all folds."""
    names = [name for name, value in folds[0].metrics.items() if isinstance(value, float)]
    values = {name: np.array([fold.metrics.get(name, math.nan) for fold in folds], np.float64) for name in names}
    with np.errstate(invalid="ignore"):
        means = {name: float(each.mean()) for name, each in values.items()}
        return means, {name: float(each.std()) for name, each in values.items()}
