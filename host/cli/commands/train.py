"""The command `p4sgd train`."""

from pathlib import Path
from typing import Any

import click

from p4sgd.host.cli.options import common_options, configuration_option, device_kind
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.paths import check_apart, check_new_model
from p4sgd.host.cli.reading import reading_options, take_reading
from p4sgd.host.cli.training import finish, run_training, training_options

__all__ = ["train"]


@click.command()
@click.argument("data")
@click.option("--test", metavar="DATA", help="Data to measure every epoch on, without influence on training.")
@click.option("--out", type=click.Path(path_type=Path), metavar="MODEL", help="Model file to write.")
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the workers' memory images as files there, worker0.p4sgd and so on, instead of in memory.",
)
@click.option("--device", type=device_kind, default="emulator", show_default=True, help="What to train on.")
@configuration_option
@training_options
@reading_options
@common_options
def train(
    data: str,
    test: str | None,
    out: Path | None,
    images: Path | None,
    device: str,
    config: str | None,
    as_json: bool,
    quiet: bool,
    **choices: Any,
) -> None:
    """Train a model.

    DATA is a file or the name of a data set that comes with scikit-learn, such as breast_cancer.

    The table has a line an epoch. Losses and accuracies are those of the model on unrounded data; the quantised loss is
    what the device itself saw, features of --precision bits. The rate is the learning rate used, and samples/s the
    speed of this device, without the time to measure.
    """
    output = Output(as_json=as_json, quiet=quiet)
    check_new_model(out)
    check_apart([out], [data, test])
    reading = take_reading(choices)
    result = run_training(output, data, test, reading, choices, device, config, out, images=images)
    finish(output, result, out)
