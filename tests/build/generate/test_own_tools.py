"""Tools that people have read a top of their own around the generated Verilog, and its files, without a warning."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.own_top import own_top
from support.yosys import run_yosys

from p4sgd.sim.verilator import environment, lint


@pytest.fixture
def files(generated, tmp_path):
    """The top, and the generated files."""
    path = tmp_path / "own.v"
    path.write_text(own_top(generated))
    return [path, *(generated / name for name in (generated / "files.f").read_text().split())]


def test_the_top_connects_every_port(generated, files):
    """A port that a template forgets, or that there is not, is a warning or an error of each tool below."""
    for top in ("p4sgd_worker", "p4sgd_aggregator"):
        text = (generated / f"{top}.v").read_text()
        header = text[text.index(f"module {top}(") :].partition(";")[0]
        ports = {name.strip() for name in header.partition("(")[2].rstrip(")").split(",")}
        short = top.removeprefix("p4sgd_")
        own = files[0].read_text()
        assert {port for port in ports if f"({short}_{port})" in own or f".{port}({port})" in own} == ports


@pytest.mark.rtl
def test_verilator(generated, files):
    assert lint([generated / "p4sgd.vlt", *files], "own") == ""


@pytest.mark.slow
@pytest.mark.rtl
def test_the_command_of_the_readme_says_nothing(generated):
    (command,) = re.findall(r"`verilator (.*?)`", (generated / "README.md").read_text())
    done = subprocess.run(
        [sys.executable, "-P", "-m", "verilator", "--quiet", *command.split()],
        cwd=generated,
        env=os.environ | environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.slow
def test_icarus_by_the_command_of_the_readme(generated, tmp_path):
    if not shutil.which("iverilog"):
        pytest.skip("needs iverilog")
    (command,) = re.findall(r"`(iverilog .*?)`", (generated / "README.md").read_text())
    command = command.replace("worker.vvp", str(tmp_path / "worker.vvp"))
    done = subprocess.run(command.split(), cwd=generated, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.slow
def test_yosys(files, tmp_path):
    for path in files[1:]:  # yowasp's yosys has a /tmp of its own
        shutil.copy(path, tmp_path)
    read = " ".join(path.name for path in files)
    run_yosys(f"read_verilog {read}; hierarchy -check -top own; proc; check -assert", tmp_path)


@pytest.mark.slow
def test_slang(files):
    pyslang = pytest.importorskip("pyslang", reason="pyslang is missing: pip install pyslang")
    driver = pyslang.driver.Driver()
    driver.addStandardArgs()
    words = " ".join(["slang", "--top", "own", *map(str, files)])
    assert driver.parseCommandLine(words, pyslang.driver.CommandLineOptions())
    assert driver.processOptions()
    assert driver.parseAllSources()
    driver.reportCompilation(driver.createCompilation(), True)
    assert (driver.diagEngine.numErrors, driver.diagEngine.numWarnings) == (0, 0)


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize("target", ["lint_worker", "lint_aggregator"])
def test_fusesoc(generated, tmp_path, target):
    program = Path(sys.executable).with_name("fusesoc")
    if not program.exists():
        pytest.skip("needs fusesoc")
    shutil.copytree(generated, tmp_path / "core")
    command = [program, "--cores-root", "core", "run", "--work-root", "lint", "--target", target, "p4sgd.org:glm:p4sgd"]
    homes = {f"XDG_{name}_HOME": str(tmp_path) for name in ("CONFIG", "CACHE", "DATA")}
    env = os.environ | environment() | homes
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "%Warning" not in done.stdout + done.stderr
