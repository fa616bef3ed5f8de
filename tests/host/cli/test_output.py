"""What commands print: progress on a terminal only, and what --quiet leaves out."""

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
