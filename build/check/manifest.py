"""Are the files those that were generated?"""

import hashlib
from collections.abc import Iterator

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.report import Problem

__all__ = ["check_manifest"]


def check_manifest(folder: Folder) -> Iterator[Problem]:
    """Every file of the manifest is there as it was written."""
    for name, checksum in folder.manifest["files"].items():
        path = folder.path / name
        if not path.is_file():
            yield Problem(name, "is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
            yield Problem(name, "was changed since it was generated")
