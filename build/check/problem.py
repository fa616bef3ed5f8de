"""Findings of checks, and why a check cannot be made."""

from typing import NamedTuple


class NoToolError(RuntimeError):
    """A check needs a program, or a release of p4sgd, that is not installed; the message names it."""


class Problem(NamedTuple):
    """Something wrong with a file of a folder."""

    file: str
    text: str
    line: int | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file}{line}: {self.text}"
