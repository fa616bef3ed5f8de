"""The result of a training run: the history of its epochs and the best model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.events import EpochRecord, plain_metrics
from p4sgd.host.training.model_file import Model, ModelSet
from p4sgd.host.training.start import Start


class StopReason(Enum):
    """Why training ended: all epochs were run, there was no progress for ``patience`` epochs, hardly any by default, or
    by Ctrl-C."""

    EPOCHS = "epochs"
    PATIENCE = "patience"
    CONVERGED = "converged"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training run: the model of the best epoch, remarks for the user, and facts as plain data.

    Parameters
    ----------
    metrics
        Those of the model, as of an epoch, but ``train_…`` are of the unrounded training samples, unless the data were
        prepared in advance.
    best_epoch, monitored
        The epoch with the smallest monitored metric, which is ``validation_loss``; without validation samples
        ``objective``, or ``train_loss`` if there are no penalties.
    more_epochs
        Epochs that were missing to convergence (`Convergence.more_epochs`) if all were run, and the classes are not
        separable.
    activations, weights
        By data, activations of the model and labels as `LabelCoding.labels_of` gives them, float64 (samples,) each;
        and weights of the samples: ``train``, of the same samples as in ``metrics``, ``validation`` and ``test``.
    """

    model: Model
    metrics: dict[str, float]
    history: tuple[EpochRecord, ...]
    best_epoch: int
    monitored: str
    stopped: StopReason
    remarks: tuple[str, ...]
    summary: dict[str, Any]
    more_epochs: int | None = None
    next_start: Start | None = None
    activations: Mapping[str, tuple[FloatArray, FloatArray]] = field(default_factory=dict, repr=False, compare=False)
    weights: Mapping[str, FloatArray | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def best(self) -> EpochRecord:
        return self.history[self.best_epoch - 1]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.summary,
            "epochs": [record.to_json() for record in self.history],
            "best_epoch": self.best_epoch,
            "metrics": plain_metrics(self.metrics),
            "monitored": self.monitored,
            "stopped": self.stopped.value,
            "more_epochs": self.more_epochs,
            "remarks": list(self.remarks),
        }


def common(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that are the same in all mappings."""
    first, *others = facts
    return {
        name: value for name, value in first.items() if all(name in each and each[name] == value for each in others)
    }


@dataclass(frozen=True)
class ResultSet:
    """The result of a training run with several rows, each of which has one of its own; see `TrainingResult`.

    Metrics are those of `p4sgd.host.training.metrics.measure_model`, activations are (samples, rows).
    """

    model: ModelSet
    metrics: dict[str, float]
    rows: tuple[TrainingResult, ...]
    activations: Mapping[str, tuple[FloatArray, FloatArray]] = field(repr=False, compare=False)
    weights: Mapping[str, FloatArray | None] = field(repr=False, compare=False)
    next_start: Start | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.model.labels.row_names

    @property
    def history(self) -> tuple[EpochRecord, ...]:
        """The epochs of all rows, one row after another."""
        return tuple(record for row in self.rows for record in row.history)

    @property
    def best_epoch(self) -> int:
        """The last of the best epochs of the rows."""
        return max(row.best_epoch for row in self.rows)

    @property
    def monitored(self) -> str:
        """The metric that chooses the best epoch of each row."""
        return self.rows[0].monitored

    @property
    def stopped(self) -> StopReason:
        """Why training ended: interrupted in the last row, or early in all rows."""
        reasons = {row.stopped for row in self.rows}
        if StopReason.INTERRUPTED in reasons:
            return StopReason.INTERRUPTED
        return reasons.pop() if len(reasons) == 1 else StopReason.EPOCHS

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on all rows, then on some; how many epochs they need is left out, so that these are the same."""
        remarks = [[_without_epochs(text) for text in row.remarks] for row in self.rows]
        shared = [text for text in remarks[0] if all(text in each for each in remarks)]
        own: dict[str, list[str]] = {}
        for name, each in zip(self.names, remarks, strict=True):
            for text in each:
                if text not in shared:
                    own.setdefault(text, []).append(name)
        name_rows = self.model.labels.name_rows
        return (*shared, *(type(text)(f"{name_rows(names)}: {text}") for text, names in own.items()))

    @property
    def summary(self) -> dict[str, Any]:
        return common([row.summary for row in self.rows]) | {"labels": self.model.labels.to_json()}

    def to_json(self) -> dict[str, Any]:
        rows = []
        for name, row in zip(self.names, self.rows, strict=True):
            facts = row.to_json()
            rows.append({"name": name, **{key: facts[key] for key in facts if key not in self.summary}})
        return {
            **self.summary,
            "rows": rows,
            "metrics": plain_metrics(self.metrics),
            "monitored": self.monitored,
            "stopped": self.stopped.value,
            "remarks": list(self.remarks),
        }


def _without_epochs(remark: str) -> str:
    """Without the number of `TrainingResult.more_epochs`."""
    return type(remark)(re.sub(r"; about \d+ more epochs?", "; more epochs", remark))
