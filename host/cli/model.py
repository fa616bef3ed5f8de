"""The commands that use a model file: `p4sgd predict`, `evaluate`, `inspect` and `export`."""

import csv
import io
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.output import COLUMNS, Output, cell, shorten
from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file, write_error
from p4sgd.host.run.checks import check_absent, check_apart, check_reading

if TYPE_CHECKING:
    from p4sgd.host.data import Dataset
    from p4sgd.host.training.model_file import Model, ModelSet

_FEW = 10
"""Samples below which it is no wonder if one has most of the error."""

_model = click.argument("model", type=click.Path(path_type=Path))


def _read(
    output: Output, model: "Model | ModelSet", data: str, reading: Mapping[str, Any], *, labels_needed: bool = True
) -> "tuple[Dataset, tuple[str, list[str]]]":
    """Data with the features of a model, read as its training data were; header and texts of the IDs, if chosen."""
    from p4sgd.host.data.formats.source import read
    from p4sgd.host.data.read import find_format, open_source

    check_reading(reading, [data])
    source = open_source(data, like=model.space, labels_needed=labels_needed, **reading)
    samples = read(source)
    for remark in samples.remarks:
        output.remark(f"{data}: {remark}")
    bits = model.space.hash_bits
    if bits and not reading["hash_bits"] and find_format(data, reading["file_format"])[0] == "libsvm":
        output.remark(
            f"{data}: features are numbers, taken modulo 2^{bits} as the model's; names would be other columns "
            f"(--hash-bits {bits} says that numbers are right)"
        )
    return samples, source.ids


