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

from p4sgd.build.generate.verilog import generate
from p4sgd.hw.spec.config import NamedConfig
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


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Folder of another configuration, whose modules have a prefix."""
    folder = tmp_path_factory.mktemp("left")
    generate(NamedConfig.of("tiny"), folder, prefix="left_")
    return folder


def test_all_of_a_folder_tells_of_the_prefix(left):
    assert (left / "files.f").read_text().split() == ["left_p4sgd_worker.v", "left_p4sgd_aggregator.v"]
    readme = (left / "README.md").read_text().partition("\n")[2]
    assert not re.search(r"(?<!left_)p4sgd_(worker|aggregator)(?!_registers)|:p4sgd", readme)
    assert "name: p4sgd.org:glm:left_p4sgd:" in (left / "p4sgd.core").read_text()
    names = re.findall(r"^module +\\?(\w+)", (left / "left_p4sgd_worker.v").read_text(), re.MULTILINE)
    assert {name[: len("left_")] for name in names} == {"left_"}


@pytest.mark.slow
@pytest.mark.rtl
def test_two_configurations_in_one_design(generated, left, tmp_path):
    """Verilator, yosys and Icarus read workers of different sizes at a time."""
    instances = "  own right (.clk(clk), .rst(rst));\n  left_own left (.clk(clk), .rst(rst));\n"
    head = "/* verilator lint_off PINMISSING */\nmodule both(input clk, input rst);\n"
    texts = {"both": f"{head}{instances}endmodule\n", "own": own_top(generated), "left_own": own_top(left, "left_")}
    for name, text in texts.items():
        (tmp_path / f"{name}.v").write_text(text)
    for path in (*generated.glob("*.v"), *left.glob("*.v")):  # yowasp's yosys has a /tmp of its own
        shutil.copy(path, tmp_path)
    sources = sorted(tmp_path.glob("*.v"))
    assert lint([generated / "p4sgd.vlt", *sources], "both") == ""
    names = [path.name for path in sources]
    run_yosys(f"read_verilog {' '.join(names)}; hierarchy -check -top both; proc; check -assert", tmp_path)
    if not shutil.which("iverilog"):
        pytest.skip("needs iverilog")
    command = ["iverilog", "-s", "both", "-o", "both.vvp", *names]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


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
