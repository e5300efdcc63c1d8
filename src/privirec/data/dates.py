"""Dates as people and services write them: ISO, US, European, month names, seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ZONES = {
    **{"z": 0, "utc": 0, "gmt": 0, "wet": 0, "west": 1, "bst": 1, "cet": 1, "cest": 2},
    **{"eet": 2, "eest": 3, "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6},
    **{"pst": -8, "pdt": -7},
}
"""Hours from UTC of the abbreviations that exports use."""
_CLOCK = re.compile(
    r"(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s*([ap])?\.?(?:m\.?)?\s*"
    r"([a-z]{1,4}|(?:utc|gmt)?[+-]\d\d?(?::?\d\d)?)?$"
)
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})$")
_COMPACT = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)$")
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4}|\d\d)$")
_NAMED = (
    re.compile(
        r"(?P<day>\d{1,2})(?:st|nd|rd|th)?\.?[ -](?P<month>[a-z]{3,9})\.?[ -](?P<year>\d{4})$"
    ),
    re.compile(r"(?P<month>[a-z]{3,9})\.? (?P<day>\d{1,2})(?:st|nd|rd|th)? (?P<year>\d{4})$"),
)
_WEEKDAY = re.compile(r"^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.? ")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?$")
_UNITS = ((1e11, 1), (1e14, 1_000), (1e17, 1_000_000), (1e20, 1_000_000_000))
"""(largest number, units per second): seconds, milliseconds, microseconds, nanoseconds."""
_PIVOT = 70
"""Two-digit years from here on are in the last century."""


@dataclass(frozen=True)
class Dates:
    """Dates of one column."""

    seconds: list[float | None]
    """Seconds since 1970 in UTC, or None for a text that is no date."""
    is_ambiguous: bool = False
    """True if 3/4/2024 was read as the fourth of March without any sign for it."""


def read_dates(values: Iterable[object], *, day_first: bool | None = None) -> Dates:
    """Read the dates of one column. A time without a zone is taken for UTC.

    In 3/4/2024 the first number is the month if `day_first` is False, and the day if it is True. If
    it is None, the other dates of the column decide: a number above 12 is a day, and exports are in
    order of time. A date with dots, 3.4.2024, always starts with the day.
    """
    texts = [_plain(value) for value in values]
    if day_first is not None:
        return Dates([_seconds(text, day_first) for text in texts])
    numbers = [(int(found[1]), int(found[3])) for text in texts if (found := _slashed(text))]
    month_first, day_first = (all(pair[at] <= 12 for pair in numbers) for at in (0, 1))
    if month_first != day_first or all(first == second for first, second in numbers):
        return Dates([_seconds(text, not month_first) for text in texts])
    both = [[_seconds(text, order) for text in texts] for order in (False, True)]
    in_order = [_is_sorted(each) for each in both]
    at = in_order == [False, True]
    return Dates(both[at], is_ambiguous=in_order[0] == in_order[1])


def _plain(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else " ".join(str(value).casefold().replace(",", " ").split())


def _slashed(text: str) -> re.Match[str] | None:
    """Return the match of a date whose order of day and month is not known."""
    found = _YEAR_LAST.match(text.partition(" ")[0])
    return found if found and found[2] != "." else None


def _is_sorted(seconds: Sequence[float | None]) -> bool:
    known = [each for each in seconds if each is not None]
    pairs = list(pairwise(known))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def _seconds(text: str, day_first: bool) -> float | None:
    """Return the time of one text, or None."""
    if compact := _COMPACT.match(text):
        found = _of_day(int(compact[1]), int(compact[2]), int(compact[3]))
        if found is not None:
            return found.timestamp()
    if _NUMBER.match(text):
        return _of_number(float(text))
    day, clock = _parted(text)
    date = _of_date(_WEEKDAY.sub("", day), day_first)
    if date is None:
        return None
    time = _of_clock(clock) if clock else timedelta()
    return None if time is None else date.timestamp() + time.total_seconds()


def _parted(text: str) -> tuple[str, str]:
    """Split a text into its date and its time of day; either may be empty."""
    text = text.replace(" at ", " ")
    found = re.match(r"(.*?)(?:(?<=\d)t|(?:^| ))(\d{1,2}:\d\d.*)$", text)
    return (found[1].strip(), found[2].strip()) if found else (text, "")


def _of_number(number: float) -> float | None:
    """Return a time in seconds from one in seconds, milli-, micro- or nanoseconds."""
    for largest, units in _UNITS:
        if 0 < number < largest:
            return number / units
    return None


def _of_date(text: str, day_first: bool) -> datetime | None:
    if found := _YEAR_FIRST.match(text):
        return _of_day(int(found[1]), int(found[3]), int(found[4]))
    if found := _YEAR_LAST.match(text):
        first, second = int(found[1]), int(found[3])
        day, month = (first, second) if day_first or found[2] == "." else (second, first)
        return _of_day(_whole_year(found[4]), month, day)
    for pattern in _NAMED:
        found = pattern.match(text)
        if found and found["month"][:3] in _MONTHS:
            month = _MONTHS.index(found["month"][:3]) + 1
            return _of_day(int(found["year"]), month, int(found["day"]))
    return None


def _whole_year(text: str) -> int:
    year = int(text)
    return year if len(text) == 4 else year + (1900 if year >= _PIVOT else 2000)


def _of_day(year: int, month: int, day: int) -> datetime | None:
    try:
        return datetime(year, month, day, tzinfo=UTC)
    except ValueError:
        return None


def _of_clock(text: str) -> timedelta | None:
    """Return a time of day in UTC, as the time since midnight of the written day."""
    found = _CLOCK.match(text)
    if found is None:
        return None
    hours, minutes, seconds = int(found[1]), int(found[2]), int(found[3] or 0)
    half, zone = found[5], found[6]
    if half is None and zone in ("am", "pm"):
        half, zone = zone[0], None
    if half:
        if not 1 <= hours <= 12:
            return None
        hours = hours % 12 + 12 * (half == "p")
    offset = _of_zone(zone) if zone else timedelta()
    if hours > 23 or minutes > 59 or seconds > 60 or offset is None:
        return None
    fraction = int((found[4] or "0").ljust(9, "0")) / 1e9
    return timedelta(hours=hours, minutes=minutes, seconds=seconds + fraction) - offset


def _of_zone(text: str) -> timedelta | None:
    if text in _ZONES:
        return timedelta(hours=_ZONES[text])
    found = re.match(r"(?:utc|gmt)?([+-])(\d\d?):?(\d\d)?$", text)
    if found is None or int(found[2]) > 14 or int(found[3] or 0) > 59:
        return None
    away = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    return away if found[1] == "+" else -away


def in_words(seconds: float) -> str:
    """Return the day of a time, such as 31 Jan 2024."""
    day = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return f"{day.day} {_MONTHS[day.month - 1].capitalize()} {day.year}"
