"""What a report says: plain texts, numbers and figures, which the template arranges."""

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from p4sgd.host.data.labels import LabelCoding
from p4sgd.host.losses import LOSSES, Task
from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.report import figures
from p4sgd.host.report.cycles import counted_cycles, predicted_cycles
from p4sgd.host.training.model_file import Model
from p4sgd.host.training.options import TrainingOptions
from p4sgd.host.training.result import StopReason, TrainingResult
from p4sgd.hw.spec.config import CONFIGURATIONS
from p4sgd.hw.spec.registers import COUNTERS

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import Trace

__all__ = ["make_content"]

_MOST_COEFFICIENTS = 20
"""Coefficients that are shown."""

_MOST_MICRO_BATCHES = 64
"""Micro-batches of a mini-batch that are drawn, as nearly as their time shows."""

_MOST_EPOCHS = 200
"""Rows of the table of epochs."""

_METRICS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "r2": "R²",
    "d2": "D²",
    "deviance": "mean deviance",
    "mse": "mean squared error",
}
"""Titles of metrics."""

_CURVES = ("loss", "accuracy", "r2", "d2")
"""Metrics with a curve over the epochs."""

_STOPPED = {
    StopReason.EPOCHS: "all epochs were run",
    StopReason.PATIENCE: "stopped early: no more progress",
    StopReason.INTERRUPTED: "interrupted",
}

_Outcomes = dict[str, tuple[FloatArray, FloatArray]]
"""By data the activations and the labels."""


def make_content(
    result: TrainingResult, about: Mapping[str, Any], *, rounded: bool, trace: "Trace | None"
) -> dict[str, Any]:
    """The variables of the template; see `p4sgd.host.report.save_report` for the arguments."""
    model, history = result.model, result.history
    classifies = model.labels.task is Task.CLASSIFICATION
    outcomes = dict(result.activations)
    curves = [
        figures.epochs(history, metric, _METRICS[metric], result.best_epoch)
        for metric in _CURVES
        if f"train_{metric}" in history[-1].metrics
    ]
    quality, confusions = _classes(outcomes, model.labels) if classifies else (_targets(outcomes, model.labels), [])
    return {
        "data": about["data"],
        "summary": result.summary,
        "loss": LOSSES[model.loss],
        "written": f"{datetime.datetime.now().astimezone():%Y-%m-%d %H:%M}",
        "cards": _cards(result),
        "remarks": list(result.remarks),
        "curves": [*curves, figures.rates(history)],
        "quality": quality,
        "scores": _scores(result, outcomes, model.labels),
        "confusions": confusions,
        "rounded": rounded,
        "coefficients": _coefficients(model),
        "features": f"{model.coefficients.size:,}",
        "nonzero": f"{np.count_nonzero(model.coefficients):,}",
        "intercept": _number(model.intercept),
        "cycles": _cycles(result),
        "overlap": _overlap(trace),
        "facts": _facts(result, about),
        "options": _options(result.summary["options"]),
        "epochs": _epochs(result),
    }


def _percent(value: float) -> str:
    return f"{value:.2%}"


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4g}".replace("-", "−")


def _text(metric: str, value: float | None) -> str:
    return _percent(value) if metric == "accuracy" and value is not None else _number(value)


def _cards(result: TrainingResult) -> list[tuple[str, str, str]]:
    """The first thing to see: title, value and note of each."""
    metrics, history = result.metrics, result.history
    cards = []
    for name in ("test", "validation", "train"):
        for metric in _CURVES[1:]:
            if (value := metrics.get(f"{name}_{metric}")) is not None:
                cards.append((f"{name} {_METRICS[metric]}", _text(metric, value), ""))
    epochs = f"{result.best_epoch} of {len(history)}"
    cards.append(("best epoch", epochs, _STOPPED[result.stopped]))
    seconds = sum(record.seconds for record in history)
    speed = f"{result.summary['samples'] * len(history) / seconds:,.0f} samples a second" if seconds else ""
    if result.summary["device"] == "rtl":
        speed += ", of the simulator"
    cards.append(("time on the device", f"{seconds:,.3g} s", speed))
    return cards


# -- how good the model is ---------------------------------------------------------------------------------------------


