"""Options from a TOML file: overridden by the command line, and never silently ignored."""

import json
import re

import click
import pytest
from click.testing import CliRunner

from p4sgd.host.cli import options
from p4sgd.host.cli.app import Application


@click.group(cls=Application)
def program():
    pass


@program.command()
@click.argument("data")
@click.option("--batch", type=click.IntRange(1), default=64)
@click.option("--lr", type=float, default=0.1)
@click.option("--max-epochs", type=int, default=1)
@click.option("--loss", type=click.Choice(["squared", "hinge"]), default="squared")
@click.option("--bias/--no-bias", default=True)
@click.option("--tag", type=click.IntRange(1), multiple=True)
@options.common
def train(output, **values):
    click.echo(json.dumps(values | {"json": output.as_json, "quiet": output.quiet}))


@program.command()
@options.output(file=False)
def info(output):
    pass


@program.group()
def data():
    pass


@data.command()
@click.option("--rows", type=int, required=True)
@options.common
def synth(output, **values):
    click.echo(json.dumps(values))


def run(tmp_path, text, *arguments):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return CliRunner().invoke(program, [*arguments, "--options", str(path)], catch_exceptions=False)


def test_every_kind_of_option(tmp_path):
    text = """[train]
    data = "a.csv"
    batch = 128
    lr = 1e-3
    max-epochs = 7
    loss = "hinge"
    bias = false
    tag = [3, 4]
    json = true
    quiet = true
    """
    expected = {"data": "a.csv", "batch": 128, "lr": 0.001, "max_epochs": 7, "loss": "hinge", "bias": False}
    assert json.loads(run(tmp_path, text, "train").stdout) == expected | {"tag": [3, 4], "json": True, "quiet": True}
    words, option = ["given.csv", "--batch", "8", "--bias"], ["--options", str(tmp_path / "run.toml")]
    for order in (words + option, option + words):  # the command line goes before the file
        values = json.loads(CliRunner().invoke(program, ["train", *order]).stdout)
        assert (values["data"], values["batch"], values["bias"], values["max_epochs"]) == ("given.csv", 8, True, 7)


def test_nested_commands_have_nested_tables(tmp_path):
    done = run(tmp_path, "[train]\nbatch = 1\n[data.synth]\nrows = 5\n", "data", "synth")
    assert json.loads(done.stdout)["rows"] == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[train]\nbatsh = 8", r"\[train\] batsh: unknown option; .*batch, bias, data,"),
        ("[train]\noptions = 'x'", r"\[train\] options: unknown option"),
        ("[train]\nbatch = 0", r"\[train\] batch: 0 .*range x>=1"),
        ("[train]\nbatch = 12.5", r"\[train\] batch: '12\.5' .*not a valid integer"),
        ("[train]\nbatch = true", r"\[train\] batch: .*text or a number, not True"),
        ("[train]\ntag = [1, 0]", r"\[train\] tag: 0 .*range x>=1"),
        ("[train]\ntag = 0", r"\[train\] tag: 0 .*range x>=1"),
        ("[train]\ntag = [[1]]", r"\[train\] tag: .*text or a number, not \[1\]"),
        ("[train]\nbias = 'yes'", r"\[train\] bias: .*true or false, not 'yes'"),
        ("[train]\nloss = 'cubic'", r"\[train\] loss: .*'cubic'.*squared.*hinge"),
        ("[train.deep]\nx = 1", r"\[train\] deep: unknown option"),
        ("[trian]\nbatch = 8", r"unknown table trian; .*\[train\], \[data\]"),
        ("[info]\njson = true\n[train]\n", r"unknown table info; there are \[train\], \[data\]$"),  # reads no file
        ("batch = 8", "unknown key outside a table batch"),
        ("[train]\n[data.sinth]\n", r"unknown table data\.sinth; .*\[data\.synth\]"),
        ("train = 3", r"has no table \[train\]"),
        ("[data.synth]\nrows = 3", r"has no table \[train\]"),
        ("[train]\nbatch = = 8", "not a TOML file"),
        ("[train]\nbatch = 8\nbatch = 9", "not a TOML file"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path, text, says):
    done = run(tmp_path, text, "train", "a.csv")
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"p4sgd train: {tmp_path / 'run.toml'}: ")
    assert re.search(says, line), line
