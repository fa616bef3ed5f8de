"""What a check finds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["NoToolError", "Problem", "Report"]


class NoToolError(RuntimeError):
    """A check needs a program that this machine lacks; the message says which, and what to install."""


class Problem(NamedTuple):
    """Something wrong with a file of a folder."""

    file: str
    text: str
    """What is wrong, and where in the file if there are no lines to count."""
    line: int | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.text}"


@dataclass
class Report:
    """What a folder's checks found.

    Attributes
    ----------
    problems
        What is wrong, in the order of the checks.
    done
        Names of the checks made.
    skipped
        Why a check was not made, by its name.
    """

    problems: list[Problem] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, check: str, problems: Iterable[Problem]) -> None:
        """Note that a check was made, and what it found."""
        self.problems += problems
        self.done.append(check)