@click.command()
@_model
@options.data
@options.path(
    "--out",
    "FILE",
    "File to write instead of standard output, which is also -.",
    callback=lambda context, option, value: None if value == Path("-") else value,
)
@options.overwrite
@click.option(
    "--probabilities",
    is_flag=True,
    help="Add a column with the probability of the second class, or of more than two one for each (losses logistic and "
    "modified_huber only).",
)
@click.option(
    "--id-column",
    metavar="COLUMN",
    help="Column of a CSV or Parquet file that tells the samples apart, by its header or its number: predictions begin "
    "with it, after a line of headers. It is no feature, unless it was one in training.",
)
@options.reading
@options.common
def predict(
    model: Path,
    data: str,
    out: Path | None,
    overwrite: bool,
    probabilities: bool,
    id_column: str | None,
    output: Output,
    **choices: Any,
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
    more: dict[str, Any] = {}
    with output.working("predicting"):
        import numpy as np

        from p4sgd.host.data.labels import TargetCoding
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        if probabilities:
            _check_probabilities(model, loaded.loss)
        reading["id_column"] = id_column
        samples, (title, ids) = _read(output, loaded, data, reading, labels_needed=False)
        z, labels = loaded.decision_function(samples), loaded.labels
        predictions = labels.named(loaded.predictions(z))
        targets = isinstance(labels, TargetCoding)
        columns: list[Any] = [*zip(*predictions, strict=True)] if targets else [predictions]
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if id_column is not None:
        titles = [f"prediction {name}" for name in labels.row_names] if targets else ["prediction"]
        titles += [f"probability {name}" for name in names] if probabilities else []
        writer.writerow([title, *titles])
        columns = [ids, *columns]
        more["ids"] = ids
    writer.writerows(zip(*columns, strict=True))
    if out is not None:
        _write(out, text.getvalue().encode())
        output.remark(f"{samples.samples:,} predictions in {out}")
    if probabilities:
        output.remark(f"probabilities are those of {', '.join(map(str, names))}")
    facts = {"model": str(model), "data": data, "samples": samples.samples, "out": None if out is None else str(out)}
    output.document(facts | {"predictions": predictions} | more)
    if out is None and not output.as_json:
        sys.stdout.write(text.getvalue())


def _check_probabilities(model: Path, loss: str) -> None:
    from p4sgd.host.losses import LOSSES, Probabilistic

    if not isinstance(LOSSES[loss], Probabilistic):
        others = " and ".join(each.name for each in LOSSES.values() if isinstance(each, Probabilistic))
        raise UserError(f"{model}: trained with the loss {loss}, which gives no probabilities: {others} do")


def _write(out: Path, content: bytes) -> None:
    """Write a file whole or not at all; a pipe or a device, such as ``/dev/stdout``, is written directly."""
    if not out.exists() or out.is_file():
        with new_file(out, len(content)) as file:
            file.write(content)
        return
    try:
        out.write_bytes(content)
    except BrokenPipeError:  # the reader has read enough: not a failure of ours
        raise
    except OSError as error:
        raise write_error(out, error) from error


@click.command()
@_model
@options.data
@options.reading
@options.common
def evaluate(model: Path, data: str, output: Output, **choices: Any) -> None:
    """Measure a model on labelled data.

    For a classifier prints the mean loss, accuracy, balanced accuracy (the mean over the classes), log loss (if the
    loss gives probabilities), the area under the ROC curve (AUC), average precision, F1 and the confusion matrix; AUC,
    average precision and F1 are of the second class, or of more than two classes means over each against the rest, as
    the loss is. For a regression prints the mean loss (of targets scaled as in training), R², root mean squared error
    (RMSE), mean absolute error and mean squared error, with the losses poisson and gamma also the mean deviance and D².
    Of several targets prints the means, but the accuracy of all together, and a table of each. All but loss, deviance
    and D² are scikit-learn's.
    """
    reading = options.take_reading(choices)
    with output.working("evaluating"):
        from p4sgd.host.data.builtin import with_meanings
        from p4sgd.host.training.metrics import score
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        samples, _ = _read(output, loaded, data, reading)
        metrics = score(loaded, samples)
        if "rmse" in metrics and len(loaded.rows) == 1 and samples.samples >= _FEW:
            errors = abs(loaded.predict(samples) - samples.labels)
            shares = errors**2 if samples.sample_weights is None else errors**2 * samples.sample_weights
            worst = int(shares.argmax())
            if shares[worst] > shares.sum() / 2:
                output.remark(
                    f"{data}: sample {worst + 1} has more than half of the squared error, {errors[worst]:.3g} off: "
                    f"its features may be wrong, or far outside those of the training samples"
                )
    output.document({"model": str(model), "data": data, "samples": samples.samples, **metrics})
    names = [name for name, value in metrics.items() if isinstance(value, float)]
    rows = [[name.replace("_", " "), cell(name, metrics[name], 6)] for name in names]
    output.table(["metric", "value"], [["samples", samples.samples], *rows])
    if "targets" in metrics:
        targets = metrics["targets"].items()
        rows = [[shorten(target), *(cell(name, each[name], 6) for name in names)] for target, each in targets]
        output.table(["target", *(name.replace("_", " ") for name in names)], rows)
    if "confusion_matrix" in metrics:
        labels = with_meanings(loaded.labels, loaded.training.get("data"))
        _show_confusion(output, list(map(shorten, labels.meanings)), metrics["confusion_matrix"])


def _show_confusion(output: Output, names: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """The confusion matrix; where there is no room for it, the pairs that are confused most."""
    titles = ["true \\ predicted", *names]
    if sum(len(title) + 2 for title in titles) <= output.results.width:
        output.table(titles, [[name, *row] for name, row in zip(names, counts, strict=True)])
        return
    places = range(len(names))
    pairs = [(names[i], names[j], counts[i][j]) for i in places for j in places if i != j and counts[i][j]]
    pairs.sort(key=lambda pair: -pair[2])
    if pairs:
        output.table(["true", "predicted", "samples"], pairs[:10], texts=2)
    what = "these are confused most" if pairs else "none is taken for another"
    output.say(f"of {len(names)} classes {what}; a wider terminal or --json has the whole matrix")


@click.command()
@_model
@click.option(
    "--top",
    type=click.IntRange(0),
    metavar="N",
    help="Show the N largest coefficients; by default 10, with --json all.",
)
@options.common
def inspect(model: Path, top: int | None, output: Output) -> None:
    """Show what a model is and how it was trained.

    The largest coefficients are listed: of raw features, for a regression in the unit of the target (with the losses
    poisson, gamma and tweedie its logarithm). Their sizes depend on the units of the features. The scaled ones, by
    which they are ordered, are of features scaled as in training.

    The document of --json has all that a prediction takes. Of the columns of a "table" texts are features named
    column=text, 1 for the samples that have it, and gaps column=missing; "mean" stands for a missing number. The sum of
    "coefficient" times feature, the "intercept" and the offset if there are any is the prediction of a regression, its
    logarithm, or the activation of a class, and with the loss logistic 1 / (1 + e^-activation) the probability. If
    there is a "softmax" of several classes, they contain it: probabilities are e^activation, divided by their sum.
    """
    import numpy as np

    from p4sgd.host.training.model_file import ModelSet, load_model

    loaded = load_model(model)
    form, space, (first, *_) = loaded.features, loaded.space, loaded.rows
    several = isinstance(loaded, ModelSet)
    coefficients, intercept = loaded.linear()
    table, slope = np.atleast_2d(coefficients), first.slope[: space.count]
    scaled = np.divide(table, slope, out=np.zeros_like(table), where=slope != 0)
    used = np.argwhere(table)
    order = used[np.argsort(-np.abs(scaled[tuple(used.T)]), kind="stable")]
    names, kind = loaded.labels.row_names, loaded.labels.row_kind
    largest: list[dict[str, Any]] = []
    shown = None if output.as_json else 10
    for row, column in order[: shown if top is None else top].tolist():
        values = {"coefficient": float(table[row, column]), "scaled": float(scaled[row, column])}
        largest.append(({kind: names[row]} if several else {}) | {"feature": space.name(column)} | values)
    document = {
        "model": str(model),
        "loss": loaded.loss,
        "loss_parameters": [row.loss_parameters for row in loaded.rows] if several else first.loss_parameters,
        "labels": loaded.labels.to_json(),
        "features": space.count,
        "nonzero": len(used),
        "named": bool(space.names),
        "zero_based": space.zero_based,
        "hash_bits": space.hash_bits,
        "offset": space.offset,
        "table": None if space.encoding is None else space.encoding.to_json(),
        "reading": None if space.reading is None else space.reading.to_json(),
        "planes": form.stored,
        "precision": form.precision,
        "signed": form.signed,
        "preconditioned": first.mixing is not None,
        "intercept": np.asarray(intercept).tolist(),
        "softmax": vars(loaded.softmax) if isinstance(loaded, ModelSet) and loaded.softmax is not None else None,
        "coefficients": largest,
        "training": loaded.training,
        **({"rows": [row.training for row in loaded.rows]} if several else {}),
    }
    facts = {name: value for name, value in document.items() if not isinstance(value, dict | list)}
    try:
        facts |= _describe(loaded) | _describe_training(loaded.training)
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{model}: a damaged model file: what it says of its training: {error}") from error
    output.document(document)
    rows = [[name.replace("_", " "), value] for name, value in facts.items() if value not in (None, "")]
    output.table(["fact", "value"], rows, texts=2, wraps=True)
    if several:
        models = zip(names, loaded.rows, np.asarray(intercept).tolist(), strict=True)
        rows = [[shorten(name), row.training.get("epoch"), value] for name, row, value in models]
        output.table([kind, "best epoch", "intercept"], rows)
    output.records([each | {kind: shorten(each[kind])} if several else each for each in largest], texts=1 + several)


def _describe(model: "Model | ModelSet") -> dict[str, object]:
    """Parameters of the loss, in the unit of the target; classes or targets; what features are made of."""
    from p4sgd.host.data.builtin import with_meanings

    labels, first, encoding = model.labels, model.rows[0], model.space.encoding
    facts: dict[str, object] = dict(first.loss_parameters)
    if "epsilon" in first.loss_parameters:
        facts["epsilon"] = first.loss_parameters["epsilon"] * first.labels.scale
    if labels.classes:
        facts["classes"] = ", ".join(with_meanings(labels, model.training.get("data")).meanings)
    elif len(model.rows) > 1:
        facts["targets"] = ", ".join(labels.row_names)
    if encoding is not None:
        facts["columns"] = f"{model.space.column_count} of a table, missing values: {encoding.missing}"
    return facts | ({} if model.space.reading is None else model.space.reading.describe())


def _describe_training(training: Mapping[str, Any]) -> dict[str, object]:
    """How a model was trained, as far as the model file says: facts, options that are not the default, metrics."""
    from p4sgd.host.training import TrainingOptions

    names = ("data", "samples", "validation_samples", "scaling", "scaling_reason", "epoch", "stopped")
    defaults = TrainingOptions().to_json()
    chosen = {name: value for name, value in training.get("options", {}).items() if value != defaults.get(name)}
    metrics = {title: cell(name, training.get("metrics", {}).get(name)) for name, title in COLUMNS.items()}
    facts = {name: training.get(name) for name in (*names, "learning_rate", "device", "p4sgd")}
    return facts | {f"option {name}": value for name, value in chosen.items()} | metrics


@click.command()
@_model
@click.option(
    "--to", "kind", type=options.NameFrom("format", ("onnx", "sklearn")), required=True, help="What to write."
)
@options.path("--out", "FILE", "File to write.", required=True)
@options.overwrite
@click.option(
    "--float32", is_flag=True, help="Numbers of the ONNX graph's inputs are float32; a line tells what that may change."
)
@options.common
def export(model: Path, kind: str, out: Path, overwrite: bool, float32: bool, output: Output) -> None:
    """Write a model for ONNX or scikit-learn.

    Both predict on raw features as p4sgd predict does, up to roundings of float64, and need no p4sgd. onnx needs the
    package onnx (pip install 'p4sgd[export]'). Its graph takes features in float64 and returns label, activation and,
    if the loss gives them, probabilities; of a regression prediction. After training with offsets or exposures it also
    takes offset or exposure, of shape (samples,). sklearn is a fitted LogisticRegression, SGDClassifier, LinearSVC,
    LinearRegression, PoissonRegressor, GammaRegressor or TweedieRegressor for pickle.load or joblib.load. Load a pickle
    only if you know who wrote it.

    Of a table with texts, dates, gaps or truth values both take the columns: for onnx each is an input of its name, of
    shape (samples, 1), texts as texts and empty if they are missing, truth values as 0 and 1, dates as days since 1970
    with the time of day as fraction, numbers and dates NaN if they are missing. sklearn is a Pipeline then, and takes a
    DataFrame, dates as pandas.to_datetime makes them, without a time zone unless they are numbers in training.
    """
    if float32 and kind != "onnx":
        raise UserError("is for --to onnx: estimators of scikit-learn take float32 as they are", field="float32")
    check_apart([out], [model, options.options_file()])
    check_absent(out, overwrite=overwrite)
    with output.working("exporting"):
        from p4sgd.host.losses import Task
        from p4sgd.host.training.export import rounding, to_onnx, to_sklearn
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        content = to_onnx(loaded, float32=float32) if kind == "onnx" else pickle.dumps(to_sklearn(loaded))
        with new_file(out, len(content)) as file:
            file.write(content)
    document: dict[str, Any] = {"model": str(model), "to": kind, "out": str(out), "bytes": len(content)}
    kinds = {Task.CLASSIFICATION: "the activation", Task.REGRESSION: "the prediction"}
    what, given = kinds.get(loaded.labels.task, "the logarithm of the prediction"), loaded.space.offset
    if float32:
        document["rounding"] = most = rounding(loaded)
        if most is not None:
            output.remark(f"rounded to float32, features in the range of training change {what} by at most {most:.2g}")
    if given is not None and kind == "sklearn":
        addend = "the logarithm of its exposure" if given == "exposure" else "its offset"
        output.remark(f"scikit-learn takes no {given}: add {addend} to {what} of each sample")
    output.document(document)
    output.say(f"{model} for {kind} in {out}, {len(content):,} bytes")
