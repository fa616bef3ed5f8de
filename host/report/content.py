"""What a report says: plain texts, numbers and figures, which the template arranges."""

import dataclasses
import datetime
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from p4sgd.host.data.builtin import with_meanings
from p4sgd.host.data.labels import LabelCoding, TargetCoding
from p4sgd.host.errors import listed
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.report import figures
from p4sgd.host.report.cycles import cycles_of
from p4sgd.host.training.events import TITLES
from p4sgd.host.training.model_file import Model, ModelSet
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.result import ResultSet, StopReason, TrainingResult
from p4sgd.hw.spec.config import NamedConfig, WorkerConfig
from p4sgd.hw.spec.registers import COUNTERS

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import Trace

_MOST_COEFFICIENTS, _MOST_EPOCHS, _MOST_MICRO_BATCHES = 20, 200, 64
"""Coefficients and epochs in tables; micro-batches of a mini-batch that are drawn, as nearly as their time shows."""

_MOST_CLASSES, _MOST_CONFUSED = 12, 30
"""Classes with a curve, and classes of a confusion matrix that is shown."""

_UNITS = {Task.CLASSIFICATION: "", Task.REGRESSION: ", in the unit of the target"}
"""What the numbers of coefficients are of, but for those of a logarithmic link."""

_STOPPED = {
    StopReason.EPOCHS: "all epochs were run",
    StopReason.PATIENCE: "stopped early: no more progress",
    StopReason.CONVERGED: "ended early: hardly any more progress",
    StopReason.INTERRUPTED: "interrupted",
}

_Outcomes = dict[str, tuple[FloatArray, FloatArray]]  # activations and labels by data
_Curve = tuple[FloatArray, FloatArray, float]  # points, and the area under it


def make_content(
    result: TrainingResult | ResultSet, about: Mapping[str, Any], *, rounded: bool, trace: "Trace | None"
) -> dict[str, Any]:
    """The variables of the template; see `p4sgd.host.report.save_report` for the arguments."""
    model = result.model
    return {
        "data": about["data"],
        "summary": result.summary,
        "loss": LOSSES[model.loss],
        "written": f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M}",
        "cards": _cards(result),
        "remarks": list(result.remarks),
        **_quality(result),
        "rounded": rounded,
        "coefficients": _coefficients(model),
        "features": f"{model.space.count:,}",
        "all_coefficients": f"{model.coefficients.size:,}",
        "nonzero": f"{np.count_nonzero(model.coefficients):,}",
        "intercept": listed([_number(value) for value in np.atleast_1d(model.linear()[1])], _MOST_CLASSES),
        "unit": _UNITS.get(model.labels.task, ", of the logarithm of the prediction"),
        "cycles": _cycles(result),
        "overlap": _overlap(trace),
        "facts": _facts(result, about),
        "options": _options(result.summary["options"]),
    }


def _quality(result: TrainingResult | ResultSet) -> dict[str, Any]:
    coding, confusions = with_meanings(result.model.labels, result.model.training.get("data")), []
    outcomes = {name: (result.model.logits(z), labels) for name, (z, labels) in result.activations.items()}
    if coding.task is Task.CLASSIFICATION:
        quality = _class_figures(outcomes, coding)
    else:
        quality = _target_figures(outcomes, coding)
    if isinstance(coding, LabelCoding) and 2 <= len(coding.classes) <= _MOST_CONFUSED:
        confusions = [_confusion(data, z, labels, coding) for data, (z, labels) in outcomes.items()]
    if isinstance(result, TrainingResult):
        known = result.history[-1].metrics
        histories = {name: result.history for name in ("train", "validation", "test") if f"{name}_loss" in known}
        curves = [
            figures.epochs(histories, {name: f"{name}_{metric}" for name in histories}, title, result.best_epoch)
            for metric, title in list(TITLES.items())[:4]
            if f"train_{metric}" in known
        ]
        curves.append(figures.epochs({"": result.history}, {"": "learning_rate"}, "learning rate"))
    else:
        histories = {name: row.history for name, row in zip(result.names, result.rows, strict=True)}
        known = result.rows[0].history[0].metrics
        measured = [f"{name}_loss" for name in outcomes if f"{name}_loss" in known]
        curves = [
            figures.epochs(histories, dict.fromkeys(histories, metric), metric.replace("_", " "))
            for metric in (*measured, "learning_rate")
        ]
    return {
        "curves": curves,
        "quality": quality,
        "scores": _scores(result, outcomes, coding),
        "confusions": confusions,
        "epochs": _epochs(result),
    }


