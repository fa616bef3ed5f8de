"""Matplotlib's figures as SVG within HTML, which takes colours and font from the page's style sheet.

Figures are drawn with stand-ins for colours. In the SVG each becomes a CSS variable, so that a page has one set of
colours for a light and one for a dark screen.
"""

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_NAMES = (
    *("ink", "muted", "grid", "train", "validation", "test"),
    *("busy", "memory", "network", "chaining", "drain", "model", "paper"),
)

COLOURS = {name: f"#{number:06x}" for number, name in enumerate(_NAMES, 0xA0C001)}
"""Stand-ins by name of the CSS variable."""

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("axes.edgecolor", "grid.color"), COLOURS["grid"]),
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), COLOURS["muted"]),
    **dict.fromkeys(("xtick.major.size", "xtick.minor.size", "ytick.major.size", "ytick.minor.size"), 0),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False),
    **dict.fromkeys(("axes.axisbelow", "axes.grid", "figure.constrained_layout.use"), True),
    "font.size": 10,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "patch.linewidth": 0,
    "svg.fonttype": "none",
    "text.color": COLOURS["ink"],
}


@contextmanager
def drawing(width: float = 4.4, height: float = 3.0) -> Iterator[Axes]:
    """Axes of a new figure of this size in inches, to be drawn on within the context; `to_svg` takes it after that.

    The user's own style does not count.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield Figure(figsize=(width, height)).add_subplot()


def to_svg(axes: Axes, name: str, description: str) -> Markup:
    """The figure of these axes as an SVG element that fits the width it is given; used within their `drawing`.

    ``name`` is of one figure on a page, ``description`` for those who cannot see it.
    """
    mpl.rcParams["svg.hashsalt"] = name  # identifiers of parts are then of this figure alone
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    assert isinstance(axes.figure, Figure)
    axes.figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    root = ET.fromstring(file.getvalue())
    for parent in root.iter():
        for child in list(parent):
            if child.tag == f"{{{_SVG}}}style":  # would apply to the whole page
                parent.remove(child)
    for element in root.iter(f"{{{_SVG}}}g"):
        element.attrib.pop("id", None)  # figure_1 and so on are the same in all figures
    for size in ("width", "height"):
        del root.attrib[size]
    root.set("role", "img")
    root.set("aria-label", description)
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    variables = {stand_in: f"var(--{name})" for name, stand_in in COLOURS.items()}
    text = re.sub("#[0-9a-f]{6}", lambda found: variables.get(found[0], found[0]), ET.tostring(root, "unicode"))
    return Markup(re.sub(' *font-family: [^;"]*;?', "", text))
