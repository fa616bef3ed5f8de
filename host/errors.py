"""Failures that P4SGD tells its user in one line.

The two failures that P4SGD tells its user in one line.

What may be too long for a message, cut short.
"""

from collections.abc import Sequence

__all__ = ["P4sgdError", "UserError", "listed", "shortened"]


class UserError(Exception):
    """Something the user can put right: input, an option, a file.

    The message is one line that names the file, line or option and says what to do. The command line prints it without
    a traceback and exits with status 2.
    """


class P4sgdError(Exception):
    """A failure that is not the user's: a device, a tool, the machine. The command line exits with status 1."""


_CHARACTERS = 30


def listed(texts: Sequence[str], most: int) -> str:
    """The first of some texts, ``most`` of them, with dots if there are more."""
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")


def shortened(text: str) -> str:
    """The beginning of a text in quotes, with dots if there is more."""
    return repr(text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…")
