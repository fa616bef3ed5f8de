"""What is to be prepared, as plain data: to notice that it has become something else."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from p4sgd.host.data.blocks import Source
from p4sgd.host.errors import UserError
from p4sgd.host.prepared.options import OPTIONS
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["check_same", "check_unchanged", "describe_job"]


def describe_job(source: Source, options: TrainingOptions, config: WorkerConfig | None, memory: int) -> dict[str, Any]:
    """What is to be done. A file is known again by its place, its size and the time of its last change."""
    reading = dataclasses.asdict(source.options)
    del reading["communicator"]  # not how, but who
    reading["ignore_columns"] = list(reading["ignore_columns"])  # as JSON gives it back
    return {
        "file": _file(source),
        "reading": reading,
        "options": {name: getattr(options, name) for name in OPTIONS},
        "config": None if config is None else dataclasses.asdict(config),
        "memory": memory,
    }


def check_same(begun: Mapping[str, Any], asked: Mapping[str, Any], place: str, *, only_data: bool = False) -> None:
    """Refuse to go on with something else.

    Parameters
    ----------
    begun, asked
        Of `describe_job`.
    place
        The folder, for messages.
    only_data
        So far nothing was done but to read the data, so that the rest may change.

    Raises
    ------
    UserError
        If they differ; the message says in what.
    """
    anew = f"delete {place} to begin anew"
    if begun["file"] != asked["file"]:
        if begun["file"].get("path") != asked["file"].get("path"):
            raise UserError(f"{place}: was begun with {begun['file']['path']}: name that file, or {anew}")
        raise UserError(f"{place}: {asked['file']['path']} has changed since this was begun: {anew}")
    if begun["reading"] != asked["reading"]:
        raise UserError(f"{place}: was begun with another way to read the file: take that, or {anew}")
    if only_data:
        return
    for name, ours in begun["options"].items():
        theirs = asked["options"][name]
        if ours != theirs:
            raise UserError(
                f"{place}: was begun with {name.replace('_', '-')} {ours}, not {theirs}: take that, or {anew}"
            )
    if begun["config"] != asked["config"]:
        raise UserError(f"{place}: was begun with another configuration of the workers: take that, or {anew}")
    if begun["memory"] != asked["memory"]:
        raise UserError(f"{place}: was begun with a memory of {begun['memory']:,} bytes: take that, or {anew}")


def check_unchanged(job: Mapping[str, Any], source: Source) -> None:
    """Refuse a file that was changed while it was read.

    Raises
    ------
    UserError
        Then.
    """
    if _file(source) != job["file"]:
        raise UserError(f"{source.name}: has changed while it was read: let nobody write it, and begin anew")


def _file(source: Source) -> dict[str, Any]:
    if not source.path.exists():  # built in
        return {"path": source.name}
    status = source.path.stat()
    return {"path": str(source.path.resolve()), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
