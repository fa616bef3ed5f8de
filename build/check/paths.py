"""Does the folder work elsewhere?"""

import re
from collections.abc import Iterator

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.report import Problem

__all__ = ["check_paths"]

_ABSOLUTE = re.compile(r"""(?:^|[\s"'={(\[:])(/(?!dev/null\b)[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)""")
"""A path from the root, of two names or more: one alone is a word of some language, such as a taxonomy of IP."""


def check_paths(folder: Folder) -> Iterator[Problem]:
    """No file names a path of the machine that it was made on."""
    for name in folder.ending(""):
        for number, line in enumerate(folder.text(name).splitlines(), 1):
            if match := _ABSOLUTE.search(line):
                yield Problem(name, f"{match[1]} is an absolute path", number)
