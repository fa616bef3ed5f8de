"""The request for a training run, completed from the checkpoint that it resumes or the model that it starts from."""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p4sgd.host.data import Dataset, FeatureSpace
from p4sgd.host.data.builtin import is_builtin
from p4sgd.host.devices import CLUSTER
from p4sgd.host.distributed.communicator import Communicator, broadcast
from p4sgd.host.errors import UserError, flag, option
from p4sgd.host.training.checkpoint import Checkpoint, has_ended, load_checkpoint
from p4sgd.host.training.class_weights import class_weights_of, spell_class_weight
from p4sgd.host.training.model_file import load_model
from p4sgd.host.training.options import Fact, options_with
from p4sgd.host.training.start import Start


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """A request for a training run. What is left out has a default, or comes from the checkpoint that is resumed.

    Parameters
    ----------
    data, test
        Training and test data: a file, the name of a built-in data set, or (``data`` only) a prepared folder, or the
        data themselves.
    samples
        Train on so many samples, the first ones; ``None`` for all.
    reading, options
        Arguments of `read_dataset`, and fields of `TrainingOptions`, that the user has given.
    device, device_options
        Name of the device, ``None`` is the emulator; further arguments for it.
    config, sparse_workers
        The workers' configuration, a name or a file, ``None`` takes the checkpoint's, the prepared folder's or the
        device's; and how many of the emulator's workers are sparse, the last ones.
    settings
        Sizes of the configuration to change, such as ``slots=16``.
    out, overwrite
        Model file to write, and whether it may replace a model, and the checkpoint of the same run that has ended. A
        run that is resumed may replace its own in any case.
    checkpoint, resume
        File that keeps the state after every epoch; checkpoint to resume.
    init, start
        Model file whose weights training starts from, without checkpoints; or what it starts from otherwise.
    report, trace
        HTML file to write in the end; whether a simulated device gives its trace to `Events.trace`, as for a report.
    options_file
        File that the options were read from, which must not be overwritten.
    """

    data: str | Dataset | None = None
    test: str | None = None
    samples: int | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    device_options: Mapping[str, Any] = field(default_factory=dict)
    cluster: Path | None = None
    config: str | None = None
    settings: tuple[str, ...] = ()
    sparse_workers: int = 0
    out: Path | None = None
    overwrite: bool = False
    checkpoint: Path | None = None
    resume: Path | None = None
    init: Path | None = None
    start: Start | None = None
    report: Path | None = None
    trace: bool = False
    options_file: Path | None = None

    def __post_init__(self) -> None:
        weights = self.options.get("class_weight")
        if weights is not None:  # in the form of `TrainingOptions`, with which it is compared
            object.__setattr__(self, "options", {**self.options, "class_weight": class_weights_of(weights)})

    @property
    def source(self) -> str | None:
        """The name of the training data, if they are to be read."""
        return None if isinstance(self.data, Dataset) else self.data

    def origin(self) -> dict[str, Any]:
        """What a checkpoint keeps of the request beside options and configuration, as plain data."""
        return {
            "data": self.source,
            "test": self.test,
            "reading": dict(self.reading),
            "device": self.device,
            "out": None if self.out is None else str(self.out),
            "cluster": None if self.cluster is None else str(self.cluster),
            **({} if self.samples is None else {"samples": self.samples}),
            **({} if self.report is None else {"report": str(self.report)}),
        }

    def changed_reading(self, saved: Checkpoint) -> list[str]:
        """The options with which the data are read in another way than those of a checkpoint were."""
        began = saved.origin.get("reading", {})
        given = json.loads(json.dumps(dict(self.reading)))
        return [flag(name) for name, value in given.items() if value not in (None, []) and began.get(name) != value]


