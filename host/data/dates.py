"""Dates as they stand in files: 2024-03-31, 31.03.2024, 31/03/2024 or 03/31/2024, perhaps with a time of day."""

import datetime
import math
import re

ORDERS = ("ymd", "dmy", "mdy")
"""Orders of year, month and day."""

DATES = ("text", "days", "parts")
"""What may be made of dates."""

_FORM = re.compile(
    r"(\d\d?|\d{4})([-/.])(\d\d?)\2(\d\d?|\d{4})"
    r"(?:[T ]+(\d\d?):(\d\d)(?::(\d\d)(?:\.\d+)?)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?",
    re.ASCII,
)

_EPOCH = datetime.date(1970, 1, 1).toordinal()


def dates_of(text: str) -> dict[str, float]:
    """Days since 1970 of a date, with the time of day as fraction, to the second, for each of `ORDERS` it may have.

    With the year first, or dots, which follow the day, there is no doubt: then it is the same date for all of them.
    Empty if the text is no date. The time is that on the clock there: what is said of its zone is ignored.
    """
    found = _FORM.fullmatch(text)
    if found is None or (len(found[1]) == 4) == (len(found[4]) == 4):
        return {}
    first, between, middle, last, *clock = found.groups()
    ways = dict.fromkeys(ORDERS, (first, middle, last) if len(first) == 4 else (last, middle, first))
    if len(last) == 4 and between != ".":
        ways = {"dmy": (last, middle, first), "mdy": (last, first, middle)}
    hours, minutes, seconds = (int(part or 0) for part in clock)
    if hours >= 24 or minutes >= 60 or seconds >= 60:
        return {}
    time, dates = (hours * 3600 + minutes * 60 + seconds) / 86400, {}
    for order, (year, month, day) in ways.items():
        if 1 <= int(month) <= 12:
            try:
                dates[order] = datetime.date(int(year), int(month), int(day)).toordinal() - _EPOCH + time
            except ValueError:  # there is no such day
                continue
    return dates


def day_of(text: str, order: str) -> float:
    """That of `dates_of` in a column with this order, NaN if there is none. The order ``ymd`` tells nothing of dates
    with the year last, of which those are taken that can be read in one way."""
    dates = dates_of(text)
    if order == ORDERS[0] and len(set(dates.values())) == 1:
        order = next(iter(dates))
    return dates.get(order, math.nan)
