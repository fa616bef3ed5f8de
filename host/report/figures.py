"""The figures of a report. Each function returns an SVG element; see `p4sgd.host.report.svg`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.report.svg import COLOURS, drawing, to_svg
from p4sgd.host.training.events import EpochRecord

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import MiniBatch

_LINES: Mapping[str, str] = {"train": "-", "validation": "--", "test": ":"}
"""Line styles, so that curves differ without colours, too."""

_FEW = 12
"""Curves over fewer epochs have dots, without which a single epoch would not be seen."""

_LOGARITHMIC = 20.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""

CAUSES = {f"CYCLES_{name.upper()}": name for name in ("busy", "memory", "network", "chaining", "drain", "model")}
"""Counters of causes of cycles, with their names, which are those of their colours, too."""

_TURNS = ("train", "test", "validation", "chaining")
"""Colours of micro-batches, in turn."""


def _label(text: str) -> str:
    """A text of the user's for a legend: short, and with nothing that Matplotlib or XML would take for their own."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return (shown if len(shown) <= 32 else f"{shown[:31]}…").replace("$", "\\$")


def thinned(size: int, most: int = 500) -> npt.NDArray[np.intp]:
    """Indices of at most so many of ``size`` points, evenly spread, with the first and the last: files stay small."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.intp))


def _line(axes: Axes, name: str, x: FloatArray, y: FloatArray, label: str, *, number: int = 0, **style: Any) -> None:
    """A curve in the style of its data, or if it is of something else, in that of its number."""
    places, styles = thinned(len(x)), list(_LINES.values())
    kind, colour = styles[number // len(_TURNS) % len(styles)], COLOURS[_TURNS[number % len(_TURNS)]]
    if name in _LINES:
        kind, colour = _LINES[name], COLOURS[name]
    axes.plot(x[places], y[places], kind, color=colour, label=label, **style)


def epochs(history: Sequence[EpochRecord], metric: str, title: str, best: int) -> Markup:
    """A metric after each epoch, for all data that have it; a vertical line marks the best epoch."""
    with drawing() as axes:
        number = np.array([record.epoch for record in history], np.float64)
        curves = {}
        for name in _LINES:
            values = np.array([record.metrics.get(f"{name}_{metric}", np.nan) for record in history])
            values[~np.isfinite(values)] = np.nan
            if not np.isnan(values).all():
                curves[name] = values
                dots: dict[str, Any] = {"marker": "o", "markersize": 3.5} if number.size < _FEW else {}
                _line(axes, name, number, values, name, **dots)
        axes.axvline(best, color=COLOURS["muted"], linewidth=0.8)
        where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"best: {best}", (best, 1), (0, 3), color=COLOURS["muted"], **where)
        shown = np.concatenate([values[~np.isnan(values)] for values in curves.values()]) if curves else np.ones(1)
        if metric == "loss" and shown.min() > 0 and _LOGARITHMIC * shown.min() < shown.max():
            axes.set_yscale("log")
        if metric == "accuracy":
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}".rstrip("0").rstrip(".")))
        if metric in ("r2", "d2") and shown.min() < -1:  # an epoch that diverged would hide all others
            axes.set_ylim(bottom=-1)
        _epoch_axis(axes, title)
        axes.legend(loc="best")
        return to_svg(axes, f"epochs-{metric}", f"{title} after each epoch")


def epochs_of_rows(histories: Mapping[str, Sequence[EpochRecord]], metric: str) -> Markup:
    """A metric after each epoch, or its learning rate, of each row of a model, by name; a legend if they are few."""
    with drawing() as axes:
        lowest, highest = np.inf, 0.0
        for place, (name, history) in enumerate(histories.items()):
            number = np.array([record.epoch for record in history], np.float64)
            values = np.array([record.to_json()[metric] for record in history])
            _line(axes, "", number, values, _label(name), number=place, marker="." if len(number) == 1 else None)
            lowest, highest = min(lowest, np.nanmin(values)), max(highest, np.nanmax(values))
        if 0 < _LOGARITHMIC * lowest < highest:
            axes.set_yscale("log")
        title = metric.replace("_", " ")
        _epoch_axis(axes, title)
        if len(histories) <= _FEW:
            axes.figure.legend(loc="outside right upper", fontsize=8, handlelength=1.4)
        return to_svg(axes, f"epochs-{metric}", f"{title} after each epoch")


def rates(history: Sequence[EpochRecord]) -> Markup:
    """The learning rate of each epoch."""
    with drawing() as axes:
        places, values = thinned(len(history)), np.array([record.learning_rate for record in history])
        number = np.array([record.epoch for record in history])
        axes.step(number[places], values[places], where="mid", color=COLOURS["network"])
        if _LOGARITHMIC / 4 * values.min() < values.max():
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.15 * values.max())
        _epoch_axis(axes, "learning rate")
        return to_svg(axes, "rates", "learning rate of each epoch")


def _epoch_axis(axes: Axes, title: str) -> None:
    axes.set(xlabel="epoch", ylabel=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


_Curves = Mapping[str, tuple[FloatArray, FloatArray, float]]


def roc(curves: _Curves) -> Markup:
    """ROC curves: by data, or by class, the rates of false and of true positives, and the area."""
    with drawing() as axes:
        axes.plot([0, 1], [0, 1], color=COLOURS["grid"], linewidth=1)
        _curves_with_areas(axes, curves, "area")
        axes.legend(loc="lower right")
        axes.set(xlabel="rate of false positives", ylabel="rate of true positives")
        return to_svg(axes, "roc", "ROC curves")


def precision_recall(curves: _Curves) -> Markup:
    """Precision-recall curves: by data, or by class, recall, precision, and average precision."""
    with drawing() as axes:
        _curves_with_areas(axes, curves, "average")
        axes.legend(loc="lower left")
        axes.set(xlabel="recall", ylabel="precision", ylim=(-0.03, 1.03))
        return to_svg(axes, "precision-recall", "precision-recall curves")


def _curves_with_areas(axes: Axes, curves: _Curves, what: str) -> None:
    for number, (name, (x, y, area)) in enumerate(curves.items()):
        _line(axes, name, x, y, f"{_label(name)}, {what} {area:.4f}", number=number)


_Targets = Mapping[str, tuple[FloatArray, FloatArray]]  # predicted and true, by data


def predictions(targets: _Targets) -> Markup:
    """Predicted targets over true ones."""
    with drawing() as axes:
        _scatter(axes, {name: (true, predicted) for name, (predicted, true) in targets.items()})
        ends = np.array([(true.min(), true.max()) for _, true in targets.values()])
        line = [ends[:, 0].min(), ends[:, 1].max()]
        axes.plot(line, line, color=COLOURS["muted"], linewidth=1)
        axes.set(xlabel="true", ylabel="predicted")
        return to_svg(axes, "predictions", "predicted over true targets")


def residuals(targets: _Targets, of: str = "") -> Markup:
    """Residuals over predicted targets, of one of several if it is named."""
    with drawing() as axes:
        _scatter(axes, {name: (predicted, true - predicted) for name, (predicted, true) in targets.items()})
        axes.axhline(0, color=COLOURS["muted"], linewidth=1)
        axes.set(xlabel=f"predicted {_label(of)}".rstrip(), ylabel="true − predicted")
        named = f" of {of}" if of else ""
        return to_svg(axes, f"residuals{named}", f"residuals over predicted targets{named}")


def _scatter(axes: Axes, points: Mapping[str, tuple[FloatArray, FloatArray]]) -> None:
    for (name, (x, y)), marker in zip(points.items(), "o^s", strict=False):
        places = thinned(x.size)
        style: dict[str, Any] = {"markersize": 3.5, "alpha": 0.65, "markeredgewidth": 0}
        axes.plot(x[places], y[places], marker, color=COLOURS[name], label=name, **style)
    axes.legend(loc="best")


def distributions(values: Mapping[str, FloatArray], title: str) -> Markup:
    """Histograms of some numbers, by data or by class, each as parts of all of its own."""
    values = {name: numbers[np.isfinite(numbers)] for name, numbers in values.items() if np.isfinite(numbers).any()}
    with drawing() as axes:
        # Of each the middle 99 %: a few wild ones would hide all others. They count at the ends.
        ends = np.array([np.percentile(numbers, [0.5, 99.5]) for numbers in values.values()] or [np.arange(2.0)])
        low, high = ends[:, 0].min(), ends[:, 1].max()
        edges = np.linspace(low, high if high > low else low + 1, 31)
        for (name, numbers), turn in zip(values.items(), _LINES, strict=False):
            parts = np.histogram(np.clip(numbers, edges[0], edges[-1]), edges)[0] / numbers.size
            colour = COLOURS[name if name in _LINES else turn]
            axes.stairs(parts, edges, fill=True, color=colour, alpha=0.25)
            axes.stairs(parts, edges, color=colour, linewidth=1.5, label=_label(name))
        axes.margins(y=0.35)  # room for the legend
        axes.legend(loc="upper right")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set(xlabel=title, ylabel="part of the samples")
        return to_svg(axes, "distributions", f"distribution of {title}")


def stacked_cycles(bars: Mapping[str, Mapping[str, int]]) -> Markup:
    """Cycles by cause: for every bar its counters ``CYCLES_…``, stacked from the left."""
    with drawing(height=1.3 + 0.32 * len(bars)) as axes:
        names = list(bars)
        begin = np.zeros(len(bars))
        for counter, cause in CAUSES.items():
            cycles = np.array([bar.get(counter, 0) for bar in bars.values()], np.float64)
            if cycles.any():
                axes.barh(names, cycles, left=begin, color=COLOURS[cause], label=cause, height=0.62)
            begin += cycles
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlabel("cycles")
        axes.figure.legend(loc="outside upper center", ncols=3, handlelength=0.8, columnspacing=1)
        return to_svg(axes, "cycles", "predicted and counted cycles by cause")


def overlap(shown: "MiniBatch") -> Markup:
    """The stages of a worker in a mini-batch. A micro-batch has one colour in all; other mini-batches are pale."""
    rows = [("" if number else stage, row) for stage in shown.rows for number, row in enumerate(shown.rows[stage])]
    cycles = shown.end - shown.begin
    rows = [(stage, [each for each in row if each.begin < shown.end]) for stage, row in rows]
    with drawing(9, 0.7 + 0.3 * len(rows)) as axes:
        for place, (_, row) in enumerate(rows):
            for each in row:
                left, right = max(each.begin, shown.begin) - shown.begin, min(each.end, shown.end) - shown.begin
                number, ours = each.micro_batch - shown.first, each.mini_batch == shown.number
                colour = _TURNS[number % len(_TURNS)] if ours else "grid"
                axes.barh(place, right - left, left=left, color=COLOURS[colour], height=0.8)
                if ours and right - left > cycles / 60:
                    style: dict[str, Any] = {"color": COLOURS["paper"], "fontsize": 8, "va": "center"}
                    axes.text(left + cycles / 300, place, f"{number}", **style)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set(xlim=(0, cycles), xlabel="cycles")
        return to_svg(axes, "overlap", "stages of the micro-batches of one mini-batch over time")