def _scores(result: TrainingResult, outcomes: _Outcomes, coding: LabelCoding) -> dict[str, Any]:
    """A table with a column for each kind of data."""
    rows: list[tuple[str, list[str]]] = [("samples", [f"{labels.size:,}" for _, labels in outcomes.values()])]
    for metric, title in _METRICS.items():
        values = [result.metrics.get(f"{name}_{metric}") for name in outcomes]
        if any(value is not None for value in values):
            rows.append((title, [_text(metric, value) for value in values]))
    if coding.task is Task.CLASSIFICATION:
        from sklearn.metrics import precision_recall_fscore_support

        of_class = [
            precision_recall_fscore_support(
                labels, coding.predictions(z), average="binary", pos_label=coding.classes[1], zero_division=np.nan
            )
            for z, labels in outcomes.values()
        ]
        for place, title in enumerate(("precision", "recall", "F1")):
            rows.append((f"{title} of {_class_names(coding)[1]}", [_number(each[place]) for each in of_class]))
    else:
        errors = [float(np.abs(coding.predictions(z) - labels).mean()) for z, labels in outcomes.values()]
        rows.append(("mean absolute error", list(map(_number, errors))))
    return {"columns": list(outcomes), "rows": rows}


def _class_names(coding: LabelCoding) -> tuple[str, str]:
    if coding.positive is None:
        first, second = map(coding.name, coding.classes)
        return str(first), str(second)
    return "all others", str(dataclasses.replace(coding, positive=None).name(coding.positive))


def _classes(outcomes: _Outcomes, coding: LabelCoding) -> tuple[list[Markup], list[dict[str, Any]]]:
    """ROC and precision-recall curves, where there are samples of both classes, and the confusion matrices."""
    from sklearn.metrics import average_precision_score, confusion_matrix, precision_recall_curve, roc_auc_score
    from sklearn.metrics import roc_curve as curve_of

    names, matrices, areas, averages = _class_names(coding), [], {}, {}
    for name, (z, labels) in outcomes.items():
        counts = confusion_matrix(labels, coding.predictions(z), labels=coding.classes)
        totals = counts.sum(axis=1, keepdims=True)
        shares = counts / np.maximum(totals, 1)
        rows = [
            (actual, [(f"{count:,}", f"{share:.3f}", _percent(share)) for count, share in zip(*row, strict=True)])
            for actual, row in zip(names, zip(counts.tolist(), shares.tolist(), strict=True), strict=True)
        ]
        matrices.append({"data": name, "classes": names, "rows": rows})
        true = labels == coding.classes[1]
        if np.isfinite(z).all() and 0 < true.sum() < true.size:
            wrong, right, _ = curve_of(true, z)
            areas[name] = wrong, right, float(roc_auc_score(true, z))
            precision, recall, _ = precision_recall_curve(true, z, drop_intermediate=True)
            averages[name] = recall, precision, float(average_precision_score(true, z))
    shown = [figures.roc(areas), figures.precision_recall(averages)] if areas else []
    chosen = list(outcomes)[-1]
    z, labels = outcomes[chosen]
    classes = zip(names, coding.classes, strict=True)
    by_class = {f"true class {name}": z[labels == label] for name, label in classes if (labels == label).any()}
    return [*shown, figures.distributions(by_class, f"activations, {chosen} samples")], matrices


def _targets(outcomes: _Outcomes, coding: LabelCoding) -> list[Markup]:
    targets = {name: (coding.predictions(z), labels) for name, (z, labels) in outcomes.items()}
    errors = {name: true - predicted for name, (predicted, true) in targets.items()}
    return [
        figures.predictions(targets),
        figures.residuals(targets),
        figures.distributions(errors, "true − predicted"),
    ]


def _coefficients(model: Model) -> list[dict[str, Any]]:
    """The largest coefficients, compared after scaling: a raw coefficient depends on the unit of its feature."""
    size = model.coefficients.size
    slope = np.abs(model.slope[:size])
    effects = np.divide(model.coefficients, slope, out=np.zeros(size), where=slope > 0)
    order = np.argsort(-np.abs(effects), kind="stable")[:_MOST_COEFFICIENTS]
    base = 0 if model.zero_based else 1
    return [
        {
            "name": model.feature_names[place] if model.feature_names else f"feature {place + base}",
            "value": _number(model.coefficients[place]),
            "width": f"{100 * abs(effects[place] / effects[order[0]]):.1f}",
            "sign": "plus" if effects[place] > 0 else "minus",
        }
        for place in order.tolist()
        if effects[place] != 0
    ]


# -- the hardware ------------------------------------------------------------------------------------------------------


