"""Files that a command is to write, looked at before the work is done."""

import os
from pathlib import Path

from p4sgd.host.errors import UserError

__all__ = ["check_new_file"]


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
