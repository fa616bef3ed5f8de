"""Files that a command is to write, looked at before the work is done."""

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from p4sgd.host.cli.options import options_file
from p4sgd.host.errors import UserError

__all__ = ["check_apart", "check_new_checkpoint", "check_new_file", "check_new_images", "check_new_model"]


def check_new_file(path: Path | None, *, special: bool = False) -> None:
    """Refuse a file that could not be written, before hours of work; ``None`` is no file and fine.

    Parameters
    ----------
    path
        The file to be.
    special
        Whether a pipe or a device, such as ``/dev/stdout``, will do.

    Raises
    ------
    UserError
        If the path is something else than a file, if there is no such folder, or no permission to write there.
    """
    if path is None:
        return
    if path.exists() and not path.is_file():
        if special and not path.is_dir():
            return
        raise UserError(f"{path}: is not a file that could be written")
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise UserError(f"{path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UserError(f"{path}: no permission to write")
    try:
        # Permission is not enough: to the administrator all folders seem to grant it, also /proc.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot write in {folder} ({error.strerror}): choose another folder") from error


def check_new_model(path: Path | None) -> None:
    """`check_new_file` for a model, which takes the place of an older model or an empty file, of nothing else.

    Raises
    ------
    UserError
        As `check_new_file`, or if the path is a file with something else in it.
    """
    from p4sgd.host.model_file import is_model_file

    _check_replaces(path, is_model_file, "model file")


def check_new_checkpoint(path: Path | None) -> None:
    """`check_new_file` for a checkpoint, which takes the place of an older one or an empty file, of nothing else.

    Raises
    ------
    UserError
        As `check_new_file`, or if the path is a file with something else in it.
    """
    from p4sgd.host.training.checkpoint import is_checkpoint_file

    _check_replaces(path, is_checkpoint_file, "checkpoint")


def _check_replaces(path: Path | None, is_one: Callable[[Path], bool], kind: str) -> None:
    check_new_file(path)
    if path is not None and path.exists() and path.stat().st_size and not is_one(path):
        raise UserError(f"{path}: is there already and no {kind} of p4sgd: choose another name or delete it")


def check_new_images(folder: Path | None, workers: int) -> list[Path]:
    """`check_new_file` for the images of all workers, which take the place of older images, of nothing else.

    Returns
    -------
    The files to be; none without a folder.

    Raises
    ------
    UserError
        As `check_new_file`, or if something else is in one of the files.
    """
    from p4sgd.host.image.file import image_file, is_image_file

    files = [] if folder is None else [image_file(folder, worker) for worker in range(workers)]
    for path in files:
        check_new_file(path)
        if path.exists() and path.stat().st_size and not is_image_file(path):
            raise UserError(f"{path}: is there already and no image file of p4sgd: choose another folder or delete it")
    return files


def check_apart(outputs: Iterable[Path | None], inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse to write one file twice, or over a file that is read; the options file always counts as read.

    Parameters
    ----------
    outputs
        Files to be written; ``None`` is none.
    inputs
        What is read: files, names of data sets, ``None``.

    Raises
    ------
    UserError
        If two paths lead to the same file, whatever they are called.
    """
    taken = {_file(Path(source)): "is read" for source in (*inputs, options_file()) if source is not None}
    for path in outputs:
        if path is None or (path.exists() and not path.is_file()):
            continue  # a terminal may be read and written
        if _file(path) in taken:
            raise UserError(f"{path}: {taken[_file(path)]} by this command: choose another name for what it writes")
        taken[_file(path)] = "is written already"


def _file(path: Path) -> object:
    """What two paths to one file have in common: the file if it is there, else the place where it would be."""
    try:
        status = path.stat()
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino
