"""Tests of dates as people and services write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.data.dates import read_dates

NOON = datetime(2024, 1, 31, 12, 0, tzinfo=UTC).timestamp()
DAY = datetime(2024, 1, 31, tzinfo=UTC).timestamp()

moments = st.datetimes(datetime(1971, 1, 1), datetime(2069, 12, 31)).map(
    lambda at: at.replace(microsecond=0, tzinfo=UTC)
)
zones = st.integers(-14 * 4, 14 * 4).map(lambda quarter: timezone(timedelta(minutes=15 * quarter)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-01-31", DAY),
        ("2024/01/31", DAY),
        ("20240131", DAY),
        ("31.01.2024", DAY),
        ("31.1.24", DAY),
        ("31/01/2024", DAY),
        ("31-Jan-2024", DAY),
        ("1/31/24", DAY),
        ("1/31/2024", DAY),
        ("January 31, 2024", DAY),
        ("Jan. 31st 2024", DAY),
        ("31 January 2024", DAY),
        ("Wed, 31 Jan 2024", DAY),
        ("2024-01-31T12:00:00Z", NOON),
        ("2024-01-31 12:00", NOON),
        ("2024-01-31T14:00:00+02:00", NOON),
        ("2024-01-31T07:00:00-0500", NOON),
        ("2024-01-31 12:00:00 UTC", NOON),
        ("31.01.2024, 13:00:00 MEZ", None),  # an abbreviation that is not known
        ("31.01.2024, 13:00:00 CET", NOON),
        ("1/31/2024, 12:00:00\u202fPM", NOON),
        ("Jan 31, 2024, 7:00:00 AM EST", NOON),
        ("Wed, 31 Jan 2024 12:00:00 GMT", NOON),
        ("2024-01-31T12:00:00.250Z", NOON + 0.25),
        (1706702400, NOON),
        ("1706702400000", NOON),
        ("1706702400000000", NOON),
        (1706702400.0, NOON),
        *((text, None) for text in ("", "Not Available", "2023-02-30", "99/99/2024", "25:00")),
        ("2024-01-31 25:00", None),
        ("2024-01-31 13:00 PM", None),
        (None, None),
        (True, None),
        ("-5", None),
        ("9" * 40, None),
    ],
)
def test_dates_of_all_usual_kinds(text: object, seconds: float | None) -> None:
    assert read_dates([text]).seconds == [seconds]


def test_other_dates_of_the_column_decide_which_number_is_the_day() -> None:
    assert (
        read_dates(["13/4/2024", "5/3/2024"]).seconds
        == read_dates(["2024-04-13", "2024-03-05"]).seconds
    )
    assert (
        read_dates(["4/13/24", "5/3/24"]).seconds
        == read_dates(["2024-04-13", "2024-05-03"]).seconds
    )
    in_order = read_dates(["4/3/24", "5/3/24", "1/4/24"])  # rising with the day first only
    assert not in_order.is_ambiguous
    assert in_order.seconds == read_dates(["2024-03-04", "2024-03-05", "2024-04-01"]).seconds
    unclear = read_dates(["3/4/24"])
    assert unclear.is_ambiguous
    assert unclear.seconds == read_dates(["2024-03-04"]).seconds
    assert read_dates(["3/4/24"], day_first=True).seconds == read_dates(["2024-04-03"]).seconds
    assert not read_dates(["3/3/24", "3.4.24"]).is_ambiguous


@given(moments, zones)
def test_iso_dates_with_zones_are_read_exactly(at: datetime, zone: timezone) -> None:
    for text in (at.astimezone(zone).isoformat(), at.isoformat(" "), at.isoformat() + "Z"):
        if not text.endswith("+00:00Z"):
            assert read_dates([text]).seconds == [at.timestamp()]


@given(st.lists(moments, min_size=1))
def test_american_and_european_dates_are_read_as_they_were_written(found: list[datetime]) -> None:
    expected = [at.timestamp() for at in found]
    for day_first, pattern in ((False, "%m/%d/%Y %I:%M:%S %p"), (True, "%d/%m/%Y %H:%M:%S")):
        texts = [at.strftime(pattern) for at in found]
        assert read_dates(texts, day_first=day_first).seconds == expected
        detected = read_dates(texts)
        assert detected.is_ambiguous or detected.seconds == expected
    assert read_dates([f"{at:%d.%m.%Y %H:%M:%S}" for at in found]).seconds == expected


@given(st.integers(2 * 10**8, 9 * 10**10))
def test_numbers_are_seconds_milliseconds_or_microseconds(seconds: int) -> None:
    for units in (1, 1_000, 1_000_000):
        assert read_dates([seconds * units, str(seconds * units)]).seconds == [seconds] * 2


@given(st.lists(st.text(max_size=40) | st.integers() | st.floats() | st.none()))
def test_nothing_breaks_the_reader(values: list[object]) -> None:
    found = read_dates(values).seconds
    assert len(found) == len(values)
    assert all(each is None or each == each for each in found)  # noqa: PLR0124 - not NaN
    assert read_dates(values).seconds == found
