"""What commands print: tables that fit a terminal, progress on a terminal only, and what --quiet leaves out."""

import io
import logging
import time

import pytest
from rich.console import Console
from support.command_line import run

from p4sgd.host import training
from p4sgd.host.cli.output import Output
from p4sgd.host.errors import P4sgdError


@pytest.mark.parametrize("is_terminal", [True, False])
def test_steps_of_a_build_are_shown_on_a_terminal_only(is_terminal):
    shown, output = io.StringIO(), Output()
    output.remarks = Console(file=shown, force_terminal=is_terminal, width=80)
    logger = logging.getLogger("p4sgd.sim.verilator")
    with output.working("preparing"):
        logger.info("file %d of %d", 3, 7)
        end = time.monotonic() + (10 if is_terminal else 0)
        while "file 3" not in shown.getvalue() and time.monotonic() < end:  # it is redrawn some times a second
            time.sleep(0.02)
    assert ("preparing: file 3 of 7" in shown.getvalue()) == is_terminal
    assert not logger.isEnabledFor(logging.INFO), "only as long as it is shown"


@pytest.mark.parametrize("silenced", [{}, {"quiet": True}, {"silent": True}, {"as_json": True}], ids=str)
def test_compilation_is_a_remark_of_the_running_command(silenced, capsys):
    Output()
    Output(**silenced)
    logging.getLogger("p4sgd.sim.compiled").info("compiling the loops")
    remark = "" if silenced.keys() & {"quiet", "silent"} else "compiling the loops\n"
    assert capsys.readouterr() == ("", remark)


def test_quiet_leaves_out_remarks_and_no_warnings(monkeypatch):
    def train(*_, events, **__):
        events.remark("the features are scaled")
        events.warning("epoch 2 is trained by 1 worker instead of 2")
        raise P4sgdError("it ends here")

    monkeypatch.setattr(training, "train", train)
    assert run("train", "iris:1", "--quiet", status=1).stderr.splitlines() == [
        "warning: epoch 2 is trained by 1 worker instead of 2",
        "p4sgd train: it ends here",
    ]


def shown_at(width, show):
    """The lines of what a function shows on a terminal of so many columns."""
    shown, output = io.StringIO(), Output()
    output.results = Console(file=shown, force_terminal=True, width=width, color_system=None, soft_wrap=True)
    show(output)
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in shown.getvalue()
    return lines


METRICS = [f"{each} {name}" for each in ("train", "validation", "test") for name in ("loss", "accuracy")]
ROWS = {"class": "8", "epochs": "10", "best epoch": "7", **dict.fromkeys(METRICS, "98.76%"), "first rate": "22.12"}
SPARE = ("first rate", "epochs", "best epoch")


@pytest.mark.parametrize(("width", "left_out"), [(200, ()), (80, ()), (60, SPARE[:2])])
def test_a_table_without_room_leaves_out_columns_instead_of_digits(width, left_out):
    lines = shown_at(width, lambda output: output.table(list(ROWS), [ROWS.values()], spare=SPARE))
    assert [cell for title, cell in ROWS.items() if title not in left_out] in [line.split() for line in lines]


def test_cells_and_sentences():
    """Sentences are broken between words, commands are not."""
    cells = [["a", 12345, None, True], ["b", 0.5, "x", False]]
    lines = shown_at(60, lambda output: output.table(["", "n", "text", "is"], cells))
    assert [line.split() for line in lines[3:5]] == [["a", "12,345", "yes"], ["b", "0.5", "x", "no"]]
    text = "word " * 30
    assert {word for line in shown_at(60, lambda output: output.say(text)) for word in line.split()} == {"word"}
    assert len(shown_at(200, lambda output: output.say(text, whole=True))) == 1
