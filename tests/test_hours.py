"""Hours of a week: when they are open and when that changes, on the days too on which clocks do."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.hours import Hours, Window, parse

BERLIN = ZoneInfo("Europe/Berlin")
NIGHTS = "Mon-Fri 20:00-07:00"
WEEKENDS = "Sat-Sun 00:00-24:00"


def us(text: str) -> int:
    """Return a time; one without an offset is Berlin's."""
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo else at.replace(tzinfo=BERLIN)).timestamp() * 1_000_000)


def hours(*windows: str) -> Hours:
    """Return hours in Berlin."""
    return Hours(tuple(map(parse, windows)), BERLIN)


@pytest.mark.parametrize(
    ("windows", "now", "is_open", "changes"),
    [
        ([NIGHTS], "2026-07-01T19:59:59.999999", False, "2026-07-01T20:00"),
        ([NIGHTS], "2026-07-01T20:00", True, "2026-07-02T07:00"),
        ([NIGHTS], "2026-07-02T06:59:59", True, "2026-07-02T07:00"),
        ([NIGHTS], "2026-07-02T07:00", False, "2026-07-02T20:00"),
        ([NIGHTS], "2026-07-04T06:59", True, "2026-07-04T07:00"),
        ([NIGHTS], "2026-07-04T07:00", False, "2026-07-06T20:00"),
        ([NIGHTS], "2026-07-06T06:00", False, "2026-07-06T20:00"),
        ([NIGHTS, WEEKENDS], "2026-07-03T21:00", True, "2026-07-06T00:00"),
        ([WEEKENDS], "2026-07-06T00:00", False, "2026-07-11T00:00"),
        (["Fri-Mon 10:00-11:00"], "2026-07-06T11:00", False, "2026-07-10T10:00"),
        (["Wed 10:00-11:00", "Wed 10:30-10:45"], "2026-07-01T10:00", True, "2026-07-01T11:00"),
        (["Wed 10:00-11:00"], "2026-07-01T11:00", False, "2026-07-08T10:00"),
        (["Wed 10:00-09:59"], "2026-07-02T09:58", True, "2026-07-02T09:59"),
        ([], "2026-07-01T03:00", True, None),
        (["Mon-Sun 00:00-24:00"], "2026-07-01T03:00", True, None),
        (["Mon-Sun 12:00-11:59", "Mon-Sun 11:00-12:30"], "2026-07-01T03:00", True, None),
        # Clocks go from 02:00 to 03:00.
        (["Sat-Sun 20:00-04:00"], "2026-03-28T20:00", True, "2026-03-29T02:00+00:00"),
        (["Sun 02:30-05:00"], "2026-03-29T00:00+00:00", False, "2026-03-29T01:30+00:00"),
        (["Sun 01:00-02:30"], "2026-03-29T00:00+00:00", True, "2026-03-29T01:30+00:00"),
        (["Sun 02:30-03:15"], "2026-03-29T01:10+00:00", False, "2026-04-05T02:30"),
        (["Sun 02:00-03:00"], "2026-03-22T02:59", True, "2026-03-22T03:00"),
        (["Sun 02:00-03:00"], "2026-03-22T03:00", False, "2026-04-05T02:00"),
        # Clocks go from 03:00 back to 02:00.
        (["Sat-Sun 20:00-04:00"], "2026-10-24T20:00", True, "2026-10-25T03:00+00:00"),
        (["Sun 02:30-02:45"], "2026-10-25T00:30+00:00", True, "2026-10-25T00:45+00:00"),
        (["Sun 02:30-02:45"], "2026-10-25T01:30+00:00", False, "2026-11-01T02:30"),
        (["Sun 01:00-02:30", "Sun 02:30-05:00"], "2026-10-25T00:30+00:00", True, "2026-10-25T04:00+00:00"),
    ],
)
def test_when_it_is_open_and_until_when(windows: list[str], now: str, is_open: bool, changes: str | None) -> None:
    """Windows go over midnight and touch each other, and an hour that clocks skip moves a time into the next."""
    open_hours = hours(*windows)
    assert open_hours.is_open(us(now)) == is_open
    assert open_hours.changes_at_us(us(now)) == (None if changes is None else us(changes))


@given(
    st.lists(
        st.builds(
            lambda days, opens, lasts: Window(frozenset(days), opens, opens + lasts),
            st.sets(st.integers(0, 6), min_size=1),
            st.integers(0, 1439),
            st.integers(1, 1440),
        ),
        max_size=3,
    ),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001  hypothesis adds the zone
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
)
def test_what_is_said_to_change_does_then_and_not_before(windows: list[Window], now: datetime, zone: str) -> None:
    """Whatever the hours, the zone and the time, the next change is the first: until then it is as it is now."""
    open_hours = Hours(tuple(windows), ZoneInfo(zone))
    now_us = round(now.timestamp()) * 1_000_000
    changes_us, is_open = open_hours.changes_at_us(now_us), open_hours.is_open(now_us)
    if changes_us is None:
        assert is_open
        changes_us = now_us + 7 * 86_400 * 1_000_000
    else:
        assert open_hours.is_open(changes_us) != is_open
    for part in range(5):
        assert open_hours.is_open(now_us + (changes_us - 1 - now_us) * part // 4) == is_open


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "must be days and times"),
        ("always", "must be days and times"),
        ("mon 10:00-11:00", "must be days and times"),
        ("Mon 10-11", "must be days and times"),
        ("Mon 10:00 - 11:00", "must be days and times"),
        ("Mon-Fry 10:00-11:00", "Fry is none of Mon Tue"),
        ("Mon 10:60-11:00", "10:60 is no time of a day"),
        ("Mon 10:00-24:01", "24:01 is no time of a day"),
        ("Mon 25:00-26:00", "25:00 is no time of a day"),
        ("Mon 24:00-08:00", "a day begins at 00:00"),
        ("Mon 08:00-08:00", "ends when it begins"),
    ],
)
def test_what_are_no_hours_is_said(text: str, because: str) -> None:
    """What cannot be understood is refused with what is wrong about it."""
    with pytest.raises(ValueError, match=because):
        parse(text)
