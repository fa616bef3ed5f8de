"""Folders of the demonstrations: complete, the same every time, and nothing in them names a file that is not there."""

import json
import re

import pytest
from click.testing import CliRunner
from support.command_line import p4sgd
from support.shared import make_once
from support.yosys import run_yosys

from p4sgd.build.demos.demonstrations import DEMONSTRATIONS, PROGRAM, generate
from p4sgd.host.cli.app import main
from p4sgd.hw.kernel.verilog import cmac_kernel

COMMAND = "p4sgd build demo heartbeat --out heartbeat"
"""That of three READMEs."""


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Makes a demonstration's folder, once."""
    return lambda name: make_once(tmp_path_factory, name, lambda folder: generate(name, folder))


@pytest.fixture(scope="session", params=DEMONSTRATIONS)
def made(request, folder_of):
    """A demonstration's name and folder."""
    return request.param, folder_of(request.param)


def test_the_command_line_offers_them_all(tmp_path):
    command = main.commands["build"].commands["demo"]
    assert list(command.params[0].type.choices) == list(DEMONSTRATIONS)
    done = CliRunner().invoke(main, ["build", "demo", "heartbeat", "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert sorted(document["files"]) == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert document["next"][0] == "sh build_heartbeat.sh"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    done = CliRunner().invoke(main, ["build", "demo", "heartbeat", "--out", str(tmp_path / "other")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "was not generated: name a new folder" in done.stderr


def test_scripts_name_files_that_are_there(made):
    """From the build script to the Tcl, from there to sources, constraints and the IP."""
    name, folder = made
    assert f"-source {name}.tcl" in (folder / f"build_{name}.sh").read_text()
    script = (folder / f"{name}.tcl").read_text()
    read = re.findall(r'^(?:add_files|read_xdc(?: -ref \w+)?|source) "?([\w.]+)"?$', script, re.MULTILINE)
    made_by_vivado = {f"build_{name}.bat", f"build_{name}.json", f"build_{name}.sh", PROGRAM, "manifest.json"}
    assert {path.name for path in folder.iterdir()} == {*read, f"{name}.tcl", *made_by_vivado}
    assert f"write_bitstream -force -bin_file {name}.bit" in script
    assert f"PROGRAM.FILE {{{name}.bit}}" in (folder / PROGRAM).read_text()


def test_every_file_names_the_command(made):
    name, folder = made
    for path in folder.iterdir():
        assert f"p4sgd build demo {name} --out DIR" in "".join(path.read_text().splitlines(True)[:3]), path.name


@pytest.mark.parametrize("name", ["heartbeat", pytest.param("loopback", marks=pytest.mark.slow)])
def test_nothing_depends_on_place_or_time(name, folder_of, tmp_path, monkeypatch):
    folder = folder_of(name)
    monkeypatch.chdir(tmp_path)
    done = p4sgd(*COMMAND.replace("heartbeat", name).split()[1:], PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / name / path.name).read_bytes(), path.name


def test_the_verilog_is_whole(made):
    """What it does not define are cells of the FPGA and the vendor's IP; yosys reads it, too."""
    name, folder = made
    sources = sorted(path.name for path in folder.glob("*.v"))
    run_yosys(f"read_verilog {' '.join(sources)}; hierarchy -top {name}", folder)
    verilog = "".join((folder / source).read_text() for source in sources)
    defined = set(re.findall(r"^module ([^\s(]+)", verilog, re.MULTILINE))
    used = set(re.findall(r"^  (\\\S+|[A-Za-z_]\w*) (?:#\($|\\?\S+ +\($)", verilog, re.MULTILINE))
    cells = {"IBUF", "IBUFDS", "OBUFT", "BUFG", "FDPE"}
    if name == "loopback":
        cells |= {"BUFGCE_DIV", "p4sgd_cmac_usplus"}
    assert used - defined == cells


def test_the_mac_is_connected_to_cage_and_cards_clock(folder_of):
    text = (folder_of("loopback") / "loopback.v").read_text()
    instance = re.search(r"^  p4sgd_cmac_kernel kernel \(\n(.*?)^  \);", text, re.MULTILINE | re.DOTALL)[1]
    found = dict(re.findall(r"\.(\w+)\(([^()]*)\)", instance))
    assert set(found) == {port.name for port in cmac_kernel().ports}
    assert found["gt_refclk_p"] == "qsfp28_refclk_0__p"
    assert found["gt_refclk_n"] == "qsfp28_refclk_0__n"
    for port, net in (("rxp", "rx__p"), ("rxn", "rx__n"), ("txp", "tx__p"), ("txn", "tx__n")):
        assert found[f"gt_{port}"] == f"qsfp28_0__{net}"