def _class_figures(outcomes: _Outcomes, coding: LabelCoding | TargetCoding) -> list[Markup]:
    """ROC and precision-recall curves by data, or of the rows with the smallest areas; of two classes activations."""
    data, (z, labels) = list(outcomes.items())[-1]
    if isinstance(coding, LabelCoding) and len(coding.classes) == 2:
        found = {name: _curves(*outcome, coding) for name, outcome in outcomes.items()}
        pairs = zip(_class_names(coding), coding.classes, strict=True)
        by_class = {f"true class {name}": z[labels == label] for name, label in pairs if (labels == label).any()}
        activations = [figures.distributions(by_class, f"activations, {data} samples")]
    else:  # each row is of one class against another
        rows = enumerate(zip(coding.row_names, coding.rows, strict=True))
        found = {name: _curves(z[:, place], coding.of_row(labels, place), row) for place, (name, row) in rows}
        activations = []
    curves = {name: each for name, each in found.items() if each is not None}
    if not activations:
        curves = dict(sorted(curves.items(), key=lambda item: item[1][0][2])[:_MOST_CLASSES])
    if not curves:
        return activations
    areas, averages = ({name: each[which] for name, each in curves.items()} for which in (0, 1))
    return [figures.roc(areas), figures.precision_recall(averages), *activations]


def _target_figures(outcomes: _Outcomes, coding: LabelCoding | TargetCoding) -> list[Markup]:
    """Predictions, residuals and their distribution; of several targets, which have units of their own, residuals."""
    targets = {data: (coding.predictions(z), labels) for data, (z, labels) in outcomes.items()}
    if isinstance(coding, TargetCoding):
        return [
            figures.residuals({data: (y[:, place], true[:, place]) for data, (y, true) in targets.items()}, name)
            for place, name in enumerate(coding.row_names[:_MOST_CLASSES])
        ]
    errors = {name: true - predicted for name, (predicted, true) in targets.items()}
    distribution = figures.distributions(errors, "true − predicted")
    return [figures.predictions(targets), figures.residuals(targets), distribution]


def _curves(z: FloatArray, labels: FloatArray, coding: LabelCoding) -> tuple[_Curve, _Curve] | None:
    """ROC and precision-recall curve of one class against another; ``None`` without samples of both."""
    from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

    true = labels == coding.classes[1]
    if not np.isfinite(z).all() or not 0 < true.sum() < true.size:
        return None
    wrong, right, _ = roc_curve(true, z)
    precision, recall, _ = precision_recall_curve(true, z, drop_intermediate=True)
    average = float(average_precision_score(true, z))
    return (wrong, right, float(roc_auc_score(true, z))), (recall, precision, average)


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4g}".replace("-", "−")


def _text(metric: str, value: float | None) -> str:
    return f"{value:.2%}" if metric == "accuracy" and value is not None else _number(value)


def _cards(result: TrainingResult | ResultSet) -> list[tuple[str, str, str]]:
    metrics, history, coding = result.metrics, result.history, result.model.labels
    cards = []
    for name in ("test", "validation", "train"):
        for metric in list(TITLES)[1:4]:
            if (value := metrics.get(f"{name}_{metric}")) is not None:
                cards.append((f"{name} {TITLES[metric]}", _text(metric, value), ""))
    if isinstance(result, TrainingResult):
        cards.append(("best epoch", f"{result.best_epoch} of {len(history)}", _STOPPED[result.stopped]))
    else:
        cards.append(("epochs", f"{len(history)}", f"of {len(result.rows)} rows, one for each {coding.row_kind}"))
    seconds = sum(record.seconds for record in history)
    speed = f"{result.summary['samples'] * len(history) / seconds:,.0f} samples a second" if seconds else ""
    if result.summary["device"] == "rtl":
        speed += ", of the simulator"
    cards.append(("time on the device", f"{seconds:,.3g} s", speed))
    return cards


