"""A training run as one HTML page: curves, how good the model is, its coefficients, where cycles went.

What draws and fills in the page, Matplotlib and Jinja, is imported only when one is written.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p4sgd.host.errors import UserError
from p4sgd.host.files import begins_with, new_file
from p4sgd.host.training.result import ResultSet, TrainingResult

if TYPE_CHECKING:
    from p4sgd.sim.cluster.trace import Trace

__all__ = ["check_libraries", "fill_in", "is_report_file", "save_report"]

_START = "<!doctype html>\n<!-- p4sgd report -->\n"
_LIBRARIES = {"matplotlib": "Matplotlib", "jinja2": "Jinja2"}
_TEMPLATE = Path(__file__).with_name("page.html")


def check_libraries(what: str = "--report") -> None:
    """Raise `UserError` if what reports are made with is not installed; nothing is imported."""
    missing = [name for module, name in _LIBRARIES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(f"{what} needs {' and '.join(missing)}: pip install 'p4sgd[report]'")


def is_report_file(path: Path) -> bool:
    """Whether a file begins like those of `save_report`; `UserError` if it cannot be read."""
    return begins_with(path, _START.encode())


def save_report(
    result: TrainingResult | ResultSet,
    path: Path,
    about: Mapping[str, Any],
    *,
    rounded: bool = False,
    trace: "Trace | None" = None,
) -> None:
    """Write the report of a training run: one HTML file that needs neither network nor scripts.

    ``about`` is `p4sgd.host.run.training_run.TrainingRun.about`. The training samples are ``rounded`` if the model
    was measured on them as the device reads them (prepared data). Raises `UserError` if the file cannot be written.
    """
    from p4sgd.host.report.content import make_content

    text = fill_in(_TEMPLATE, make_content(result, about, rounded=rounded, trace=trace))
    with new_file(path) as file:
        file.write(f"{_START}{text}\n".encode(errors="replace"))  # names of files may be no UTF-8


def fill_in(template: Path, variables: Mapping[str, Any]) -> str:
    """The text of a template with values for its variables; it may extend ``base.html`` of this folder."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader([template.parent, _TEMPLATE.parent]),
    )
    return environment.get_template(template.name).render(variables)
