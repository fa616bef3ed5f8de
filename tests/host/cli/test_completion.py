"""What a shell gets to complete a command."""

import pytest
from support.command_line import commands, p4sgd

from p4sgd.host.data.builtin import BUILTIN
from p4sgd.host.losses import LOSSES


def completed(line):
    """What may follow a line, as pairs of type and value; its last word is being typed."""
    words = line.split(" ")
    done = p4sgd(_P4SGD_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(pair.split(",", 1)) for pair in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("p4sgd ", list(commands())),
        ("p4sgd ev", ["evaluate"]),
        ("p4sgd data s", ["synth"]),
        ("p4sgd export --to ", ["onnx", "sklearn"]),
        ("p4sgd train --loss ", list(LOSSES)),
        ("p4sgd train digits --epochs 3 --overw", ["--overwrite"]),
        ("p4sgd train --fo", ["--format"]),
        ("p4sgd tune --scaling m", ["minmax", "maxabs"]),
        ("p4sgd train d", [name for name in BUILTIN if name.startswith("d")]),
    ],
)
def test_commands_options_and_names(line, expected):
    assert completed(line) == [("plain", each) for each in expected]


@pytest.mark.parametrize("line", ["p4sgd train ", "p4sgd train x", "p4sgd predict mod", "p4sgd train iris:1 --out m"])
def test_files_are_left_to_the_shell(line):
    assert completed(line) == [("file", line.rpartition(" ")[2])]
