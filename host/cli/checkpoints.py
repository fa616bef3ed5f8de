"""`--checkpoint` and `--resume`: what a run keeps for those who go on with it, and how they do."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from p4sgd.host.cli.launching import started_alike
from p4sgd.host.cli.output import Output
from p4sgd.host.distributed.communicator import Communicator, broadcast
from p4sgd.host.errors import UserError

if TYPE_CHECKING:
    from p4sgd.host.training import Checkpoint, CheckpointFile

__all__ = ["TrainingRequest", "checkpoint_options", "how_to_go_on", "resume_request"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_ANEW = "or train anew without --resume"


def checkpoint_options(command: _Command) -> _Command:
    """Add ``--checkpoint`` and ``--resume``."""
    resume = click.option(
        "--resume",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Go on from a checkpoint, with its data and options, to the result of a run that never stopped; "
        "--epochs, --out, --device, --cluster and --checkpoint may be others.",
    )
    checkpoint = click.option(
        "--checkpoint",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File to keep the state in after every epoch, for --resume; with --resume that file if not given.",
    )
    return checkpoint(resume(command))


@dataclass(frozen=True)
class TrainingRequest:
    """What a user wants to be trained.

    Parameters
    ----------
    data, test
        Training and test data, as the user names them; data are empty if there is a checkpoint to say them.
    reading
        Arguments of `read_dataset`.
    choices
        Fields of `TrainingOptions`.
    device
        Name of the device.
    out
        Model file, if one is wanted.
    cluster
        Cluster file, for the device that it describes.
    """

    data: str
    test: str | None
    reading: Mapping[str, Any]
    choices: Mapping[str, Any]
    device: str
    out: Path | None
    cluster: Path | None = None

    def origin(self) -> dict[str, Any]:
        """What a checkpoint has to know beyond options and configuration, as plain data."""
        fields = {name: value for name, value in vars(self).items() if name != "choices"}
        return fields | {name: None if fields[name] is None else str(fields[name]) for name in ("out", "cluster")}


def resume_request(
    saved: "Checkpoint", asked: TrainingRequest, config: str | None, ranks: Communicator
) -> TrainingRequest:
    """The job of a checkpoint, with what the user has given anew.

    Parameters
    ----------
    saved
        The checkpoint.
    asked, config
        The parameters of the running command; what it was not given does not count.
    ranks
        Processes that go on together; the first knows whether there is a model.

    Raises
    ------
    UserError
        If the user has given something else than the run began with, or if nothing is left to do.
    """
    from p4sgd.hw.spec.config import PRESETS

    context = click.get_current_context()
    given = {name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    origin, options = saved.origin, saved.run.options.to_json()
    for param in context.command.params:
        name = param.name or ""
        if name in given & set(options) - {"epochs"} and asked.choices[name] != options[name]:
            ours, theirs = _words(param, options[name]), _words(param, asked.choices[name])
            raise UserError(f"{saved.path}: this run began {ours}, not {theirs}: leave that out, {_ANEW}")
    if config is not None and PRESETS[config]() != saved.run.config:
        raise UserError(
            f"{saved.path}: the workers of this run have another configuration than {config}: leave --config out, "
            f"{_ANEW}"
        )
    epochs = asked.choices["epochs"] if "epochs" in given else options["epochs"]
    out = asked.out if "out" in given or origin.get("out") is None else Path(origin["out"])
    cluster = asked.cluster if "cluster" in given or origin.get("cluster") is None else Path(origin["cluster"])
    missing = broadcast(ranks, out is not None and not out.exists())
    _check_unfinished(saved, epochs, wanted=missing or (out is not None and "out" in given))
    return TrainingRequest(
        data=asked.data or _find(saved, "data"),
        test=asked.test or (None if saved.run.test is None else _find(saved, "test")),
        reading={
            name: value if name in given else origin.get("reading", {}).get(name, value)
            for name, value in asked.reading.items()
        },
        choices=options | {"epochs": epochs},
        device=asked.device if "device" in given else origin.get("device", asked.device),
        out=out,
        cluster=cluster,
    )


def how_to_go_on(file: "CheckpointFile", output: Output) -> str:
    """What to tell a user whose run has stopped; of `mpiexec` only how many processes it had started."""
    command = ["p4sgd", "train", "--resume", str(file.path)]
    command += [word for word, told in (("--json", output.as_json), ("--quiet", output.quiet)) if told]
    return f"{file.path} goes up to epoch {file.epoch}; to go on from there: {shlex.join(started_alike(command))}"


def _words(param: click.Parameter, value: Any) -> str:
    """An option with its value, as the user has it on the command line."""
    option = max(param.opts, key=len)
    if isinstance(param, click.Option) and param.is_flag:
        return f"with {option if value else param.secondary_opts[0]}"
    return f"without {option}" if value is None else f"with {option} {value}"


def _check_unfinished(saved: "Checkpoint", epochs: int, *, wanted: bool) -> None:
    """Refuse a run that has ended, unless its model is wanted, which may not have been written any more."""
    done = saved.state.epoch
    if epochs < done:
        raise UserError(f"{saved.path}: {done} epochs are done, --epochs {epochs} is less: give a larger number")
    if wanted:
        return
    options = dataclasses.replace(saved.run.options, epochs=epochs)
    if saved.state.out_of_patience(options):
        raise UserError(
            f"{saved.path}: this run stopped early after epoch {done}, nothing is left to do: --out MODEL writes the "
            f"model; for more epochs train anew with more than --patience {options.patience}"
        )
    if epochs == done:
        raise UserError(
            f"{saved.path}: all {done} epochs are done, nothing is left to do: --epochs with a larger number trains "
            f"on, --out MODEL writes the model"
        )


def _find(saved: "Checkpoint", what: str) -> str:
    """The name of a checkpoint's data, if they are still there."""
    from p4sgd.host.data.read import is_builtin

    name = saved.origin.get(what)
    option = "DATA" if what == "data" else f"--{what} DATA"
    if name is None or not (is_builtin(name) or Path(name).exists()):
        where = "it does not say where its data are" if name is None else f"its data {name} are not there"
        raise UserError(f"{saved.path}: {where}: name them: p4sgd train --resume {saved.path} {option}")
    return str(name)