def _cycles(result: TrainingResult) -> dict[str, Any] | None:
    """Predicted and counted cycles by cause: a figure and a table; ``None`` where nothing was counted."""
    counted = counted_cycles(result)
    if not counted:
        return None
    predicted = predicted_cycles(result)
    bars = ({} if predicted is None else {"predicted": predicted.cycles}) | counted
    rows = []
    for counter, cause in figures.CAUSES.items():
        if any(bar.get(counter) for bar in bars.values()):
            cells = [f"{bar[counter]:,}" if counter in bar else "–" for bar in bars.values()]
            rows.append((cause, COUNTERS[counter].help, cells))
    totals = [f"{sum(value for name, value in bar.items() if name in figures.CAUSES):,}" for bar in bars.values()]
    return {
        "figure": figures.stacked_cycles(bars),
        "bars": list(bars),
        "rows": rows,
        "totals": totals,
        "note": "" if predicted is None else predicted.note,
    }


def _overlap(trace: "Trace | None") -> dict[str, Any] | None:
    from p4sgd.sim.cluster.trace import second_mini_batch

    shown = None if trace is None else second_mini_batch(trace)
    if shown is None:
        return None
    cycles, first = shown.end - shown.begin, shown.rows["forward"][0]
    part = min(1.0, _MOST_MICRO_BATCHES / sum(each.mini_batch == shown.number for each in first))
    drawn = dataclasses.replace(shown, end=shown.begin + math.ceil(cycles * part))
    return {"figure": figures.overlap(drawn), "number": shown.number, "cycles": f"{cycles:,}", "whole": part == 1}


# -- what was asked for ------------------------------------------------------------------------------------------------


def _facts(result: TrainingResult, about: Mapping[str, Any]) -> list[tuple[str, str]]:
    summary = result.summary
    sizes = {name: labels.size for name, (_, labels) in result.activations.items()}
    workers = len(summary["units"])
    facts = [
        ("training data", f"{about['data']}: {summary['samples']:,} samples, {summary['features']:,} features"),
        ("held out", f"{sizes['validation']:,} samples" if "validation" in sizes else ""),
        ("test data", f"{about['test']}: {sizes['test']:,} samples" if "test" in sizes else ""),
        ("labels", _label_text(result.model.labels)),
        ("scaling", ": ".join(filter(None, (summary["scaling"], summary["scaling_reason"])))),
        ("learning rate", f"{summary['learning_rate']:.4g} in the first epoch"),
        ("device", f"{summary['device']}, {workers:,} worker{'s' * (workers > 1)}"),
        ("configuration", _configuration(summary["configuration"])),
        ("processes", f"{about['ranks']}" if about["ranks"] > 1 else ""),
        ("model", f"{about['out']}" if about["out"] else "not kept"),
        ("checkpoint", about["checkpoint"] or ""),
        ("P4SGD", summary["p4sgd"]),
    ]
    return [(name, text) for name, text in facts if text]


def _label_text(coding: LabelCoding) -> str:
    if coding.task in (Task.NON_NEGATIVE, Task.POSITIVE):
        return f"in units of {coding.scale:.4g}"
    if coding.task is Task.REGRESSION:
        return f"mean {coding.mean:.4g}, deviation {coding.scale:.4g}"
    first, second = _class_names(coding)
    return f"{second} against {first}"


def _configuration(stated: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    # Some have two names; the first is the better known.
    names = {repr(dataclasses.asdict(make())): name for name, make in reversed(CONFIGURATIONS.items())}
    each = [stated] if isinstance(stated, Mapping) else stated
    kinds = [names.get(repr(dict(one)), f"{one['engines']} engines of {one['lanes']} lanes") for one in each]
    return ", ".join(dict.fromkeys(kinds))


def _options(options: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Name and value of each option, and whether it was changed."""
    defaults = TrainingOptions().to_json()
    return [
        (name.replace("_", " "), "–" if value is None else f"{value}", value != defaults[name])
        for name, value in options.items()
    ]


def _epochs(result: TrainingResult) -> dict[str, Any]:
    history = result.history
    names = [name for name in history[-1].metrics if not name.endswith("_mse")]
    rows = []
    for place in figures.thinned(len(history), _MOST_EPOCHS):
        record = history[place]
        cells = [f"{record.epoch}", *(_number(record.metrics.get(name)) for name in names)]
        rows.append(
            ([*cells, f"{record.learning_rate:.4g}", f"{record.seconds:.3g}"], record.epoch == result.best_epoch)
        )
    titles = [name.replace("_", " ").replace("r2", "R²").replace("d2", "D²") for name in names]
    return {"columns": ["epoch", *titles, "rate", "seconds"], "rows": rows, "all": len(rows) == len(history)}
