"""Preparation of a data set in a folder, resumed if it was interrupted.

All work is done in a folder beside the final one and is renamed when it is complete. Each step saves a state from which
the next attempt continues; see `p4sgd.host.streaming.steps` and `p4sgd.host.streaming.state`.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p4sgd.host.data.read import Source
from p4sgd.host.errors import P4sgdError, UserError
from p4sgd.host.files import new_file, write_error
from p4sgd.host.streaming.buckets import sync_folder
from p4sgd.host.streaming.manifest import MANIFEST, Manifest, load_manifest
from p4sgd.host.streaming.pack import COUNTED
from p4sgd.host.streaming.state import (
    STATE,
    Attempt,
    OnProgress,
    State,
    Step,
    check_same,
    describe_request,
    has_changed,
    load_state,
)
from p4sgd.host.streaming.steps import ROWS, SOURCE_LABELS, SOURCE_WEIGHTS, Steps
from p4sgd.host.training.options import TrainingOptions
from p4sgd.hw.spec.config import WorkerConfig

__all__ = ["make_folder", "unfinished_folder"]


_REQUEST = "job.json"
"""What the folder is prepared from and how; see `describe_request`."""


def unfinished_folder(folder: Path) -> Path:
    """Where a folder is prepared before it is renamed."""
    return folder.with_name(f"{folder.name}.unfinished")


def make_folder(
    source: Source,
    options: TrainingOptions,
    config: WorkerConfig | None,
    folder: Path,
    *,
    memory: int = 1 << 30,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Prepare a data set for training, in bounded memory.

    Resumes an earlier attempt that was interrupted for any reason.

    Parameters
    ----------
    source
        The data.
    options
        Training options; those named in `p4sgd.host.streaming.OPTIONS` matter.
    config
        Configuration of the workers; ``None`` for the one that suits the data: sparse workers or u280.
    folder
        The folder to make. If it exists, it must be the result of the same call.
    memory
        Approximate limit for the memory of the process, in bytes.
    on_progress
        Called repeatedly during the work.

    Returns
    -------
    The manifest. The images are those of `p4sgd.host.image.prepare_images`, byte for byte.

    Raises
    ------
    UserError
        If data, options and configuration do not suit each other, if the file cannot be read or the folder cannot be
        written, or if the folder was begun with other data or options.
    P4sgdError
        If another process is preparing this folder.
    """
    request = describe_request(source, options, config, memory)
    if folder.exists():
        return _finished(folder, request)
    work = unfinished_folder(folder)
    try:
        with _locked(work):
            if folder.exists():  # another process was faster
                work.rmdir()
                return _finished(folder, request)
            with _resumable(work):
                state, told = _begin(work, request), on_progress or _no_progress
                Steps(Attempt(source, options, config, work, memory, request, state, told)).run()
                os.rename(work, folder)
                sync_folder(folder.parent)
            _delete_scratch(folder)
            return load_manifest(folder)[0]
    except OSError as error:
        raise write_error(work, error) from error


def _no_progress(step: Step, done: int, total: int) -> None:
    """No progress to show."""


@contextlib.contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Make a folder if there is none, and lock it against other processes."""
    if (
        work.exists()
        and not (work / _REQUEST).exists()
        and any(not each.name.startswith(".") for each in work.iterdir())
    ):
        raise UserError(f"{work}: is there already and is no unfinished preparation: delete it or choose another name")
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
def _resumable(work: Path) -> Iterator[None]:
    """Tell the user after an interruption how to resume; delete the folder if nothing was done.

    A refusal of the data or of the options leaves nothing behind, either, unless an earlier attempt has begun.
    """
    begun = (work / STATE).exists()
    try:
        yield
    except BaseException as error:
        told = write_error(work, error) if isinstance(error, OSError) else error
        interrupted = isinstance(error, OSError | MemoryError | KeyboardInterrupt)
        interrupted = interrupted or isinstance(error.__cause__, OSError)
        refused = isinstance(error, UserError) and not interrupted
        if not (work / STATE).exists() or (refused and not begun):
            shutil.rmtree(work, ignore_errors=True)
        elif interrupted:
            told.add_note(f"{work} has what was done so far: the same command continues from there")
        if told is error:
            raise
        raise told from error


def _begin(work: Path, request: dict[str, Any]) -> State:
    """Record the request, or refuse a folder that was begun with another one; returns the state so far.

    If the file has changed, nothing of the state is of use. Nor is more than the labels with another limit of the
    memory, because buckets depend on it; who was out of memory or disk must be able to choose another one.
    """
    path = work / _REQUEST
    state = load_state(work) if (work / STATE).exists() else State()
    if state.first_pass is not None:
        begun = json.loads(path.read_bytes())
        if has_changed(begun, request):
            _clear(work)
            state = State()
        else:
            check_same(begun, request, str(work), only_data=state.extremes is None)
            if begun["memory"] != request["memory"] and not (work / MANIFEST).exists():
                state = State(state.first_pass)
                state.save(work)
                shutil.rmtree(work / ROWS, ignore_errors=True)
    if state.extremes is None:
        with new_file(path) as file:
            file.write(json.dumps(request, indent=1).encode())
    return state


def _clear(work: Path) -> None:
    """Delete all but the request: first what would be gone on from, if this is interrupted."""
    for name in (MANIFEST, STATE):
        (work / name).unlink(missing_ok=True)
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _REQUEST:
            path.unlink()


def _finished(folder: Path, request: dict[str, Any]) -> Manifest:
    """The manifest of an existing folder, if that is what was requested."""
    if not (folder / MANIFEST).exists() or not (folder / _REQUEST).exists():
        raise UserError(f"{folder}: is there already: choose another name or delete it")
    manifest, _ = load_manifest(folder, remedy="delete the folder or choose another name")
    check_same(json.loads((folder / _REQUEST).read_bytes()), request, str(folder))
    _delete_scratch(folder)
    return manifest


def _delete_scratch(folder: Path) -> None:
    """Delete files that only the preparation needed."""
    shutil.rmtree(folder / ROWS, ignore_errors=True)
    counted = set(folder.glob(COUNTED.format("*")))
    for path in folder.iterdir():
        if path.name in (STATE, SOURCE_LABELS, SOURCE_WEIGHTS) or path in counted or path.name.startswith("."):
            path.unlink()
