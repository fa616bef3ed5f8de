"""The figures of a report, drawn by Matplotlib: each function returns an SVG element within HTML.

Figures are drawn with stand-ins for colours. In the SVG each becomes a CSS variable, so that a page has one set of
colours for a light and one for a dark screen, and texts take the page's font.
"""

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from p4sgd.host.losses.loss import FloatArray
from p4sgd.host.training.events import EpochRecord

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import MiniBatch

CAUSES = {f"CYCLES_{name.upper()}": name for name in ("busy", "memory", "network", "chaining", "drain", "model")}
"""Counters of causes of cycles, with their names, which are those of their colours, too."""

_NAMES = ("ink", "muted", "grid", "train", "validation", "test", *CAUSES.values(), "paper")

_COLOURS = {name: f"#{number:06x}" for number, name in enumerate(_NAMES, 0xA0C001)}
"""Stand-ins by name of the CSS variable."""

_TURNS = ("train", "test", "validation", "chaining")
"""Colours of curves and of micro-batches, in turn."""

_LINES: Mapping[str, str] = {"train": "-", "validation": "--", "test": ":"}
"""Line styles of data, so that curves differ without colours, too."""

_FEW = 12
"""Curves over fewer epochs have dots, without which a single epoch would not be seen."""

_LOGARITHMIC = 20.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _COLOURS["grid"]),
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), _COLOURS["muted"]),
    **dict.fromkeys(("xtick.major.size", "xtick.minor.size", "ytick.major.size", "ytick.minor.size"), 0),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False),
    **dict.fromkeys(("axes.axisbelow", "axes.grid", "figure.constrained_layout.use"), True),
    "font.size": 10,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "patch.linewidth": 0,
    "svg.fonttype": "none",
    "text.color": _COLOURS["ink"],
}

_Curves = Mapping[str, tuple[FloatArray, FloatArray, float]]  # points and an area, by data or class
_Targets = Mapping[str, tuple[FloatArray, FloatArray]]  # predicted and true, by data


@contextmanager
def _drawing(width: float = 4.4, height: float = 3.0) -> Iterator[Axes]:
    """Axes of a new figure of this size in inches, to be drawn on and made an SVG within the context.

    The user's own style does not count.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield Figure(figsize=(width, height)).add_subplot()


def _to_svg(axes: Axes, name: str, description: str) -> Markup:
    """The figure of these axes as an SVG element that fits the width it is given; ``name`` is unique on a page."""
    mpl.rcParams["svg.hashsalt"] = name  # identifiers of parts are then of this figure alone
    file = io.StringIO()
    assert isinstance(axes.figure, Figure)
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    axes.figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    root = ET.fromstring(file.getvalue())
    for parent in root.iter():
        for child in list(parent):
            if child.tag == f"{{{_SVG}}}style":  # would apply to the whole page
                parent.remove(child)
    for element in root.iter(f"{{{_SVG}}}g"):
        element.attrib.pop("id", None)  # figure_1 and so on are the same in all figures
    del root.attrib["width"], root.attrib["height"]
    root.attrib |= {"role": "img", "aria-label": description}
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    variables = {stand_in: f"var(--{name})" for name, stand_in in _COLOURS.items()}
    text = re.sub("#[0-9a-f]{6}", lambda found: variables.get(found[0], found[0]), ET.tostring(root, "unicode"))
    return Markup(re.sub(' *font-family: [^;"]*;?', "", text))


def _label(text: str) -> str:
    """A text of the user's for a legend: short, and with nothing that Matplotlib or XML would take for their own."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return (shown if len(shown) <= 32 else f"{shown[:31]}…").replace("$", "\\$")


