"""How the texts of a file write numbers and gaps."""

import itertools
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

from p4sgd.host.errors import UserError, option

MISSING = frozenset(
    {"", "#N/A", "#NA", "-NaN", "-nan", "?", "N/A", "NA", "NULL", "NaN", "None", "n/a", "na", "nan", "null"}
)
"""Texts that mean a missing value."""


def number(text: str | bytes) -> float | None:
    """The number that a text stands for, also NaN or infinite; ``None`` if it is none, such as ``1_0``."""
    underscored = "_" in text if isinstance(text, str) else b"_" in text
    try:
        return None if underscored else float(text)
    except ValueError:
        return None


_MINUS = "\N{MINUS SIGN}"
"""As typesetters write it, and tables of web pages."""

_GROUPS = {" ": "[ \u00a0\u202f]"}
"""Characters that are written for a thousands separator, as a regular expression; others stand for themselves."""


@dataclass(frozen=True)
class Notation:
    """How the texts of a file write gaps and numbers.

    ``missing`` are the texts that mean a missing value, ``decimal`` is the character before the decimals, and
    ``thousands`` the one between groups of digits, empty if there is none: groups of two or three, the last of three.
    The first one does not begin with 0: 0,126 is no 126.
    Raises `UserError` if these are no such characters.
    """

    missing: frozenset[str] = MISSING
    decimal: str = "."
    thousands: str = ""

    DECIMAL: ClassVar = (".", ",")
    THOUSANDS: ClassVar = (",", ".", " ", "'", "_")

    def __post_init__(self) -> None:
        for name, value, known in (
            ("decimal", self.decimal, self.DECIMAL),
            ("thousands", self.thousands or None, (None, *self.THOUSANDS)),
        ):
            if value not in known:
                raise UserError(f"must be one of {' '.join(map(repr, filter(None, known)))}, not {value!r}", field=name)
        if self.decimal == self.thousands:
            raise UserError(f"is {self.decimal!r}, and so is {option('thousands')}: choose others", field="decimal")

    @cached_property
    def plain(self) -> bool:
        """Whether numbers are written as Python writes them."""
        return self.decimal == "." and not self.thousands

    @cached_property
    def group(self) -> str:
        """A regular expression for the character between groups of digits."""
        return _GROUPS.get(self.thousands, re.escape(self.thousands))

    @cached_property
    def pattern(self) -> str:
        """A regular expression for finite numbers."""
        whole = rf"(\d+|[1-9]\d{{0,2}}({self.group}\d{{2,3}})*{self.group}\d{{3}})" if self.thousands else r"\d+"
        point = re.escape(self.decimal)
        return rf"^[+{_MINUS}-]?({whole}({point}\d*)?|{point}\d+)([eE][+-]?\d+)?$"

    def without(self, texts: Set[str]) -> Self:
        """One in which these texts mean no missing value."""
        return replace(self, missing=self.missing - texts) if self.missing & texts else self

    def number(self, text: str) -> float | None:
        """The number that a text stands for, also NaN or infinite; ``None`` if it is none."""
        text = text.replace(_MINUS, "-")
        if self.plain or not any(map(str.isdigit, text)):
            return number(text)
        text = text.strip()
        return float(self.respelled(text)) if re.match(self.pattern, text, re.ASCII) else None

    def respelled(self, text: str) -> str:
        """A number as Python writes it."""
        text = text.replace(_MINUS, "-")
        return (re.sub(self.group, "", text) if self.thousands else text).replace(self.decimal, ".")

    def respell_labels(self, texts: Iterable[str]) -> list[str]:
        """Texts of which those that are numbers are as Python writes them, and gaps are empty."""
        kept = ("" if text.strip() in self.missing else text for text in texts)
        return [text if self.number(text) is None else self.respelled(text.strip()) for text in kept]


PLAIN = Notation()

TYPED = Notation(missing=frozenset())
"""That of a format with types, where a text stands for itself."""


_DIGITS = rf"[+{_MINUS}-]?[.,]?\d[\d.,' _\u00a0\u202f]*"
_LIKE_NUMBERS = re.compile(rf"\s*{_DIGITS}([eE][+-]?\d+)?\s*")
_UNIT = r"([%‰°$€£¥₹]|EUR|USD|GBP|CHF)"
_WITH_UNIT = re.compile(rf"\s*(-?{_UNIT}\s?{_DIGITS}|{_DIGITS}{_UNIT})\s*")


def has_unit(text: str) -> bool:
    """Whether a text is a number with a percent sign or a currency, which no notation reads."""
    return _WITH_UNIT.fullmatch(text) is not None


def other_notations(text: str, notation: Notation = PLAIN) -> dict[float, str]:
    """Numbers that a text, which is none, may stand for in another notation, with the options that say so."""
    found: dict[float, str] = {}
    if not _LIKE_NUMBERS.fullmatch(text):
        return found
    for decimal, thousands in itertools.product(Notation.DECIMAL, ("", *Notation.THOUSANDS)):
        if decimal != thousands and (value := Notation(frozenset(), decimal, thousands).number(text)) is not None:
            chosen = [("decimal", decimal)] if (decimal, notation.decimal) != (".", ".") else []
            chosen += [("thousands", thousands)] if thousands else []
            spelt = (option(name, f'"{each}"' if each in " '" else each) for name, each in chosen)
            found.setdefault(value, " ".join(spelt))
    return found


def ways_to_read(text: str, notation: Notation = PLAIN) -> str:
    """The advice of `other_notations`, empty if there is none."""
    ways = (f"{options} if it is {value:.15g}" for value, options in other_notations(text, notation).items())
    return " or ".join(ways)
