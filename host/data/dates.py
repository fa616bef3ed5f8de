"""Dates as they stand in files: 2024-03-31, 31.03.2024, 31/03/2024 or 03/31/2024, perhaps with a time of day."""

import datetime
import re

ORDERS = ("ymd", "dmy", "mdy")
"""Orders of year, month and day."""

DATES = ("text", "days", "parts")
"""What may be made of dates."""

_FORM = re.compile(
    r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})"
    r"(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?)?(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?",
    re.ASCII,
)

_NONE: frozenset[str] = frozenset()

_EPOCH = datetime.date(1970, 1, 1).toordinal()


def days_of(text: str, order: str) -> float | None:
    """Days since 1970 of a date in one of the `ORDERS`, with the time of day as fraction, to the second; ``None`` if it
    is none. The time is that on the clock there: what is said of its zone is ignored.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    numbers = dict(zip(order, (found[1], found[3], found[4]), strict=True))
    hours, minutes, seconds = (float(part or 0) for part in found.groups()[4:])
    if len(numbers["y"]) != 4 or hours >= 24 or minutes >= 60 or seconds >= 60:
        return None
    try:
        day = datetime.date(*(int(numbers[part]) for part in "ymd"))
    except ValueError:
        return None
    return day.toordinal() - _EPOCH + (hours * 3600 + minutes * 60 + seconds) / 86400


def orders_of(text: str) -> frozenset[str]:
    """Those of `ORDERS` in which a text is a date."""
    return frozenset(order for order in ORDERS if days_of(text, order) is not None) if _FORM.fullmatch(text) else _NONE
