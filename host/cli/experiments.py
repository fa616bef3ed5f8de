"""The command `p4sgd experiments`: the evaluation, and its report."""

import shlex
from pathlib import Path

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError


@click.command()
@click.option("--quick", is_flag=True, help="Make small versions, in at most 3 minutes of processor time.")
@click.option("--only", metavar="IDS", help="Make only these, separated by commas: E4,E7.")
@options.path(
    "--out",
    "FOLDER",
    "Folder for report.html, report.md and a JSON file for each experiment. The report is made of all of these that "
    "are there, so experiments may be made one after another, and on several machines.",
    default=Path("experiments"),
)
@click.option("--list", "lists", is_flag=True, help="List the experiments and the questions that they answer.")
@options.common
def experiments(quick: bool, only: str | None, out: Path, lists: bool, output: Output) -> None:
    """Make the experiments of the evaluation on this machine.

    Each row of the results says whether it was measured here, simulated, modelled, published by others or stated by a
    vendor. What needs a program or a library that is missing is skipped with the reason.
    """
    with output.working("getting ready"):
        from p4sgd.host.experiments.catalogue import EXPERIMENTS
        from p4sgd.host.experiments.record import load_records, make_record, save_record
        from p4sgd.host.experiments.report import PAGE, TEXT, check_folder, save_report
        from p4sgd.host.report import check_libraries

    chosen = list(EXPERIMENTS) if only is None else [id.strip().upper() for id in only.split(",")]
    if unknown := [id for id in chosen if id not in EXPERIMENTS]:
        known = ", ".join(EXPERIMENTS)
        raise UserError(f"names {unknown[0]!r}, which is no experiment: choose of {known}", field="only")
    if lists:
        rows = [(id, EXPERIMENTS[id].title, EXPERIMENTS[id].question) for id in chosen]
        names = ("id", "title", "question")
        output.document({"experiments": [dict(zip(names, row, strict=True)) for row in rows]})
        output.table(names, rows, texts=3, wraps=True)
        return
    check_libraries("the report")
    check_folder(out)
    words = ["p4sgd", "experiments", *["--quick"] * quick, *([] if only is None else ["--only", only])]
    made = []
    try:
        for id in chosen:
            with output.working(f"{id}: {EXPERIMENTS[id].title}", told=True):
                record = make_record(EXPERIMENTS[id], quick, shlex.join(words))
                save_record(record, out)
            finding = record.finding
            made.append({"id": id, "seconds": record.seconds, "skipped": finding.skipped or None})
            for sentence in (*finding.losses, *finding.sentences, *filter(None, [finding.skipped])):
                output.say(f"{id}: {sentence}")
    finally:
        if made:  # what was finished, if another one fails or is interrupted
            save_report(load_records(out, EXPERIMENTS), out)
    output.document({"experiments": made, "report": str(out / PAGE), "text": str(out / TEXT)})
    output.say(f"report in {out / PAGE}")
