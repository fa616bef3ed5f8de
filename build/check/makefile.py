"""Does the Makefile build what the link configurations and scripts use?"""

import re
from collections.abc import Iterator

from p4sgd.build.check.folder import Folder
from p4sgd.build.check.links import linked
from p4sgd.build.check.report import Problem
from p4sgd.build.fpga.link import SHELLS
from p4sgd.build.fpga.vitis import PLACE

__all__ = ["check_makefile"]

_VARIABLE = re.compile(r"^(\w+) := *(.*)$", re.MULTILINE)

_LINK = re.compile(r"link_(\w+)\.cfg")


def check_makefile(folder: Folder) -> Iterator[Problem]:
    """Its variables name the kernels of every target, the board's shell and its tools, and the script for placement."""
    file = "Makefile"
    shell = SHELLS[folder.manifest["board"]]
    wanted = {"RELEASES": set(shell.releases)}
    if folder.manifest["kind"] == "vivado":
        wanted["KERNELS"] = set(folder.kernels)
    else:
        wanted["DEFAULT_PLATFORM"] = {shell.platform}
        wanted["PLACE_hw"] = {PLACE} & set(folder.files)
        for name in folder.ending(".cfg"):
            if match := _LINK.fullmatch(name):
                wanted[f"KERNELS_{match[1]}"] = set(linked(folder, name).values())
    given = {match[1]: set(match[2].split()) for match in _VARIABLE.finditer(folder.text(file))}
    for name, words in wanted.items():
        if given.get(name, set()) != words:
            yield Problem(file, f"{name} is {_list(given.get(name))}, and should be {_list(words)}")


def _list(words: set[str] | None) -> str:
    return " ".join(sorted(words or ())) or "empty"