def _scores(
    result: TrainingResult | ResultSet, outcomes: _Outcomes, coding: LabelCoding | TargetCoding
) -> dict[str, Any]:
    rows: list[tuple[str, list[str]]] = [("samples", [f"{len(labels):,}" for _, labels in outcomes.values()])]
    for metric, title in TITLES.items():
        values = [result.metrics.get(f"{name}_{metric}") for name in outcomes]
        if any(value is not None for value in values):
            rows.append((title, [_text(metric, value) for value in values]))
    if isinstance(coding, TargetCoding):
        return {"columns": list(outcomes), "rows": rows}
    if coding.task is Task.CLASSIFICATION:
        from sklearn.metrics import precision_recall_fscore_support

        several = len(coding.classes) > 2
        how = {"average": "macro"} if several else {"average": "binary", "pos_label": coding.classes[1]}
        of_class = [
            precision_recall_fscore_support(labels, coding.predictions(z), zero_division=np.nan, **how)
            for z, labels in outcomes.values()
        ]
        of = "mean {} of the classes" if several else f"{{}} of {_class_names(coding)[1]}"
        for place, title in enumerate(("precision", "recall", "F1")):
            rows.append((of.format(title), [_number(each[place]) for each in of_class]))
    else:
        errors = [float(np.abs(coding.predictions(z) - labels).mean()) for z, labels in outcomes.values()]
        rows.append(("mean absolute error", list(map(_number, errors))))
    return {"columns": list(outcomes), "rows": rows}


def _class_names(coding: LabelCoding) -> tuple[str, ...]:
    if coding.positive is None:
        return coding.meanings
    return "all others", str(dataclasses.replace(coding, positive=None).name(coding.positive))


def _confusion(data: str, z: FloatArray, labels: FloatArray, coding: LabelCoding) -> dict[str, Any]:
    from sklearn.metrics import confusion_matrix

    names = _class_names(coding)
    counts = confusion_matrix(labels, coding.predictions(z), labels=coding.classes)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    rows = []
    for actual, *row in zip(names, counts.tolist(), shares.tolist(), strict=True):
        cells = [(f"{count:,}", f"{share:.3f}", f"{share:.2%}") for count, share in zip(*row, strict=True)]
        rows.append((actual, cells))
    return {"data": data, "classes": names, "rows": rows}


def _coefficients(model: Model | ModelSet) -> list[dict[str, Any]]:
    """The largest coefficients, as ``p4sgd inspect`` shows them.

    They are compared after scaling, of features and of targets, because a raw one depends on their units.
    """
    space, names = model.space, model.labels.row_names
    table, slope = np.atleast_2d(model.linear()[0]), np.abs(model.rows[0].slope[: space.count])
    effects = np.divide(np.atleast_2d(model.coefficients), slope, out=np.zeros(table.shape), where=slope > 0)
    order = np.argsort(-np.abs(effects), axis=None, kind="stable")[:_MOST_COEFFICIENTS]
    places = list(zip(*map(np.ndarray.tolist, np.unravel_index(order, table.shape)), strict=True))
    return [
        {
            "name": f"{names[row]}: {space.name(column)}" if names[row] else space.name(column),
            "value": _number(table[row, column]),
            "width": f"{100 * abs(effects[row, column] / effects[places[0]]):.1f}",
            "sign": "plus" if effects[row, column] > 0 else "minus",
        }
        for row, column in places
        if effects[row, column] != 0
    ]


def _cycles(result: TrainingResult | ResultSet) -> dict[str, Any] | None:
    """Predicted and counted cycles by cause: a figure and a table; ``None`` where nothing was counted."""
    bars, note = cycles_of(result)
    if not bars:
        return None
    rows = []
    for counter, cause in figures.CAUSES.items():
        if any(bar.get(counter) for bar in bars.values()):
            cells = [f"{bar[counter]:,}" if counter in bar else "–" for bar in bars.values()]
            rows.append((cause, COUNTERS[counter].help, cells))
    totals = [f"{sum(value for name, value in bar.items() if name in figures.CAUSES):,}" for bar in bars.values()]
    return {"figure": figures.stacked_cycles(bars), "bars": list(bars), "rows": rows, "totals": totals, "note": note}


