"""Checks that the files of a folder for AMD's tools fit each other: names, widths, registers, connections.

They take the place of AMD's tools, which would find such faults after minutes or hours. `CHECKS` has those of
`p4sgd build check` too.
"""

import shutil

from p4sgd.build.fpga import check
from support.vendor_checks.block_design import check_block_design
from support.vendor_checks.folder import open_vendor_folder
from support.vendor_checks.kernels import check_kernels
from support.vendor_checks.scripts import check_scripts

CHECKS = {
    **check.CHECKS,
    "scripts": check_scripts,
    "kernels": check_kernels,
    "block design": check_block_design,
}
"""Checks by name, in their order; that of scripts takes more than the command's."""


def check_all(path):
    """Report of all `CHECKS` of a folder."""
    return check.check(open_vendor_folder(path), CHECKS)


def plant(original, scratch, file, before, after):
    """Copy of a folder in which one text of a file was replaced by another."""
    path = scratch / "out"
    shutil.copytree(original, path)
    text = (path / file).read_text()
    assert before in text
    (path / file).write_text(text.replace(before, after))
    return path


def problems(name, path):
    """What one of the `CHECKS` finds in a folder, a line each."""
    return "\n".join(map(str, CHECKS[name](open_vendor_folder(path))))
