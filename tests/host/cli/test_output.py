"""Progress on a terminal."""

import io
import logging
import time

import pytest
from rich.console import Console

from p4sgd.host.cli.output import Output


@pytest.mark.parametrize("is_terminal", [True, False])
def test_steps_of_a_build_are_shown_on_a_terminal_only(is_terminal):
    shown = io.StringIO()
    output = Output()
    output._remarks = Console(file=shown, force_terminal=is_terminal, width=80)
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