def _overlap(trace: "Trace | None") -> dict[str, Any] | None:
    from p4sgd.sim.cluster.trace import second_mini_batch

    shown = None if trace is None else second_mini_batch(trace)
    if shown is None:
        return None
    cycles, first = shown.end - shown.begin, shown.rows["forward"][0]
    part = min(1.0, _MOST_MICRO_BATCHES / sum(each.mini_batch == shown.number for each in first))
    drawn = dataclasses.replace(shown, end=shown.begin + math.ceil(cycles * part))
    return {"figure": figures.overlap(drawn), "number": shown.number, "cycles": f"{cycles:,}", "whole": part == 1}


def _facts(result: TrainingResult | ResultSet, about: Mapping[str, Any]) -> list[tuple[str, str]]:
    summary = result.summary
    sizes = {name: len(labels) for name, (_, labels) in result.activations.items()}
    workers, stated = len(summary["units"]), summary["configuration"]
    configs = [WorkerConfig(**each) for each in ([stated] if isinstance(stated, Mapping) else stated)]
    kinds = [str(NamedConfig.find(each)) for each in configs]
    facts = {
        "training data": f"{about['data']}: {summary['samples']:,} samples, {summary['features']:,} features",
        "held out": f"{sizes['validation']:,} samples" if "validation" in sizes else "",
        "test data": f"{about['test']}: {sizes['test']:,} samples" if "test" in sizes else "",
        "labels": _label_text(with_meanings(result.model.labels, result.model.training.get("data"))),
        "scaling": ": ".join(filter(None, (summary["scaling"], summary["scaling_reason"]))),
        "learning rate": f"{summary['learning_rate']:.4g} in the first epoch" if "learning_rate" in summary else "",
        "device": f"{summary['device']}, {workers:,} worker{'s' * (workers > 1)}",
        "configuration": ", ".join(dict.fromkeys(kinds)),
        "processes": f"{about['ranks']}" if about["ranks"] > 1 else "",
        "model": str(about["out"] or "not kept"),
        "checkpoint": str(about["checkpoint"] or ""),
        "P4SGD": summary["p4sgd"],
    }
    return [(name, text) for name, text in facts.items() if text]


def _label_text(coding: LabelCoding | TargetCoding) -> str:
    if isinstance(coding, TargetCoding):
        return f"{len(coding.rows)} targets: {listed(coding.row_names, _MOST_CLASSES)}"
    if coding.task in (Task.NON_NEGATIVE, Task.POSITIVE):
        return f"in units of {coding.scale:.4g}"
    if coding.task is Task.REGRESSION:
        return f"mean {coding.mean:.4g}, deviation {coding.scale:.4g}"
    first, *others = _class_names(coding)
    return f"{others[0]} against {first}" if len(others) == 1 else f"{1 + len(others)} classes, each against the rest"


def _options(options: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    defaults = TrainingOptions().to_json()
    return [
        (name.replace("_", " "), "–" if value is None else f"{value}", value != defaults[name])
        for name, value in options.items()
    ]


def _epochs(result: TrainingResult | ResultSet) -> dict[str, Any]:
    """A table of epochs, some of them if there are many, of which the best one is marked; or of the rows of a model."""
    rows: list[tuple[list[str], bool]] = []
    if isinstance(result, ResultSet):
        names = [name for name in result.rows[0].metrics if not name.endswith("_mse")]
        for name, row in zip(result.names, result.rows, strict=True):
            metrics = (_number(row.metrics[each]) for each in names)
            rows.append(([name, f"{len(row.history)}", f"{row.best_epoch}", *metrics], False))
        columns = [result.model.labels.row_kind, "epochs", "best epoch", *map(_title, names)]
        return {"columns": columns, "rows": rows, "title": "All rows of the model"}
    history = result.history
    names = [name for name in history[-1].metrics if not name.endswith("_mse")]
    for place in figures.thinned(len(history), _MOST_EPOCHS):
        record = history[place]
        metrics = (_number(record.metrics.get(name)) for name in names)
        cells = [f"{record.epoch}", *metrics, f"{record.learning_rate:.4g}", f"{record.seconds:.3g}"]
        rows.append((cells, record.epoch == result.best_epoch))
    title = "All epochs" if len(rows) == len(history) else "Some of the epochs"
    return {"columns": ["epoch", *map(_title, names), "rate", "seconds"], "rows": rows, "title": title}


def _title(metric: str) -> str:
    return metric.replace("_", " ").replace("r2", "R²").replace("d2", "D²")
