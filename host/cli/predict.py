"""The commands `p4sgd predict` and `p4sgd evaluate`.

The command `p4sgd predict`.

The command `p4sgd evaluate`.
"""

import csv
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from p4sgd.host.cli.options import common_options, overwrite_option
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.paths import check_absent, check_apart
from p4sgd.host.cli.reading import check_reading, reading_options, take_reading
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file

__all__ = ["evaluate", "predict"]


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="File to write instead of standard output."
)
@overwrite_option
@click.option(
    "--probabilities",
    is_flag=True,
    help="Add a column with the probability of the class that a remark names (logistic models only).",
)
@reading_options
@common_options
def predict(
    model: Path,
    data: str,
    out: Path | None,
    overwrite: bool,
    probabilities: bool,
    as_json: bool,
    quiet: bool,
    **choices: Any,
) -> None:
    """Predict with a model, one line a sample.

    A line is the predicted class as the training data name it, or the target of a regression in its own unit; with
    --probabilities a comma and the probability of one class follow: the positive one, else the second of the two by
    number or alphabet; a remark on standard error names it. Labels in DATA are not used and may be missing.
    """
    output = Output(as_json=as_json, quiet=quiet)
    check_apart([out], [model, data])
    check_absent(out, overwrite=overwrite, special=True)
    reading = take_reading(choices)
    with output.working("predicting"):
        from p4sgd.host.data import read_dataset
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        if probabilities and loaded.loss != "logistic":
            raise UserError(
                f"{model}: trained with the loss {loaded.loss}, which gives no probabilities; logistic does"
            )
        check_reading(reading, [data])
        samples = read_dataset(data, like=loaded.space, labels_needed=False, **reading)
        z = loaded.decision_function(samples)
        more: dict[str, Any] = {}
        labels = loaded.labels
        columns: dict[str, list[Any]] = {"predictions": list(map(labels.name, labels.predictions(z).tolist()))}
        if probabilities:
            from scipy.special import expit

            columns["probabilities"] = expit(z).tolist()
            more["probabilities_of"] = labels.name(labels.classes[1])
    if out is not None:
        _write(out, columns)
        output.remark(f"{samples.samples:,} predictions in {out}")
    written = None if out is None else str(out)
    if probabilities:
        output.remark(f"probabilities are those of {more['probabilities_of']}")
    output.document({"model": str(model), "data": data, "samples": samples.samples, "out": written} | more | columns)
    if out is None and not as_json:
        csv.writer(sys.stdout, lineterminator="\n").writerows(zip(*columns.values(), strict=True))


def _write(out: Path, columns: Mapping[str, list[Any]]) -> None:
    """Write a file whole or not at all; a pipe or a device, such as ``/dev/stdout``, as it comes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(*columns.values(), strict=True))
    content = text.getvalue().encode()
    if out.exists() and not out.is_file():
        try:
            out.write_bytes(content)
        except BrokenPipeError:  # no failure: the reader has what it wanted
            raise
        except OSError as error:
            raise UserError(f"{out}: cannot write: {error.strerror}") from error
    else:
        with new_file(out, len(content)) as file:
            file.write(content)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data")
@reading_options
@common_options
def evaluate(model: Path, data: str, as_json: bool, quiet: bool, **choices: Any) -> None:
    """Measure a model on labelled data.

    Prints the mean loss, and accuracy for a classifier or mean squared error and R² for a regression.
    """
    output = Output(as_json=as_json, quiet=quiet)
    reading = take_reading(choices)
    with output.working("evaluating"):
        from p4sgd.host.data import read_dataset
        from p4sgd.host.training.metrics import evaluate as measure
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        check_reading(reading, [data])
        samples = read_dataset(data, like=loaded.space, **reading)
        metrics = measure(loaded, samples)
    output.document({"model": str(model), "data": data, "samples": samples.samples, **metrics})
    names = {"loss": f"{loaded.loss} loss", "r2": "R²", "mse": "mean squared error"}
    rows = [("samples", f"{samples.samples:,}")]
    rows += [
        (names.get(name, name), f"{value:.2%}" if name == "accuracy" else f"{value:.6g}")
        for name, value in metrics.items()
    ]
    output.table(["metric", "value"], rows)