def complete(
    request: TrainingRequest, ranks: Communicator
) -> tuple[TrainingRequest, Checkpoint | None, FeatureSpace | None]:
    """A request with what it does not name from the checkpoint that it resumes, or from the model that it starts from;
    that checkpoint, and the features of that model. Raises `UserError` if it contradicts them, if nothing is left to
    do, or if the data are gone."""
    if request.init is not None and request.resume is not None:
        raise UserError(f"--resume goes on from {request.resume}, --init from {request.init}: leave one of them out")
    if request.init is not None and request.checkpoint is not None:
        raise UserError("checkpoints do not keep the model of --init: leave --checkpoint or --init out")
    if request.resume is not None:
        saved = load_checkpoint(request.resume)
        return _resumed(request, saved, ranks), saved, None
    if request.init is None:
        return request, None, None
    model = load_model(request.init)
    start = Start.of_model(model, str(request.init))
    began = {name: getattr(start.options, name) for name in options_with(Fact.FEATURES | Fact.OBJECTIVE)}
    _check_options(request, began, f"{request.init}: this model was trained", "--init")
    return dataclasses.replace(request, options=dict(request.options) | began, start=start), None, model.space


def _resumed(request: TrainingRequest, saved: Checkpoint, ranks: Communicator) -> TrainingRequest:
    origin, began, free = saved.origin, saved.run.options.to_json(), options_with(Fact.RESUMABLE)
    fixed = {name: value for name, value in began.items() if name not in free}
    _check_options(request, fixed, f"{saved.path}: this run began", "--resume")
    changed = {name: value for name, value in request.options.items() if name in free}
    out = _path(request.out, origin.get("out"))
    own = out is not None and origin.get("out") is not None and os.path.realpath(out) == os.path.realpath(origin["out"])
    missing = broadcast(ranks, out is not None and not out.exists())
    wanted = missing or request.out is not None or request.report is not None
    _check_unfinished(saved, changed.get("epochs", began["epochs"]), wanted=wanted)
    device = request.device or origin.get("device")
    if device == CLUSTER or ranks.size > 1:  # the cluster or the launcher says how many workers there are
        del began["workers"]
    reading = {name: value for name, value in request.reading.items() if value not in (None, ())}
    return dataclasses.replace(
        request,
        data=request.data or _find(saved, "data"),
        test=request.test or (None if saved.run.test is None else _find(saved, "test")),
        samples=request.samples if request.samples is not None else origin.get("samples"),
        reading={**origin.get("reading", {}), **reading},
        options=began | changed,
        device=device,
        cluster=_path(request.cluster, origin.get("cluster")),
        out=out,
        overwrite=request.overwrite or own,
        report=_path(request.report, origin.get("report")),
        checkpoint=request.checkpoint or saved.path,
    )


def _check_options(request: TrainingRequest, began: Mapping[str, Any], what: str, remedy: str) -> None:
    def words(name: str, value: Any) -> str:
        if value is None:
            return f"without {option(name)}"
        return f"with {option(name, spell_class_weight(value) if name == 'class_weight' else value)}"

    for name, value in began.items():
        given = request.options.get(name, value)
        if given != value:
            raise UserError(
                f"{what} {words(name, value)}, not {words(name, given)}: leave that out, or train anew without {remedy}"
            )


def _path(given: Path | None, kept: str | None) -> Path | None:
    return Path(kept) if given is None and kept is not None else given


def _check_unfinished(saved: Checkpoint, epochs: int, *, wanted: bool) -> None:
    """Refuse a run that has ended, unless its model is still ``wanted``."""
    done = max(state.epoch for state in saved.states)
    if epochs < done:
        raise UserError(f"{saved.path}: {done} epochs are done, --epochs {epochs} is less: give a larger number")
    options = dataclasses.replace(saved.run.options, epochs=epochs)
    if wanted or not has_ended(saved.states, options):
        return
    what, more = f"all {done} epochs are done", "--epochs with a larger number trains on"
    if any(state.ends_early(options) for state in saved.states):
        what = f"this run stopped early after epoch {done}"
        less = options.patience is None
        bound = f"less than --tolerance {options.tolerance:g}" if less else f"more than --patience {options.patience}"
        more = f"for more epochs train anew with {bound}"
    raise UserError(f"{saved.path}: {what}, nothing is left to do: {more}, --out MODEL writes the model")


def _find(saved: Checkpoint, what: str) -> str:
    name = saved.origin.get(what)
    if name is None or not (is_builtin(name) or Path(name).exists()):
        words = "DATA" if what == "data" else f"--{what} DATA"
        raise UserError(
            f"{saved.path}: its {what} {name} is not there: name it: p4sgd train --resume {saved.path} {words}"
        )
    return str(name)
