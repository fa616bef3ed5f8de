"""The commands `p4sgd predict` and `p4sgd evaluate`: a model file applied to data."""

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.output import Output, shorten
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file
from p4sgd.host.run.checks import check_absent, check_apart, check_reading

if TYPE_CHECKING:
    from p4sgd.host.data import Dataset
    from p4sgd.host.training.model_file import Model, ModelSet


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=options.data_name)
@options.path("--out", "FILE", "File to write instead of standard output.")
@options.overwrite
@click.option(
    "--probabilities",
    is_flag=True,
    help="Add a column with the probability of the second class, or of more than two one for each (losses logistic and "
    "modified_huber only).",
)
@options.reading
@options.common
def predict(
    model: Path, data: str, out: Path | None, overwrite: bool, probabilities: bool, output: Output, **choices: Any
) -> None:
    """Predict with a model, one line per sample.

    A line has the predicted class, named as in the training data, or for a regression the predicted value. With
    --probabilities it also has, after a comma, the probability of one class: that of --positive, else the second of
    the two in numeric or alphabetic order; of more than two classes, those of all in that order. A line on standard
    error names them. A model of several targets has a column for the prediction of each, and for the probability of its
    second class. Labels in DATA are ignored and may be missing.
    """
    check_apart([out], [model, data, options.options_file()])
    check_absent(out, overwrite=overwrite, special=True)
    reading = options.take_reading(choices)
    with output.working("predicting"):
        import numpy as np

        from p4sgd.host.data.labels import TargetCoding
        from p4sgd.host.losses import LOSSES, Probabilistic
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        if probabilities and not isinstance(LOSSES[loaded.loss], Probabilistic):
            others = " and ".join(each.name for each in LOSSES.values() if isinstance(each, Probabilistic))
            raise UserError(f"{model}: trained with the loss {loaded.loss}, which gives no probabilities: {others} do")
        samples = _read(output, loaded, data, reading, labels_needed=False)
        z, labels = loaded.decision_function(samples), loaded.labels
        predictions = labels.named(labels.predictions(z))
        targets = isinstance(labels, TargetCoding)
        columns: list[Any] = [*zip(*predictions, strict=True)] if targets else [predictions]
        more: dict[str, Any] = {}
        if probabilities:
            found = loaded.probabilities(z)
            assert found is not None
            names = list(labels.row_names if targets else labels.named(np.array(labels.classes)))
            if found.shape[1] == 2 and not targets:  # one tells both
                found, names = found[:, 1:], names[1:]
            columns += found.T.tolist()
            one = len(names) == 1 and not targets
            more["probabilities_of"] = names[0] if one else names
            more["probabilities"] = found[:, 0].tolist() if one else found.tolist()
    if out is not None:
        _write(out, columns)
        output.remark(f"{samples.samples:,} predictions in {out}")
    if more:
        output.remark(f"probabilities are those of {', '.join(map(str, names))}")
    facts = {"model": str(model), "data": data, "samples": samples.samples, "out": None if out is None else str(out)}
    output.document(facts | {"predictions": predictions} | more)
    if out is None and not output.as_json:
        csv.writer(sys.stdout, lineterminator="\n").writerows(zip(*columns, strict=True))


def _read(
    output: Output, model: "Model | ModelSet", data: str, reading: Mapping[str, Any], *, labels_needed: bool
) -> "Dataset":
    from p4sgd.host.data import read_dataset
    from p4sgd.host.data.labels import TargetCoding
    from p4sgd.host.data.read import find_format

    check_reading(reading, [data])
    named = isinstance(model.labels, TargetCoding) and model.space.names and not reading["label_column"]
    if named and Path(data).is_file() and find_format(data, reading["file_format"])[0] in ("csv", "parquet"):
        reading = {**reading, "label_column": model.labels.row_names}
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


def _write(out: Path, columns: Sequence[Sequence[Any]]) -> None:
    """Write a file whole or not at all; a pipe or a device, such as ``/dev/stdout``, is written directly."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
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
@click.argument("data", type=options.data_name)
@options.reading
@options.common
def evaluate(model: Path, data: str, output: Output, **choices: Any) -> None:
    """Measure a model on labelled data.

    For a classifier prints the mean loss, accuracy, balanced accuracy (the mean over the classes), log loss (if the
    loss gives probabilities), the area under the ROC curve (AUC), average precision, F1 and the confusion matrix; AUC,
    average precision and F1 are of the second class, or of more than two classes means over each against the rest, as
    the loss is. For a regression prints the mean loss (of targets scaled as in
    training), R², root mean squared error, mean absolute error and mean squared error, with the losses poisson and
    gamma also the mean deviance and D². Of several targets prints the means, but the accuracy of all together, and a
    table of each. All but loss, deviance and D² are scikit-learn's.
    """
    reading = options.take_reading(choices)
    with output.working("evaluating"):
        from p4sgd.host.training.metrics import score
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        samples = _read(output, loaded, data, reading, labels_needed=True)
        metrics = score(loaded, samples)
    output.document({"model": str(model), "data": data, "samples": samples.samples, **metrics})
    shown = {name: title for name, title in _TITLES.items() if name in metrics}
    rows = [["samples", f"{samples.samples:,}"], [f"{loaded.loss} loss", _number("loss", metrics["loss"])]]
    output.table(["metric", "value"], [*rows, *([shown[name], _number(name, metrics[name])] for name in shown)])
    if "targets" in metrics:
        names = ["loss", *shown]
        cells = [
            [shorten(target), *(_number(name, each[name]) for name in names)]
            for target, each in metrics["targets"].items()
        ]
        output.table(["target", "loss", *shown.values()], cells)
    if "confusion_matrix" in metrics:
        _show_confusion(output, list(map(shorten, loaded.labels.meanings)), metrics["confusion_matrix"])


def _show_confusion(output: Output, names: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """The confusion matrix; on a terminal without room for it, the pairs that are confused most."""
    titles = ["true \\ predicted", *names]
    rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
    if output.has_room(titles, rows):
        output.table(titles, rows)
        return
    pairs = [
        (names[true], names[predicted], count)
        for true, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if count and true != predicted
    ]
    if pairs:
        worst = sorted(pairs, key=lambda pair: -pair[2])[:10]
        output.table(["true", "predicted", "samples"], worst, texts=2)
    told = "these are confused most" if pairs else "none is taken for another"
    output.say(f"of {len(names)} classes {told}; a wider terminal or --json has the whole matrix")


_TITLES = {
    **{"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "log_loss": "log loss", "auc": "AUC"},
    **{"average_precision": "average precision", "f1": "F1", "deviance": "mean deviance", "d2": "D²", "r2": "R²"},
    **{"rmse": "root mean squared error", "mae": "mean absolute error", "mse": "mean squared error"},
}
"""Titles of metrics beside the loss, by name, in the order of the table."""


def _number(name: str, value: float) -> str:
    if "accuracy" in name:
        return f"{value:.2%}"
    return f"{value:.6g}" if math.isfinite(value) else "undefined"
