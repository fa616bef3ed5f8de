"""The errors that P4SGD reports in one line, and helpers that keep their messages short."""

from collections.abc import Iterable, Sequence

__all__ = ["P4sgdError", "UserError", "listed", "shortened"]


class UserError(Exception):
    """An error that the user can correct: in the input, an option or a file.

    The message is one line that names the file, line or option and the remedy. The command line prints it without a
    traceback and exits with status 2.
    """


class P4sgdError(Exception):
    """A failure of a device, a tool or the machine. The command line exits with status 1.

    Parameters
    ----------
    message
        One line.
    lost_workers
        Shards of the workers that caused it, if the other workers can go on.
    """

    def __init__(self, message: str = "", *, lost_workers: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.lost_workers = frozenset(lost_workers)


_CHARACTERS = 30
"""Length of a text that `shortened` leaves as it is."""


def listed(texts: Sequence[str], most: int) -> str:
    """The first ``most`` texts, separated by commas, with an ellipsis if there are more."""
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")


def shortened(text: str) -> str:
    """A text in quotes, cut after 30 characters with an ellipsis."""
    return repr(text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…")
