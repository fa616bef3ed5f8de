"""The commands `p4sgd predict` and `p4sgd evaluate`: a model file applied to data."""

import csv
import io
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli.options import (
    common_options,
    data_name,
    options_file,
    overwrite_option,
    reading_options,
    take_reading,
)
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file
from p4sgd.host.run.checks import check_absent, check_apart, check_reading

if TYPE_CHECKING:
    from p4sgd.host.data import Dataset
    from p4sgd.host.training.model_file import Model

__all__ = ["evaluate", "predict"]


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=data_name)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="File to write instead of standard output."
)
@overwrite_option
@click.option(
    "--probabilities",
    is_flag=True,
    help="Add a column with the probability of the second class (losses logistic and modified_huber only).",
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
    """Predict with a model, one line per sample.

    A line has the predicted class, named as in the training data, or for a regression the predicted value. With
    --probabilities it also has, after a comma, the probability of one class: that of --positive, else the second of
    the two in numeric or alphabetic order; a line on standard error names it. Labels in DATA are ignored and may be
    missing.
    """
    output = Output(as_json=as_json, quiet=quiet)
    check_apart([out], [model, data, options_file()])
    check_absent(out, overwrite=overwrite, special=True)
    reading = take_reading(choices)
    with output.working("predicting"):
        from p4sgd.host.losses import LOSSES, Probabilistic, get_loss
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        loss = get_loss(loaded.loss, loaded.loss_parameters)
        if probabilities and not isinstance(loss, Probabilistic):
            others = " and ".join(each.name for each in LOSSES.values() if isinstance(each, Probabilistic))
            raise UserError(f"{model}: trained with the loss {loss.name}, which gives no probabilities: {others} do")
        samples = _read(output, loaded, data, reading, labels_needed=False)
        z = loaded.decision_function(samples)
        more: dict[str, Any] = {}
        labels = loaded.labels
        columns: dict[str, list[Any]] = {"predictions": list(map(labels.name, labels.predictions(z).tolist()))}
        if probabilities and isinstance(loss, Probabilistic):
            columns["probabilities"] = loss.probabilities(z).tolist()
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


def _read(output: Output, model: "Model", data: str, reading: Mapping[str, Any], *, labels_needed: bool) -> "Dataset":
    """The data, with the features of a model."""
    from p4sgd.host.data import read_dataset
    from p4sgd.host.data.read import find_format

    check_reading(reading, [data])
    samples = read_dataset(data, like=model.space, labels_needed=labels_needed, **reading)
    for remark in samples.remarks:
        output.remark(f"{data}: {remark}")
    bits = model.space.hash_bits
    if bits and not reading.get("hash_bits") and find_format(data, reading.get("file_format"))[0] == "libsvm":
        output.remark(
            f"{data}: features are numbers, taken modulo 2^{bits} as the model's; names would be other columns "
            f"(--hash-bits {bits} says that numbers are right)"
        )
    return samples


def _write(out: Path, columns: Mapping[str, list[Any]]) -> None:
    """Write a file whole or not at all; a pipe or a device, such as ``/dev/stdout``, is written directly."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(*columns.values(), strict=True))
    content = text.getvalue().encode()
    if out.exists() and not out.is_file():
        try:
            out.write_bytes(content)
        except BrokenPipeError:  # the reader has read enough: not a failure of ours
            raise
        except OSError as error:
            raise UserError(f"{out}: cannot write: {error.strerror}") from error
    else:
        with new_file(out, len(content)) as file:
            file.write(content)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=data_name)
@reading_options
@common_options
def evaluate(model: Path, data: str, as_json: bool, quiet: bool, **choices: Any) -> None:
    """Measure a model on labelled data.

    For a classifier prints the mean loss, accuracy, balanced accuracy (the mean over the classes), log loss (if the
    loss gives probabilities), the area under the ROC curve (AUC), average precision, F1 and the confusion matrix; AUC,
    average precision and F1 are of the second class. For a regression prints the mean loss (of targets scaled as in
    training), R², root mean squared error, mean absolute error and mean squared error, with the losses poisson and
    gamma also the mean deviance and D². All but loss, deviance and D² are scikit-learn's.
    """
    output = Output(as_json=as_json, quiet=quiet)
    reading = take_reading(choices)
    with output.working("evaluating"):
        from p4sgd.host.training.evaluation import score
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        samples = _read(output, loaded, data, reading, labels_needed=True)
        metrics = score(loaded, samples)
    output.document({"model": str(model), "data": data, "samples": samples.samples, **metrics})
    rows = [("samples", f"{samples.samples:,}"), (f"{loaded.loss} loss", _number(metrics["loss"]))]
    rows += [
        (title, f"{metrics[name]:.2%}" if "accuracy" in name else _number(metrics[name]))
        for name, title in _TITLES.items()
        if name in metrics
    ]
    output.table(["metric", "value"], rows)
    if "confusion_matrix" in metrics:
        names = list(map(_short, loaded.labels.meanings))
        counts = [[f"{count:,}" for count in row] for row in metrics["confusion_matrix"]]
        output.table(["true \\ predicted", *names], [(name, *row) for name, row in zip(names, counts, strict=True)])


_TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
    "auc": "AUC",
    "average_precision": "average precision",
    "f1": "F1",
    "deviance": "mean deviance",
    "d2": "D²",
    "r2": "R²",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "mse": "mean squared error",
}
"""Titles of metrics beside the loss, by name, in the order of the table."""

_NAME = 17
"""Characters of a class in a table: with them in the first column and in two headers it fits 60 columns."""


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "undefined"


def _short(name: str) -> str:
    """The name of a class, cut in its middle if it is long, because ends tell classes apart as often as beginnings."""
    return name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[-(_NAME // 2) :]}"
