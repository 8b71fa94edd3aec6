"""When a day of a zone begins: also where clocks change, and where midnight is missing or comes twice."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.days import day_start_us, next_day_us

HOUR_US = 3600 * 1_000_000
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "Africa/Cairo",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kiritimati",
]


def us(text: str) -> int:
    """Return a time, UTC unless it says otherwise."""
    at = datetime.fromisoformat(text)
    return round(at.replace(tzinfo=at.tzinfo or UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("zone", "now", "begins", "hours"),
    [
        ("UTC", "2026-11-29T00:00", "2026-11-29T00:00", 24),
        ("UTC", "2026-11-29T23:59:59", "2026-11-29T00:00", 24),
        ("Europe/Berlin", "2026-11-29T22:59:59", "2026-11-28T23:00", 24),
        ("Europe/Berlin", "2026-11-29T23:00", "2026-11-29T23:00", 24),
        ("Europe/Berlin", "2026-03-29T00:30", "2026-03-28T23:00", 23),
        ("Europe/Berlin", "2026-03-29T21:59:59", "2026-03-28T23:00", 23),
        ("Europe/Berlin", "2026-10-25T00:30", "2026-10-24T22:00", 25),
        ("Europe/Berlin", "2026-10-25T22:59:59", "2026-10-24T22:00", 25),
        ("America/Sao_Paulo", "2018-11-04T02:59:59", "2018-11-03T03:00", 24),
        ("America/Sao_Paulo", "2018-11-04T03:00", "2018-11-04T03:00", 23),
        ("America/Sao_Paulo", "2018-02-18T02:30", "2018-02-17T02:00", 25),
        ("Africa/Cairo", "2026-04-24T12:00", "2026-04-23T22:00", 23),
        ("Africa/Cairo", "2026-10-29T20:30", "2026-10-28T21:00", 25),
        ("America/Havana", "2026-11-01T04:30", "2026-11-01T04:00", 25),
        ("America/Havana", "2026-11-01T05:30", "2026-11-01T04:00", 25),
        ("America/St_Johns", "2006-10-29T02:45", "2006-10-29T02:30", 25),
        ("Pacific/Apia", "2011-12-30T09:00", "2011-12-29T10:00", 24),
        ("Pacific/Apia", "2011-12-30T10:00", "2011-12-30T10:00", 24),
    ],
    ids=[
        "UTC midnight",
        "UTC before midnight",
        "Berlin before midnight",
        "Berlin at midnight",
        "Berlin, clocks go on: 23 hours, early",
        "Berlin, clocks go on: 23 hours, late",
        "Berlin, clocks go back: 25 hours, early",
        "Berlin, clocks go back: 25 hours, late",
        "Sao Paulo, before a midnight that does not exist",
        "Sao Paulo, a day that begins at 01:00",
        "Sao Paulo, clocks go back at midnight to the day before",
        "Cairo, a day that begins at 01:00",
        "Cairo, clocks go back at midnight to the day before",
        "Havana, the first hour after the first midnight",
        "Havana, the same hour again",
        "St John's, a minute after midnight it is yesterday for an hour",
        "Apia, before the day that was left out",
        "Apia, after the day that was left out",
    ],
)
def test_a_day_begins_and_ends_by_its_zone(zone: str, now: str, begins: str, hours: int) -> None:
    """A day lasts from its first midnight to that of the next, which clocks that change move."""
    rules = ZoneInfo(zone)
    assert day_start_us(us(now), rules) == us(begins)
    assert next_day_us(us(now), rules) == us(begins) + hours * HOUR_US


@given(st.sampled_from(ZONES), st.datetimes(datetime(1975, 1, 1), datetime(2036, 12, 31)))  # noqa: DTZ001  # UTC below
def test_days_follow_each_other_without_gap(zone: str, at: datetime) -> None:
    """Every moment is in one day, all of whose moments agree on its start and its end."""
    rules, now_us = ZoneInfo(zone), us(at.isoformat())
    start_us, next_us = day_start_us(now_us, rules), next_day_us(now_us, rules)
    assert start_us <= now_us < next_us
    assert next_us - start_us <= 26 * HOUR_US
    for moment_us in (start_us, next_us - 1):
        assert (day_start_us(moment_us, rules), next_day_us(moment_us, rules)) == (start_us, next_us)
    assert day_start_us(next_us, rules) == next_us
