"""Hours of a week in which something is open, as a person writes them for a time zone.

`Mon-Fri 20:00-07:00` is open from 20:00 on each of these days until 07:00 of the next.
A time that clocks skip is as much later as they skip; of one that comes twice the first
counts.

Pure: the zone is given, with its rules.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

_US = 1_000_000
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY_MIN = 24 * 60
_WINDOW = re.compile(r"([A-Z][a-z]{2})(?:-([A-Z][a-z]{2}))? (\d\d):(\d\d)-(\d\d):(\d\d)")


@dataclass(frozen=True, slots=True)
class Window:
    """The same hours on some days of the week."""

    days: frozenset[int]
    """On which it opens; Monday is 0."""
    opens_min: int
    """Since midnight."""
    closes_min: int
    """Since the same midnight, so that it can be on the next day."""


@dataclass(frozen=True, slots=True)
class Hours:
    """When something is open: in any of its windows; without one always."""

    windows: tuple[Window, ...]
    zone: tzinfo

    def is_open(self, now_us: int) -> bool:
        """Return whether it is open."""
        return not self.windows or any(opens <= now_us < closes for opens, closes in self._spans(now_us))

    def changes_at_us(self, now_us: int) -> int | None:
        """Return when it next opens or closes, None when it never does."""
        if not self.is_open(now_us):
            return min(opens for opens, _ in self._spans(now_us) if opens > now_us)
        closes_us = next((closes for opens, closes in self._spans(now_us) if opens <= now_us < closes), None)
        return closes_us if closes_us is not None and closes_us - now_us <= 8 * _DAY_MIN * 60 * _US else None

    def _spans(self, now_us: int) -> list[tuple[int, int]]:
        """Return from when until when it is open around `now_us`, none touching another.

        More than two weeks: what opens in an hour that clocks skip does not open at all that week.
        """
        spans: list[tuple[int, int]] = []
        for opens, closes in sorted(self._each(datetime.fromtimestamp(now_us // _US, self.zone).date())):
            if spans and opens <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(closes, spans[-1][1]))
            elif opens < closes:
                spans.append((opens, closes))
        return spans

    def _each(self, today: date) -> Iterator[tuple[int, int]]:
        for day in (today + timedelta(days=days) for days in range(-2, 17)):
            for window in self.windows:
                if day.weekday() in window.days:
                    yield self._at(day, window.opens_min), self._at(day, window.closes_min)

    def _at(self, day: date, minutes: int) -> int:
        days, minute = divmod(minutes, _DAY_MIN)
        at = datetime.combine(day + timedelta(days=days), time(minute // 60, minute % 60), self.zone)
        return round(at.astimezone(UTC).timestamp()) * _US


def parse(text: str) -> Window:
    """Return the window that a person wrote, as `Mon-Fri 20:00-07:00` or `Sat 00:00-24:00`.

    Raises:
        ValueError: It is none; the message says why.
    """
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError(f'{text!r} must be days and times, as "Mon-Fri 20:00-07:00" or "Sat 00:00-24:00"')
    names = [name for name in found.groups()[:2] if name is not None]
    if unknown := [name for name in names if name not in _DAYS]:
        raise ValueError(f"{text!r}: {unknown[0]} is none of {' '.join(_DAYS)}")
    first, last = _DAYS.index(names[0]), _DAYS.index(names[-1])
    opens, closes = (_minutes(text, *map(int, part)) for part in (found.groups()[2:4], found.groups()[4:]))
    if opens == closes:
        raise ValueError(f"{text!r} ends when it begins; a whole day is 00:00-24:00")
    if opens == _DAY_MIN:
        raise ValueError(f"{text!r}: 24:00 is an end; a day begins at 00:00")
    days = frozenset((first + day) % 7 for day in range((last - first) % 7 + 1))
    return Window(days, opens, closes if closes > opens else closes + _DAY_MIN)


def _minutes(text: str, hour: int, minute: int) -> int:
    minutes = hour * 60 + minute
    if minute > 59 or minutes > _DAY_MIN:  # noqa: PLR2004  # of an hour
        raise ValueError(f"{text!r}: {hour:02}:{minute:02} is no time of a day")
    return minutes
