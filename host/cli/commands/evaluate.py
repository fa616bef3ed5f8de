"""The command `p4sgd evaluate`."""

from pathlib import Path
from typing import Any

import click

from p4sgd.host.cli.options import common_options
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.reading import check_reading, reading_options, take_reading

__all__ = ["evaluate"]


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
        from p4sgd.host.model_file import load_model
        from p4sgd.host.training.metrics import evaluate as measure

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
