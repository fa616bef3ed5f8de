"""The command `p4sgd train`."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import click

from p4sgd.host.cli.checkpoints import TrainingRequest, checkpoint_options, resume_request
from p4sgd.host.cli.launching import launcher_option, run_ranks
from p4sgd.host.cli.options import cluster_option, common_options, configuration_option, device_kind
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.paths import check_new_checkpoint, check_new_model
from p4sgd.host.cli.reading import reading_options, take_reading
from p4sgd.host.cli.training import finish, run_training, training_options
from p4sgd.host.distributed.communicator import check_same, raise_on_all

__all__ = ["train"]


@click.command()
@click.argument("data", required=False)
@click.option("--test", metavar="DATA", help="Data to measure every epoch on, without influence on training.")
@click.option("--out", type=click.Path(path_type=Path), metavar="MODEL", help="Model file to write.")
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the workers' memory images as files there, worker0.p4sgd and so on, instead of in memory; the folder is "
    "made if it is missing.",
)
@checkpoint_options
@click.option("--device", type=device_kind, default="emulator", show_default=True, help="What to train on.")
@cluster_option
@launcher_option
@configuration_option
@training_options
@reading_options
@common_options
def train(
    data: str | None,
    test: str | None,
    out: Path | None,
    images: Path | None,
    checkpoint: Path | None,
    resume: Path | None,
    device: str,
    cluster: Path | None,
    launcher: str | None,
    config: str | None,
    as_json: bool,
    quiet: bool,
    **choices: Any,
) -> None:
    """Train a model.

    DATA is a file, the name of a data set that comes with scikit-learn, such as breast_cancer, or a folder that
    p4sgd data prepare has made. With --resume it is that of the checkpoint, wherever it is now.

    The table has a line an epoch. Losses and accuracies are those of the model on unrounded data; the quantised loss is
    what the device itself saw, features of --precision bits. The rate is the learning rate used, and samples/s the
    speed of this device, without the time to measure. With a prepared folder, which has no unrounded data to train on,
    the quantised loss stands for the first of these.
    """
    with run_ranks(launcher) as ranks:
        output = Output(as_json=as_json, quiet=quiet, silent=ranks.rank > 0)
        job = TrainingRequest(data or "", test, take_reading(choices), choices, device, out, cluster)
        saved = None
        if resume is not None:
            with output.working("getting ready"):
                from p4sgd.host.training import load_checkpoint

                saved = load_checkpoint(resume)
                digest = hashlib.sha256(resume.read_bytes()).hexdigest()
                check_same(ranks, digest, f"{resume}: is not the same file for all ranks: give all of them the newest")
            job = resume_request(saved, job, config, ranks)
            checkpoint = checkpoint or resume
        elif data is None:
            raise click.MissingParameter(param_hint="'DATA'", param_type="argument")
        raise_on_all(ranks, partial(_check_new, job.out, checkpoint) if ranks.rank == 0 else None)
        file = None
        if checkpoint is not None:
            from p4sgd.host.training import CheckpointFile

            file = CheckpointFile(checkpoint, job.origin())
        result = run_training(output, job, config, images=images, checkpoint=file, resume=saved, ranks=ranks)
        finish(output, result, job.out, file)


def _check_new(model: Path | None, checkpoint: Path | None) -> None:
    check_new_model(model)
    check_new_checkpoint(checkpoint)
