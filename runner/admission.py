"""Whether a ticket may start now; if not, why, and until when.

The queue is open unless something of it or around it says no: a person's pause, the
weather, the machine or the hours. When the time of a pause for the weather has come,
one ticket tries whether it is over (the probe), and the others wait for what it hears.

Pure. Knows no store, no machine and no clock.
"""

from dataclasses import dataclass
from math import inf

from runner.hours import Hours
from runner.outcome import WAITS, Waits, weather_delay_s

WEATHER = "weather"
"""The reason of a pause that ends by itself."""
HOURS = "hours"
MACHINE = "machine"

_US = 1_000_000
_FARTHEST_RESET_US = 31 * 86_400 * _US  # limits end within a month; what says another thing is tried then
_SPREAD = 0.5
"""Of a wait, at most, is added to it at random, so that daemons that share an account do not come back as one."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Why the queue starts no ticket."""

    reason: str
    note: str
    """For a person."""
    by: str
    since_us: int
    until_us: int | None
    """When a ticket may try whether it is over; None when a person ends it."""
    waits: int = 0
    """Pauses for the weather in a row, this one included."""
    probe: str | None = None
    """The ticket that tries."""

    @property
    def title(self) -> str:
        """The note's first line, for a log."""
        return title(self.note)

    def lasts(self, now_us: int) -> bool:
        """Return whether its time is yet to come; it has come too when the clock was put back to before it began."""
        return self.until_us is None or self.since_us <= now_us < self.until_us


@dataclass(frozen=True, slots=True)
class Closed:
    """Why no ticket may start."""

    reason: str
    note: str
    """For a person."""
    until_us: int | None
    """When that may be over by itself; None when something has to happen."""


def why_closed(pause: Pause | None, hours: Hours, shortage: str | None, *, now_us: int) -> Closed | None:
    """Return why no ticket may start now, None when one may; of several reasons the one that lasts longest.

    Args:
        pause: The queue's.
        hours: In which tickets start.
        shortage: Which floor the machine is below, None when it is below none.
        now_us: The time.
    """
    found = [closed_by_pause(pause, now_us=now_us)]
    if shortage is not None:
        found.append(Closed(MACHINE, shortage, None))
    if not hours.is_open(now_us):
        found.append(Closed(HOURS, "it is outside active_hours", hours.changes_at_us(now_us)))
    reasons = [closed for closed in found if closed is not None]
    return max(reasons, key=lambda closed: inf if closed.until_us is None else closed.until_us, default=None)


def closed_by_pause(pause: Pause | None, *, now_us: int) -> Closed | None:
    """Return why the pause lets no ticket start, None when one may: without a pause any, after its time the probe."""
    if pause is None:
        return None
    if pause.lasts(now_us):
        return Closed(pause.reason, pause.note, pause.until_us)
    if pause.probe is not None:
        return Closed(pause.reason, f"{pause.probe} tries whether it is over: {pause.title}".rstrip(": "), None)
    return None


def after_weather(
    pause: Pause | None, *, now_us: int, reset_at_us: int | None, chance: float, waits: Waits = WAITS
) -> tuple[int, int] | None:
    """Return how many pauses in a row it is and until when, now that a run ended in weather; None when it stays.

    Runs that end while the queue waits have met what it waits for: that is one pause, made longer only by a later
    reset. Those that end while another ticket probes leave it to the probe.

    Args:
        pause: The queue's, without what the run that ended had to do with it.
        now_us: The time.
        reset_at_us: When the limit ends, if the API said so.
        chance: From 0 up to 1, at random.
        waits: How long a pause is.
    """
    if reset_at_us is not None:
        reset_at_us = min(reset_at_us, now_us + _FARTHEST_RESET_US)

    def until_us(number: int, since_us: int) -> int:
        wait_us = weather_delay_s(number, waits) * _US
        return max(since_us + round(wait_us), reset_at_us or 0) + round(wait_us * _SPREAD * chance)

    if pause is None:
        return 1, until_us(1, now_us)
    if pause.until_us is None or pause.probe is not None:
        return None
    if not pause.lasts(now_us):
        return pause.waits + 1, until_us(pause.waits + 1, now_us)
    if reset_at_us is None or reset_at_us <= pause.until_us:
        return None
    return pause.waits, until_us(pause.waits, pause.since_us)


def title(note: str) -> str:
    """Return a note's first line, for a log."""
    return next(iter(note.strip().splitlines()), "")[:200]
