"""Folders for AMD's tools: with planted faults, without any by `p4sgd build check`, and stand-ins for those tools."""

import importlib.util
import os
import shutil

import pytest

from p4sgd.build.check.check import CHECKS, check
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


def check_right(path, *left_out):
    """The checks of a folder, but for those left out, find nothing; returns why some were skipped."""
    report = check(open_folder(path), {name: CHECKS[name] for name in CHECKS if name not in left_out})
    assert not report.problems, "\n".join(map(str, report.problems))
    return report.skipped


def programs(folder, monkeypatch, **scripts):
    """Put shell scripts on the path, as programs of these names in a new folder."""
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
