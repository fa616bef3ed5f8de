"""Making a folder of prepared data.

All work is done in a folder beside the one to be, which takes its name when everything is there. Each step leaves a
state behind from which the next attempt goes on; see `p4sgd.host.streaming.steps` and `p4sgd.host.streaming.state`.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from p4sgd.host.data.read import Source
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.files import new_file, write_error
from p4sgd.host.streaming.manifest import MANIFEST, Manifest, load_manifest
from p4sgd.host.streaming.state import STATE, OnProgress, State, Step, check_same, describe_job, load_state
from p4sgd.host.streaming.steps import ROWS, SOURCE_LABELS, Steps, sync_folder
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["make_folder", "unfinished_folder"]


_JOB = "job.json"


def unfinished_folder(folder: Path) -> Path:
    """Where a folder is made."""
    return folder.with_name(f"{folder.name}.unfinished")


def make_folder(
    source: Source,
    options: TrainingOptions,
    config: WorkerConfig | Callable[[int], WorkerConfig],
    folder: Path,
    *,
    memory: int = 1 << 30,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Prepare a data set for training, in bounded memory.

    If this was begun before and did not come to its end, whatever ended it, it goes on from there.

    Parameters
    ----------
    source
        The data.
    options
        Options; those of `p4sgd.host.streaming.manifest.OPTIONS` count.
    config
        Configuration of the workers, or what chooses it for a number of features.
    folder
        The folder to be, which must not be there unless this has made it.
    memory
        Bytes of memory to use, about, at the most.
    on_progress
        Called again and again while the work goes on.

    Returns
    -------
    What is in the folder. The images are those of `p4sgd.host.image.prepare_images`, byte for byte.

    Raises
    ------
    UserError
        If data, options and configuration do not suit each other, if the file cannot be read or the folder be written,
        or if something else was begun in this folder.
    P4sgdError
        If another program is at work on it.
    """
    job = describe_job(source, options, config if isinstance(config, WorkerConfig) else None, memory)
    if folder.exists():
        return _finished(folder, job)
    work = unfinished_folder(folder)
    try:
        with _locked(work):
            if folder.exists():  # another program was faster
                work.rmdir()
                return _finished(folder, job)
            with _going_on(work):
                state = _begin(work, job)
                Steps(source, options, config, work, memory, job, state, on_progress or _nothing).run()
                os.rename(work, folder)
                sync_folder(folder.parent)
            _tidy(folder)
            return load_manifest(folder)[0]
    except OSError as error:
        raise write_error(work, error) from error


def _nothing(step: Step, done: int, total: int) -> None:
    """No progress to show."""


@contextlib.contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Be the only one at work in a folder, which is made if it is not there."""
    if work.exists() and not (work / _JOB).exists() and any(not each.name.startswith(".") for each in work.iterdir()):
        raise UserError(f"{work}: is there already and no unfinished preparation: delete it or choose another name")
    work.mkdir(exist_ok=True)
    handle = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise P4sgdError(f"{work}: another p4sgd is at work here: wait for it, or end it") from None
    else:
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _going_on(work: Path) -> Iterator[None]:
    """Say after an interruption how to go on; if nothing was done, nothing is left."""
    try:
        yield
    except BaseException as error:
        told = write_error(work, error) if isinstance(error, OSError) else error
        if not (work / STATE).exists():
            shutil.rmtree(work, ignore_errors=True)
        elif isinstance(error, OSError | MemoryError | KeyboardInterrupt) or isinstance(error.__cause__, OSError):
            told.add_note(f"{work} has what was done so far: the same command goes on from there")
        if told is error:
            raise
        raise told from error


def _begin(work: Path, job: dict[str, Any]) -> State:
    """Note what is to be done, or refuse a folder where something else was begun; what is done already."""
    path = work / _JOB
    state = load_state(work) if (work / STATE).exists() else State()
    if state.first_pass is not None:
        check_same(json.loads(path.read_bytes()), job, str(work), only_data=state.extremes is None)
    if state.extremes is None:
        with new_file(path) as file:
            file.write(json.dumps(job, indent=1).encode())
    return state


def _finished(folder: Path, job: dict[str, Any]) -> Manifest:
    """A folder that is there already, if it is what was asked for."""
    if not (folder / MANIFEST).exists() or not (folder / _JOB).exists():
        raise UserError(f"{folder}: is there already: choose another name or delete it")
    check_same(json.loads((folder / _JOB).read_bytes()), job, str(folder))
    _tidy(folder)
    return load_manifest(folder)[0]


def _tidy(folder: Path) -> None:
    """Delete what only the making needed."""
    shutil.rmtree(folder / ROWS, ignore_errors=True)
    for path in folder.iterdir():
        if path.name in (STATE, SOURCE_LABELS) or path.name.startswith("."):
            path.unlink()
