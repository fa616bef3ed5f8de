"""The command `p4sgd train`, in one process or in several that train together."""

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from p4sgd.host.cli import options
from p4sgd.host.cli.failures import INTERRUPTED, describe, report
from p4sgd.host.cli.output import Output
from p4sgd.host.cli.training_run import finish, make_request, run_folds, run_training
from p4sgd.host.distributed.communicator import Communicator, SingleProcess, check_same


@click.command()
@click.argument("data", type=options.data_name, required=False)
@options.results
@options.path(
    "--images",
    "DIR",
    "Folder for the workers' memory images (worker0.p4sgd and so on), which otherwise stay in memory; it is made if it "
    "does not exist.",
)
@options.path(
    "--checkpoint",
    "FILE",
    "File that keeps the state after every epoch, for --resume; with --resume, by default the same file. That of the "
    "same run that has ended is replaced only with --overwrite.",
)
@options.path(
    "--resume",
    "FILE",
    "Resume the run of a checkpoint, with its data and options. The result is that of a run that never stopped. "
    "--epochs, --workers, --parallel, --shares, --split, --skip-zeros, --on-loss, --merge, --config, --sparse-workers, "
    "--out, --report, --device, --cluster and --checkpoint may differ.",
)
@options.path(
    "--init",
    "MODEL",
    "Start from the weights of a model. Its features, loss, precision and scaling are kept, and for numbers mean and "
    "deviation of its targets; the other options are those of this run, and the learning rate is found anew.",
)
@click.option(
    "--folds",
    type=click.IntRange(2),
    metavar="K",
    help="Cross-validation: divide the samples into K folds, by --seed, train K models, each without one fold, and "
    "measure each on its fold. No model is written, but with --out one that is trained on all samples afterwards.",
)
@click.option("--device", type=options.device_kind, default="emulator", help="What to train on.")
@options.cluster
@click.option(
    "--launcher",
    type=options.NameFrom("launcher", "p4sgd.host.distributed:LAUNCHERS"),
    show_default="none",
    help="How the processes of this run were started: mpi for `mpiexec -n 4 p4sgd train … --launcher mpi`, where each "
    "process reads its share of the data and has one worker; none for a single process.",
)
@options.config
@click.option(
    "--sparse-workers",
    type=click.IntRange(0),
    default=0,
    show_default=False,
    metavar="N",
    help="How many of the emulator's workers are sparse: the last ones. Of sparse data they get the columns with few "
    "values; see --split.",
)
@options.training
@options.reading
@options.common
def train(folds: int | None, launcher: str | None, output: Output, **choices: Any) -> None:
    """Train a model.

    DATA is a file, the name of a data set that comes with scikit-learn, such as breast_cancer or iris:versicolor
    (these flowers against the rest), or a folder made by p4sgd data prepare. Columns of texts become
    features of 0 and 1, such as sex=male; --missing fills gaps. With --resume, DATA is needed only if the data of the
    checkpoint have moved.

    More than two classes are trained one after another, each against the rest, and so are several targets (several
    --label-column).

    The table has a row for every epoch, or for every class or target. The train loss and accuracy are those on the
    features as the device reads them, with --precision bits; validation and test data are not rounded. In the end the
    intercept of the best model is fitted again, to the unrounded training data, and the model is measured without
    rounding: these are the figures of p4sgd evaluate. The rate is the learning rate used; samples/s is the speed of the
    device, without the time to measure.
    """
    with run_ranks(launcher) as ranks:
        output.silent = ranks.rank > 0  # rank 0 prints it
        if choices["data"] is None and choices["resume"] is None:
            raise click.MissingParameter(param_hint="'DATA'", param_type="argument")
        if not options.is_given("device"):
            choices["device"] = None
        with output.working("getting ready"):
            request = make_request(choices)
        check_same(ranks, {"--folds": str(folds)})
        document = {} if folds is None else run_folds(output, request, folds, ranks)
        if folds is None or request.out is not None:
            if folds is not None:
                output.say("on all samples:")
            run, result = run_training(output, request, ranks)
            finish(output, run, result, document)


@contextlib.contextmanager
def run_ranks(launcher: str | None) -> Iterator[Communicator]:
    """The processes that carry out the running command together.

    A failure that is the same in all of them is reported once. Otherwise every process that fails names its rank; then
    all processes end, with the exit status of the failure.
    """
    from p4sgd.host.distributed import open_communicator

    ranks = open_communicator(launcher)
    if isinstance(ranks, SingleProcess):
        yield ranks
        return
    try:
        yield ranks
    except click.exceptions.Exit:
        raise
    except (Exception, KeyboardInterrupt) as error:
        command = click.get_current_context().command_path
        status, line = describe(error, command)
        if ranks.interrupted:  # where it kept this rank from reaching the call in which all stop
            status = INTERRUPTED
        failures = ranks.fail(line)
        if failures is None or len(set(failures)) > 1:
            command = f"{command}, rank {ranks.rank}"
        if failures is None or failures.index(line) == ranks.rank:
            report(error, command)
        if failures is None:
            ranks.abort(status)
        raise click.exceptions.Exit(status) from error
