"""The command `p4sgd export`: a model file for other programs."""

import pickle
from pathlib import Path

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import listed
from p4sgd.host.files import new_file
from p4sgd.host.run.checks import check_absent, check_apart


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--to", "kind", type=options.NameFrom("format", ("onnx", "sklearn")), required=True, help="What to write."
)
@options.path("--out", "FILE", "File to write.", required=True)
@options.overwrite
@options.common
def export(model: Path, kind: str, out: Path, overwrite: bool, output: Output) -> None:
    """Write a model for ONNX or scikit-learn.

    Both predict on raw features as p4sgd predict does, up to roundings of float64. onnx needs the package onnx (pip
    install 'p4sgd[export]'). Its graph takes features in float64 and returns label, activation and, if the loss gives
    them, probabilities; of a regression prediction. sklearn is a fitted LogisticRegression, SGDClassifier, LinearSVC,
    LinearRegression, PoissonRegressor or GammaRegressor for pickle.load or joblib.load. Load a pickle only if you know
    who wrote it.

    Of a model of a table with texts or gaps only the linear part is written: it takes the features that p4sgd makes of
    the table, whose names p4sgd inspect shows.
    """
    check_apart([out], [model, options.options_file()])
    check_absent(out, overwrite=overwrite)
    with output.working("exporting"):
        from p4sgd.host.training.export import to_onnx, to_sklearn
        from p4sgd.host.training.model_file import load_model

        loaded = load_model(model)
        content = to_onnx(loaded) if kind == "onnx" else pickle.dumps(to_sklearn(loaded))
        with new_file(out, len(content)) as file:
            file.write(content)
    if loaded.space.encoding is not None:
        output.remark(
            f"the model takes {loaded.space.count} features made of {loaded.space.column_count} columns of a table, in "
            f"the order of their names ({listed(loaded.space.names, 5)}); {kind} gets them as they are, not the "
            f"table"
        )
    output.document({"model": str(model), "to": kind, "out": str(out), "bytes": len(content)})
    output.say(f"{model} for {kind} in {out}, {len(content):,} bytes")
