"""Every command that a README shows as runnable is run.

A block fenced as ```sh holds commands for the reader to run, one a line, joined by ``&&`` where they belong together.
The blocks of a README run in order, each ``p4sgd`` command as written, in one empty folder. Set-up commands (``SETUP``)
are the continuous integration's to run. Any other command is an error, so that none goes untested; what is not meant to
be run belongs into another kind of block (```text, ```console, or indented).
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READMES = ["README.md", *(f"{room}/README.md" for room in ("hw", "sim", "host", "build", "tests"))]
SETUP = {"python3", "pip", "pytest", "ruff", "mypy", "apt-get", ".ci/run"}


def commands(text):
    """The ``p4sgd`` commands of a README's sh blocks, as lists of words."""
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for command in line.split("&&"):
                words = shlex.split(command, comments=True)
                if not words:
                    continue
                program = words[0].removeprefix(".venv/bin/")
                if program == "p4sgd":
                    found.append(words[1:])
                else:
                    assert program in SETUP, f"a README shows a command that no test runs: {command.strip()}"
    return found


def cases():
    for name in READMES:
        path = ROOT / name
        found = commands(path.read_text()) if path.exists() else []
        if found:
            simulated = any("rtl" in words or "simulate" in words for words in found)
            yield pytest.param(found, id=name, marks=[pytest.mark.slow] + [pytest.mark.rtl] * simulated)


@pytest.mark.parametrize("found", list(cases()))
def test_commands_work(found, tmp_path):
    program = Path(sys.executable).with_name("p4sgd")
    for words in found:
        command = shlex.join(["p4sgd", *words])
        done = subprocess.run(
            [program, *words],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip() or done.stderr.strip(), f"{command} says nothing"


def test_the_readme_trains_and_tests():
    """The two commands that a newcomer needs are there, each with its own set-up."""
    text = (ROOT / "README.md").read_text()
    assert any(words[0] == "train" for words in commands(text))
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert any("venv" in block and "p4sgd train" in block for block in blocks)
    assert any("venv" in block and "pytest" in block for block in blocks)


def test_commands_are_found():
    text = "```sh\npip install x && .venv/bin/p4sgd train 'a b' \\\n  --loss hinge  # note\np4sgd info\n```\n"
    text += "```text\nrm\n```\n"
    assert commands(text) == [["train", "a b", "--loss", "hinge"], ["info"]]
    with pytest.raises(AssertionError, match="no test runs"):
        commands("```sh\nmake all\n```\n")
