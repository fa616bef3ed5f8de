"""Signals that end a program in good order."""

import contextlib
import os
import select
import signal
import sys
from types import FrameType
from typing import TextIO


def ending_signals() -> list[signal.Signals]:
    """SIGINT (Ctrl-C), SIGTERM, and SIGHUP, as which a terminal tells that it is closed, unless nohup has the process
    ignore that."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, as Ctrl-C does; output to a terminal that is closed is discarded from then on."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is no file, or closed
            poll = select.poll()
            poll.register(stream, 0)
            if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
                discard(stream)
    raise KeyboardInterrupt


def discard(stream: TextIO) -> None:
    """Discard what is written to the file of a stream from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
