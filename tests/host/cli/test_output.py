"""What commands print: tables that fit a terminal, progress on a terminal only, and what --quiet leaves out."""

import io
import logging
import time

import pytest
from click.testing import CliRunner
from rich.console import Console

from p4sgd.host import training
from p4sgd.host.cli.app import main
from p4sgd.host.cli.output import COLUMNS, EpochTable, Output
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
    done = CliRunner().invoke(main, ["train", "iris:1", "--quiet"])
    assert done.stderr.splitlines() == [
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
TUNED = {
    "": "*→",
    "bits": "8",
    "batch": 1024,
    "L2": "0.0001",
    "accuracy": "98.25%",
    "±": "1.23%",
    "board ms": "0.00123",
}
ROWS = {"class": "8", "epochs": "10", "best epoch": "7", **dict.fromkeys(METRICS, "98.76%"), "first rate": "22.12"}
SPARE = ("first rate", "epochs", "best epoch")


@pytest.mark.parametrize(
    ("row", "width", "left_out"),
    [(TUNED, 60, ()), (TUNED, 80, ()), (ROWS, 200, ()), (ROWS, 80, ()), (ROWS, 60, SPARE[:2])],
)
def test_a_table_without_room_leaves_out_columns_instead_of_digits(row, width, left_out):
    lines = shown_at(width, lambda output: output.table(list(row), [row.values()], spare=SPARE))
    kept = [f"{cell:,}" if isinstance(cell, int) else cell for title, cell in row.items() if title not in left_out]
    assert kept in [line.split() for line in lines]


@pytest.mark.parametrize(("width", "speed", "heads"), [(80, 1e6, 2), (80, 1e18, 2), (200, 1e6, 1)])
def test_the_table_of_epochs_has_all_numbers_at_80_columns(width, speed, heads):
    """Where there is no room at all, all but the speed."""
    columns = [name for name in COLUMNS if "r2" not in name and "d2" not in name]
    row = dict.fromkeys(columns, 0.12345678) | {"epoch": 1000, "learning_rate": 0.01234, "samples_per_second": speed}

    def show(output):
        table = EpochTable(output, 1)
        table.add(row)
        table.print()

    lines = shown_at(width, show)
    first = next(number for number, line in enumerate(lines) if "train" in line)
    numbers = ["1,000", *["0.1235", "12.35%"] * 3, "0.01234", *([f"{speed:,.0f}"] if speed < 1e9 else [])]
    assert lines[first + heads + 1].split() == numbers


def test_sentences_are_broken_between_words_and_commands_are_not():
    text = "word " * 30
    assert {word for line in shown_at(60, lambda output: output.say(text)) for word in line.split()} == {"word"}
    assert len(shown_at(200, lambda output: output.say(text, whole=True))) == 1
