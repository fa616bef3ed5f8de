"""The command `p4sgd predict`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.reading import reading_options, take_reading
from p4sgd.host.errors import UserError
from p4sgd.host.new_file import new_file

__all__ = ["predict"]


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="File to write instead of standard output."
)
@click.option("--probabilities", is_flag=True, help="Add the probability of the second class (logistic models only).")
@reading_options
@common_options
def predict(
    model: Path, data: str, out: Path | None, probabilities: bool, as_json: bool, quiet: bool, **choices: Any
) -> None:
    """Predict with a model, one line a sample.

    A line is the predicted class, or the target of a regression in its own unit; with --probabilities a comma and the
    probability of the second class follow. Labels in DATA are not used.
    """
    output = Output(as_json=as_json, quiet=quiet)
    reading = take_reading(choices)
    with output.working("predicting"):
        import numpy as np

        from p4sgd.host.data import read_dataset
        from p4sgd.host.model_file import load_model

        loaded = load_model(model)
        if probabilities and loaded.loss != "logistic":
            raise UserError(
                f"{model}: trained with the loss {loaded.loss}, which gives no probabilities; logistic does"
            )
        samples = read_dataset(data, features=loaded.coefficients.size, labelled=None, **reading)
        z = loaded.decision_function(samples)
        columns = [loaded.labels.predictions(z)]
        if probabilities:
            from scipy.special import expit

            columns.append(np.asarray(expit(z)))
    names = ("predictions", "probabilities")
    if as_json:
        output.document(
            {"model": str(model), "data": data}
            | {name: column.tolist() for name, column in zip(names, columns, strict=False)}
        )
    lines = _lines(column.tolist() for column in columns)
    if out is not None:
        _write(out, lines)
        output.remark(f"{samples.labels.size:,} predictions in {out}")
    elif not as_json:
        for line in lines:
            click.echo(line)


def _lines(columns: Iterable[list[float]]) -> Iterator[str]:
    """Comma-separated values: the shortest text that reads back as the same number, whole numbers without a point."""
    for row in zip(*columns, strict=True):
        yield ",".join(f"{value:.0f}" if value.is_integer() else repr(value) for value in row)


def _write(out: Path, lines: Iterable[str]) -> None:
    """Write a file whole or not at all; a pipe or a device, such as ``/dev/stdout``, as it comes."""
    encoded = (f"{line}\n".encode() for line in lines)
    if out.exists() and not out.is_file():
        with out.open("wb") as file:
            file.writelines(encoded)
    else:
        with new_file(out) as file:
            file.writelines(encoded)
