"""Whether a ticket may start, and what a pause for the weather becomes: every case."""

from dataclasses import replace
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.admission import WEATHER, Closed, Pause, after_weather, closed_by_pause, why_closed
from runner.hours import Hours, parse
from runner.outcome import Waits

SECOND = 1_000_000
NOW_US = 1_000_000 * SECOND
BY_HAND = Pause("operator", "", "me", 1, None)
WAITS = Pause(WEATHER, "weather: HTTP 529\nmore", "a", NOW_US - 10 * SECOND, NOW_US + 20 * SECOND, waits=1)
DUE = replace(WAITS, until_us=NOW_US)
PROBED = replace(DUE, probe="b")


@pytest.mark.parametrize(
    ("pause", "closed"),
    [
        (None, None),
        (BY_HAND, Closed("operator", "", None)),
        (replace(BY_HAND, reason="ticket", note="401"), Closed("ticket", "401", None)),
        (WAITS, Closed(WEATHER, "weather: HTTP 529\nmore", NOW_US + 20 * SECOND)),
        (DUE, None),
        (replace(WAITS, since_us=NOW_US), Closed(WEATHER, WAITS.note, NOW_US + 20 * SECOND)),
        (replace(WAITS, since_us=NOW_US + 1), None),
        (PROBED, Closed(WEATHER, "b tries whether it is over: weather: HTTP 529", None)),
        (replace(PROBED, until_us=None), Closed(WEATHER, "weather: HTTP 529\nmore", None)),
    ],
)
def test_a_pause_lets_no_ticket_start_but_the_probe(pause: Pause | None, closed: Closed | None) -> None:
    """A person's pause ends by an event, the weather's for one ticket at its time, or by a clock put back before it."""
    assert closed_by_pause(pause, now_us=NOW_US) == closed


OPEN = Hours((), UTC)
NOON_US = 1_782_907_200 * SECOND
"""A Wednesday's."""


@pytest.mark.parametrize(
    ("pause", "window", "shortage", "closed"),
    [
        (None, None, None, None),
        (None, "Wed 12:00-13:00", None, None),
        (None, None, "no room", Closed("machine", "no room", None)),
        (None, "Wed 13:00-14:00", None, Closed("hours", "it is outside active_hours", NOON_US + 3600 * SECOND)),
        (None, "Wed 13:00-14:00", "no room", Closed("machine", "no room", None)),
        (BY_HAND, "Wed 13:00-14:00", "no room", Closed("operator", "", None)),
        (
            replace(WAITS, until_us=NOON_US + 60 * SECOND),
            "Wed 13:00-14:00",
            None,
            Closed("hours", "it is outside active_hours", NOON_US + 3600 * SECOND),
        ),
        (
            replace(WAITS, note="529", until_us=NOON_US + 7200 * SECOND),
            "Wed 13:00-14:00",
            None,
            Closed(WEATHER, "529", NOON_US + 7200 * SECOND),
        ),
        (replace(WAITS, until_us=NOON_US), "Wed 12:00-13:00", None, None),
    ],
)
def test_of_several_reasons_the_longest_is_said(
    pause: Pause | None, window: str | None, shortage: str | None, closed: Closed | None
) -> None:
    """A queue is open when no pause, no hours and no shortage closes it; else what lasts longest is the reason."""
    hours = OPEN if window is None else Hours((parse(window),), UTC)
    assert why_closed(pause, hours, shortage, now_us=NOON_US) == closed


@pytest.mark.parametrize(
    ("pause", "reset_s", "after"),
    [
        (None, None, (1, 30)),
        (None, -5, (1, 30)),
        (None, 5, (1, 30)),
        (None, 3600, (1, 3600)),
        (None, 32 * 86_400, (1, 31 * 86_400)),
        (BY_HAND, None, None),
        (BY_HAND, 3600, None),
        (WAITS, None, None),
        (WAITS, 20, None),
        (WAITS, 3600, (1, 3600)),
        (PROBED, None, None),
        (PROBED, 3600, None),
        (DUE, None, (2, 60)),
        (DUE, 3600, (2, 3600)),
        (replace(WAITS, since_us=NOW_US + 1), None, (2, 60)),
        (replace(DUE, waits=6), None, (7, 1800)),
        (replace(DUE, waits=5000), None, (5001, 1800)),
    ],
)
@pytest.mark.parametrize("chance", [0.0, 0.5])
def test_what_a_run_that_met_the_weather_does_to_the_queue(
    pause: Pause | None, reset_s: int | None, after: tuple[int, int] | None, chance: float
) -> None:
    """Pauses in a row double, each counts once for all its runs, a reset is waited for, and chance comes on top."""
    reset_at_us = None if reset_s is None else NOW_US + reset_s * SECOND
    came = after_weather(pause, now_us=NOW_US, reset_at_us=reset_at_us, chance=chance)
    if after is None:
        assert came is None
        return
    waits, wait_s = after
    spread_s = chance * 0.5 * min(30 * 2 ** min(waits - 1, 10), 1800)
    assert came == (waits, NOW_US + round((wait_s + spread_s) * SECOND))


def test_the_waits_are_those_of_the_configuration() -> None:
    """A pause is as long as was configured, and doubles up to the longest that was."""
    waits = Waits(2.0, 5.0)
    ends = [
        after_weather(replace(DUE, waits=number), now_us=NOW_US, reset_at_us=None, chance=0, waits=waits)
        for number in range(3)
    ]
    assert ends == [(number, NOW_US + wait_s * SECOND) for number, wait_s in ((1, 2), (2, 4), (3, 5))]


@given(st.integers(0, 99), st.none() | st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_never_over_before_its_wait_or_its_reset(waits: int, reset_s: int | None, chance: float) -> None:
    """Chance makes a wait longer only, by less than half of what the wait would be."""
    reset_at_us = None if reset_s is None else NOW_US + reset_s * SECOND
    came = after_weather(replace(DUE, waits=waits), now_us=NOW_US, reset_at_us=reset_at_us, chance=chance)
    least = after_weather(replace(DUE, waits=waits), now_us=NOW_US, reset_at_us=reset_at_us, chance=0)
    assert came is not None
    assert least is not None
    assert least[1] >= max(NOW_US + 30 * SECOND, reset_at_us or 0)
    assert 0 <= came[1] - least[1] <= 900 * SECOND
