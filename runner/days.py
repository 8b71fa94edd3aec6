"""Days of a time zone: when one began, and when the next one does.

A day lasts from its first midnight to the next day's: 23 or 25 hours where clocks
change. Where midnight does not exist it begins when the clocks go on, and where
midnight comes twice it begins once.

Pure: the zone is given, with its rules.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta, tzinfo

_US = 1_000_000


def day_start_us(now_us: int, zone: tzinfo) -> int:
    """Return when the day of `now_us` began in `zone`."""
    return max(midnight for midnight in _midnights(now_us, zone) if midnight <= now_us)


def next_day_us(now_us: int, zone: tzinfo) -> int:
    """Return when the day after that of `now_us` begins in `zone`."""
    return min(midnight for midnight in _midnights(now_us, zone) if midnight > now_us)


def _midnights(now_us: int, zone: tzinfo) -> Iterator[int]:
    """Yield the starts of the days around `now_us`: more than three, since an hour can be of yesterday again."""
    today = datetime.fromtimestamp(now_us // _US, zone).date()
    for days in (-1, 0, 1, 2):
        midnight = datetime.combine(today + timedelta(days=days), time(), zone)  # the first one; in a gap its end
        yield round(midnight.astimezone(UTC).timestamp()) * _US
