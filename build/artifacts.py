"""Writing a folder of generated files, whole or not at all."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["MANIFEST", "ForeignFolderError", "check_folder", "read_manifest", "write_folder"]

MANIFEST = "manifest.json"
"""File that marks a generated folder: what it was made from, and a checksum of every other file in it."""


class ForeignFolderError(ValueError):
    """The folder to write exists and was not made by this program, so it is left alone."""


def read_manifest(folder: Path) -> dict[str, object] | None:
    """The manifest of a generated folder; None if the folder has none."""
    try:
        found = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "files" in found else None


def write_folder(folder: Path, files: Mapping[str, str], description: Mapping[str, object]) -> list[Path]:
    """Write text files into a folder that appears complete or does not change.

    The files are written next to the folder first and moved into place together. A folder that an earlier call made is
    replaced, and so is an empty one.

    Parameters
    ----------
    folder
        Where; parents are created.
    files
        Text by file name.
    description
        What the manifest says besides the checksums: plain data.

    Returns
    -------
    The paths written, the manifest last.

    Raises
    ------
    ForeignFolderError
        If the folder exists and holds anything that was not generated.
    OSError
        If it cannot be written.
    """
    # A symbolic link stays one: what it points to is replaced, and the scratch folder lies on the same file system.
    folder = folder.resolve()
    check_folder(folder)
    checksums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())}
    manifest = json.dumps({**description, "files": checksums}, indent=2) + "\n"
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    fresh, old = scratch / "new", scratch / "old"
    try:
        fresh.mkdir()
        for name, text in {**files, MANIFEST: manifest}.items():
            with (fresh / name).open("w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    finally:
        # Wherever Ctrl-C came: the old folder goes back before the scratch folder goes, unless the new one is there.
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(scratch, ignore_errors=True)
    return [folder / name for name in (*files, MANIFEST)]


def check_folder(folder: Path) -> None:
    """Refuse to write to a folder with contents that were not generated.

    Raises
    ------
    ForeignFolderError
        If the path is a file, or a folder that holds anything else than an earlier output as it was generated.
    OSError
        If a file in it cannot be read.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ForeignFolderError(f"{folder} is a file: name a folder")
    present = {entry.name for entry in folder.iterdir()}
    if not present:
        return
    manifest = read_manifest(folder)
    known = manifest["files"] if manifest else None
    if not isinstance(known, dict):
        raise ForeignFolderError(f"{folder} is not empty and was not generated: name a new folder")
    strangers = sorted(present - {*known, MANIFEST})
    if strangers:
        raise ForeignFolderError(f"{folder} holds {strangers[0]}, which was not generated: name a new folder")
    for name in sorted(present - {MANIFEST}):
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != known[name]:
            raise ForeignFolderError(f"{folder} holds {name}, which was changed since: name a new folder or delete it")
