"""How a table was read, which a model remembers to read other tables alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from p4sgd.host.data.sample_numbers import ROLES

SAID = ("file_format", "header", "delimiter", "encoding")
"""Options of reading that a model remembers as the user has said them."""


class TableColumn(NamedTuple):
    """A column of a table: its ``number`` from 1 and its ``header``, empty if there is none."""

    number: int
    header: str = ""


@dataclass(frozen=True)
class TableReading:
    """The columns of a table that are no features, and how its texts are written.

    Parameters
    ----------
    count
        All columns, features included.
    labels, ignored
        The columns of labels, and those that were left out.
    weight, offset, exposure
        The columns of such numbers of samples, by their roles (`p4sgd.host.data.sample_numbers`).
    decimal, thousands, missing_values
        As in `p4sgd.host.data.columns.ReadOptions`.
    file_format, header, delimiter, encoding
        What the user has said of the file, not what was found in it.
    """

    count: int
    labels: tuple[TableColumn, ...] = ()
    weight: TableColumn | None = None
    ignored: tuple[TableColumn, ...] = ()
    decimal: str = "."
    thousands: str = ""
    missing_values: tuple[str, ...] = ()
    offset: TableColumn | None = None
    exposure: TableColumn | None = None
    file_format: str | None = None
    header: bool | None = None
    delimiter: str | None = None
    encoding: str | None = None

    @property
    def beside(self) -> dict[str, TableColumn]:
        """The columns of numbers of samples by role."""
        return {role: column for role in ROLES if (column := getattr(self, role)) is not None}

    @property
    def apart(self) -> tuple[TableColumn, ...]:
        """All these columns."""
        return (*self.labels, *self.ignored, *self.beside.values())

    def find(self, column: TableColumn, headers: Sequence[str], count: int) -> int | None:
        """Index of a column in a table with these headers, or with so many columns; ``None`` if it is not there.

        It is the one with its header, where this tells one column; where either table has no headers, or several
        columns have it, it is the one with its number in a table of as many columns.
        """
        if headers and column.header and headers.count(column.header) < 2:
            return headers.index(column.header) if column.header in headers else None
        place = column.number - 1
        same = not (headers and column.header) or tuple(headers[place : place + 1]) == (column.header,)
        return place if same and count == self.count else None

    @property
    def label_ranks(self) -> list[int]:
        """Indices of the labels among those columns that are labels or features."""
        others = [each.number for each in self.apart if each not in self.labels]
        return [label.number - 1 - sum(number < label.number for number in others) for label in self.labels]

    def describe(self) -> dict[str, str]:
        """The columns by what they are, for people."""
        beside = {f"{role} column": (column,) for role, column in self.beside.items()}
        roles = {"label column": self.labels, **beside, "ignored columns": self.ignored}
        described = {
            role: ", ".join(column.header or str(column.number) for column in columns)
            for role, columns in roles.items()
        }
        described["decimal"] = self.decimal if self.decimal != "." else ""
        described |= {"thousands": self.thousands, "missing values": ", ".join(self.missing_values)}
        described |= {
            "format": self.file_format or "",
            "delimiter": self.delimiter or "",
            "encoding": self.encoding or "",
        }
        described["header"] = "" if self.header is None else "yes" if self.header else "no"
        return {what: text for what, text in described.items() if text}

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
