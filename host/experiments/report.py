"""The report of the evaluation: one HTML page, and the same as Markdown, made of the records in a folder."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p4sgd.host.errors import UserError
from p4sgd.host.experiments.experiment import Cell, Chart, Source, Table
from p4sgd.host.experiments.record import Record
from p4sgd.host.files import begins_with, new_file
from p4sgd.host.report import fill_in

if TYPE_CHECKING:
    from markupsafe import Markup

PAGE, TEXT = "report.html", "report.md"

_START = "<!-- p4sgd experiments -->\n"
_HTML = f"<!doctype html>\n{_START}"
_TEMPLATE = Path(__file__).with_name("experiments.html")

_LINES = {
    Source.MEASURED: "-",
    Source.SIMULATED: "-.",
    Source.MODELLED: "--",
    Source.PUBLISHED: ":",
    Source.VENDOR: ":",
}
"""Line styles of the sources of numbers."""

SOURCES = {
    Source.MEASURED: "run on the machine that is named with it",
    Source.SIMULATED: "cycles of the generated Verilog under Verilator",
    Source.MODELLED: "computed by a formula",
    Source.PUBLISHED: "taken from the publication that is named with it",
    Source.VENDOR: "stated by the maker of the product",
}


def check_folder(folder: Path) -> None:
    """Make the folder of a report; `UserError` if it cannot be, or holds reports of others."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make the folder: {error.strerror}") from error
    for name, start in ((PAGE, _HTML), (TEXT, _START)):
        if (folder / name).exists() and not begins_with(folder / name, start.encode()):
            raise UserError(f"{folder / name}: is not of p4sgd experiments: choose another folder")


def save_report(records: Sequence[Record], folder: Path) -> None:
    """Write ``report.html`` and ``report.md``; `UserError` if they cannot be written."""
    losses = [(record.id, sentence) for record in records for sentence in record.finding.losses]
    sections = [
        {"record": record, "tables": [_shown(record, table) for table in record.finding.tables]} for record in records
    ]
    page = fill_in(_TEMPLATE, {"sections": sections, "losses": losses, "sources": SOURCES})
    for name, text in ((PAGE, f"{_HTML}{page}\n"), (TEXT, f"{_START}{_markdown(records, losses)}")):
        with new_file(folder / name) as file:
            file.write(text.encode())


def cell_text(cell: Cell) -> str:
    """A cell for people: numbers of 4 digits, with thousands separators."""
    if cell is None or isinstance(cell, bool):
        return {None: "", True: "yes", False: "no"}[cell]
    if isinstance(cell, float):
        digits = f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}"
        return digits.replace("-", "−")
    return f"{cell:,}" if isinstance(cell, int) else cell


def _shown(record: Record, table: Table) -> dict[str, Any]:
    rows = [[cell_text(cell) for cell in row] for row in table.rows]
    charts = [_draw(f"{record.id}: {table.title}", number, table, chart) for number, chart in enumerate(table.charts)]
    return {"title": table.title, "note": table.note, "columns": table.columns, "rows": rows, "charts": charts}


def _draw(name: str, number: int, table: Table, chart: Chart) -> "tuple[str, Markup]":
    """A chart and its caption: a curve, or bars, for each value of the series and each source."""
    from p4sgd.host.report.figures import chart as draw

    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    rows = [row for row in rows if all(row[column] == cell for column, cell in chart.only.items())]
    rows = [row for row in rows if row[chart.x] is not None and row[chart.y] is not None]

    def key(row: dict[str, Cell]) -> tuple[str, str]:
        return (cell_text(row[chart.series]) if chart.series else "", str(row["source"]))

    names = list(dict.fromkeys(map(key, rows)))
    curves = []
    for (series, source), found in groupby(sorted(rows, key=lambda row: names.index(key(row))), key):
        x, y = zip(*((row[chart.x], row[chart.y]) for row in found), strict=True)
        curves.append((series, source, _LINES[Source(source)], x, y))
    only = ", ".join(f"{column} {cell_text(cell)}" for column, cell in chart.only.items())
    svg = draw(curves, chart.x, chart.y, f"{name}, {number}", log_x=chart.log_x, log_y=chart.log_y)
    return f"{chart.y} over {chart.x}{f': {only}' if only else ''}", svg


def _markdown(records: Sequence[Record], losses: Sequence[tuple[str, str]]) -> str:
    lines = ["# P4SGD: evaluation", "", "## Where others are ahead", ""]
    lines += [f"- {id}: {sentence}" for id, sentence in losses] or ["Nothing of the kind was found."]
    lines += ["", "Every row says where its numbers come from:", ""]
    lines += [f"- **{source}**: {meaning}" for source, meaning in SOURCES.items()]
    for record in records:
        finding = record.finding
        lines += ["", f"## {record.id} {record.title}", "", record.question, ""]
        lines += [f"Skipped: {finding.skipped}"] if finding.skipped else []
        lines += [f"- {sentence}" for sentence in (*finding.losses, *finding.sentences)]
        for table in finding.tables:
            aligned = ["---" if isinstance(cell, str) else "---:" for cell in table.rows[0]] if table.rows else []
            rows = [[cell_text(cell).replace("|", "\\|") for cell in row] for row in table.rows]
            lines += ["", f"**{table.title}**", ""]
            lines += [f"| {' | '.join(row)} |" for row in (table.columns, aligned, *rows)]
            lines += ["", table.note] if table.note else []
        lines += ["", f"`{record.command}`, {record.seconds:.1f} s, {record.date}, commit {record.commit}: "]
        lines[-1] += f"{record.machine}. [{record.id}.json]({record.id}.json)"
    return "\n".join(lines) + "\n"