def thinned(size: int, most: int = 500) -> npt.NDArray[np.intp]:
    """Indices of at most so many of ``size`` points, evenly spread, with the first and the last: files stay small."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(np.intp))


def _line(axes: Axes, name: str, x: FloatArray, y: FloatArray, label: str, number: int, **style: Any) -> None:
    """A curve in the style of its data, or if it is of something else, in that of its number."""
    places, styles = thinned(len(x)), list(_LINES.values())
    kind, colour = styles[number // len(_TURNS) % len(styles)], _TURNS[number % len(_TURNS)]
    if name in _LINES:
        kind, colour = _LINES[name], name
    axes.plot(x[places], y[places], kind, label=label, **{"color": _COLOURS[colour], **style})


def epochs(
    histories: Mapping[str, Sequence[EpochRecord]], metrics: Mapping[str, str], title: str, best: int | None = None
) -> Markup:
    """A metric after each epoch, of one run for all data that have it, or of all rows of a model, by name.

    ``metrics`` has the key of the metric for each name of ``histories``; a vertical line marks the ``best`` epoch.
    """
    with _drawing() as axes:
        finite = []
        for place, (name, history) in enumerate(histories.items()):
            number = np.array([record.epoch for record in history], np.float64)
            values = np.array([record.to_json().get(metrics[name]) for record in history], np.float64)
            values[~np.isfinite(values)] = np.nan
            if np.isnan(values).all():
                continue
            finite.append(values[~np.isnan(values)])
            style: dict[str, Any] = {"marker": "o", "markersize": 3.5} if number.size < _FEW else {}
            if title == "learning rate" and len(histories) == 1:
                style |= {"drawstyle": "steps-mid", "color": _COLOURS["network"]}
            _line(axes, name, number, values, _label(name), place, **style)
        shown = np.concatenate(finite) if finite else np.ones(1)
        if best is not None:
            axes.axvline(best, color=_COLOURS["muted"], linewidth=0.8)
            above: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate(f"best: {best}", (best, 1), (0, 3), color=_COLOURS["muted"], ha="center", **above)
        if title.endswith(("loss", "rate")) and 0 < _LOGARITHMIC * shown.min() < shown.max():
            axes.set_yscale("log")
        if title == "accuracy":
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}".rstrip("0").rstrip(".")))
        if title in ("R²", "D²") and shown.min() < -1:  # an epoch that diverged would hide all others
            axes.set_ylim(bottom=-1)
        axes.set(xlabel="epoch", ylabel=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        if histories.keys() <= _LINES.keys():
            axes.legend(loc="best")
        elif 1 < len(histories) <= _FEW:
            axes.figure.legend(loc="outside right upper", fontsize=8, handlelength=1.4)
        return _to_svg(axes, f"epochs-{title}", f"{title} after each epoch")


def roc(curves: _Curves) -> Markup:
    """ROC curves: by data, or by class, the rates of false and of true positives, and the area."""
    with _drawing() as axes:
        axes.plot([0, 1], [0, 1], color=_COLOURS["grid"], linewidth=1)
        _curves_with_areas(axes, curves, "area")
        axes.legend(loc="lower right")
        axes.set(xlabel="rate of false positives", ylabel="rate of true positives")
        return _to_svg(axes, "roc", "ROC curves")


def precision_recall(curves: _Curves) -> Markup:
    """Precision-recall curves: by data, or by class, recall, precision, and average precision."""
    with _drawing() as axes:
        _curves_with_areas(axes, curves, "average")
        axes.legend(loc="lower left")
        axes.set(xlabel="recall", ylabel="precision", ylim=(-0.03, 1.03))
        return _to_svg(axes, "precision-recall", "precision-recall curves")


def _curves_with_areas(axes: Axes, curves: _Curves, what: str) -> None:
    for number, (name, (x, y, area)) in enumerate(curves.items()):
        _line(axes, name, x, y, f"{_label(name)}, {what} {area:.4f}", number)


def predictions(targets: _Targets) -> Markup:
    """Predicted targets over true ones."""
    with _drawing() as axes:
        _scatter(axes, {name: (true, predicted) for name, (predicted, true) in targets.items()})
        line = [min(true.min() for _, true in targets.values()), max(true.max() for _, true in targets.values())]
        axes.plot(line, line, color=_COLOURS["muted"], linewidth=1)
        axes.set(xlabel="true", ylabel="predicted")
        return _to_svg(axes, "predictions", "predicted over true targets")


def residuals(targets: _Targets, of: str = "") -> Markup:
    """Residuals over predicted targets, of one of several if it is named."""
    with _drawing() as axes:
        _scatter(axes, {name: (predicted, true - predicted) for name, (predicted, true) in targets.items()})
        axes.axhline(0, color=_COLOURS["muted"], linewidth=1)
        axes.set(xlabel=f"predicted {_label(of)}".rstrip(), ylabel="true − predicted")
        named = f" of {of}" if of else ""
        return _to_svg(axes, f"residuals{named}", f"residuals over predicted targets{named}")


def _scatter(axes: Axes, points: Mapping[str, tuple[FloatArray, FloatArray]]) -> None:
    for (name, (x, y)), marker in zip(points.items(), "o^s", strict=False):
        places = thinned(x.size)
        style: dict[str, Any] = {"markersize": 3.5, "alpha": 0.65, "markeredgewidth": 0}
        axes.plot(x[places], y[places], marker, color=_COLOURS[name], label=name, **style)
    axes.legend(loc="best")


def distributions(values: Mapping[str, FloatArray], title: str) -> Markup:
    """Histograms of some numbers, by data or by class, each as parts of all of its own."""
    values = {name: numbers[np.isfinite(numbers)] for name, numbers in values.items() if np.isfinite(numbers).any()}
    with _drawing() as axes:
        # Of each the middle 99 %: a few wild ones would hide all others. They count at the ends.
        ends = np.array([np.percentile(numbers, [0.5, 99.5]) for numbers in values.values()] or [np.arange(2.0)])
        low, high = ends[:, 0].min(), ends[:, 1].max()
        edges = np.linspace(low, high if high > low else low + 1, 31)
        for (name, numbers), turn in zip(values.items(), _LINES, strict=False):
            parts = np.histogram(np.clip(numbers, edges[0], edges[-1]), edges)[0] / numbers.size
            colour = _COLOURS[name if name in _LINES else turn]
            axes.stairs(parts, edges, fill=True, color=colour, alpha=0.25)
            axes.stairs(parts, edges, color=colour, linewidth=1.5, label=_label(name))
        axes.margins(y=0.35)  # room for the legend
        axes.legend(loc="upper right")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set(xlabel=title, ylabel="part of the samples")
        return _to_svg(axes, "distributions", f"distribution of {title}")


def _bare_rows(axes: Axes) -> None:
    """Horizontal bars one below the other, without lines between them."""
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("cycles")


def stacked_cycles(bars: Mapping[str, Mapping[str, int]]) -> Markup:
    """Cycles by cause: for every bar its counters ``CYCLES_…``, stacked from the left."""
    with _drawing(height=1.3 + 0.32 * len(bars)) as axes:
        begin = np.zeros(len(bars))
        for counter, cause in CAUSES.items():
            cycles = np.array([bar.get(counter, 0) for bar in bars.values()], np.float64)
            if cycles.any():
                axes.barh(list(bars), cycles, left=begin, color=_COLOURS[cause], label=cause, height=0.62)
            begin += cycles
        _bare_rows(axes)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.figure.legend(loc="outside upper center", ncols=3, handlelength=0.8, columnspacing=1)
        return _to_svg(axes, "cycles", "predicted and counted cycles by cause")


def overlap(shown: "MiniBatch") -> Markup:
    """The stages of a worker in a mini-batch. A micro-batch has one colour in all; other mini-batches are pale."""
    rows = [("" if number else stage, row) for stage in shown.rows for number, row in enumerate(shown.rows[stage])]
    cycles = shown.end - shown.begin
    with _drawing(9, 0.7 + 0.3 * len(rows)) as axes:
        for place, (_, row) in enumerate(rows):
            for each in row:
                left, right = max(each.begin, shown.begin) - shown.begin, min(each.end, shown.end) - shown.begin
                if left >= cycles:
                    continue
                number, ours = each.micro_batch - shown.first, each.mini_batch == shown.number
                colour = _TURNS[number % len(_TURNS)] if ours else "grid"
                axes.barh(place, right - left, left=left, color=_COLOURS[colour], height=0.8)
                if ours and right - left > cycles / 60:
                    style: dict[str, Any] = {"color": _COLOURS["paper"], "fontsize": 8, "va": "center"}
                    axes.text(left + cycles / 300, place, f"{number}", **style)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        _bare_rows(axes)
        axes.set_xlim(0, cycles)
        return _to_svg(axes, "overlap", "stages of the micro-batches of one mini-batch over time")


def chart(
    curves: Sequence[tuple[str, str, str, Sequence[Any], Sequence[Any]]],
    x: str,
    y: str,
    name: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> Markup:
    """Curves, each with a name, what sets it apart from others of the name, a line style, places and values.

    Those of a name have the same colour. They are bars if the places are texts, pale if the line is not solid.
    """
    names = list(dict.fromkeys(name for name, *_ in curves))
    rows = list(dict.fromkeys(place for *_, places, _ in curves for place in places if isinstance(place, str)))
    with _drawing(4.4, 3.4 if not rows else 1.4 + 0.2 * len(rows) * (1 + len(curves))) as axes:
        for number, (series, kind, style, places, values) in enumerate(curves):
            turn, label = names.index(series), _label(", ".join(filter(None, (series, kind))))
            colour = _COLOURS[_TURNS[turn % len(_TURNS)]]
            if rows:
                at = [rows.index(place) + 0.8 * number / len(curves) for place in places]
                axes.barh(at, values, 0.7 / len(curves), label=label, color=colour, alpha=1 if style == "-" else 0.6)
            else:
                marker = "o^sDv"[turn // len(_TURNS) % 5]
                axes.plot(places, values, style, marker=marker, markersize=3.5, color=colour, label=label)
        if rows:
            axes.set_yticks([place + 0.4 - 0.4 / len(curves) for place in range(len(rows))], [*map(_label, rows)])
            _bare_rows(axes)
            axes.set_xlabel(y)
            axes.set_xscale("log" if log_y else "linear")
        else:
            axes.set(xlabel=x, ylabel=y, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
            if log_x:
                shown = sorted({place for *_, places, _ in curves for place in places})
                axes.set_xticks(shown, [f"{place:,g}" for place in shown], fontsize=8)
                axes.set_xticks([], minor=True)
        if curves:
            axes.figure.legend(loc="outside lower center", ncols=2, fontsize=7, handlelength=2.4, columnspacing=1)
        return _to_svg(axes, name, name)
