"""Folders for AMD's tools with planted faults, and what the checks of `p4sgd build check` find in them."""

import importlib.util
import shutil

import pytest

from p4sgd.build.check.check import CHECKS
from p4sgd.build.check.folder import open_folder

NEEDS_TCL = pytest.mark.skipif(
    importlib.util.find_spec("_tkinter") is None and shutil.which("tclsh") is None, reason="needs tkinter or tclsh"
)


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
    return "\n".join(map(str, CHECKS[name].function(open_folder(path))))
