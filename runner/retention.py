"""What of a ticket that is over is due to be removed, and when.

Nothing of an open ticket ever is. The log of events is the ledger, and no part of it is in here.

Pure. Knows no disk, no store and no clock.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum

_DAY_US = 24 * 3600 * 1_000_000


class Kept(StrEnum):
    """What a ticket that is over leaves behind."""

    TMP = "tmp"
    """Its own temporary files."""
    WORKTREE = "worktree"
    TRANSCRIPTS = "transcripts"
    """What Claude Code wrote of its sessions."""
    MESSAGES = "messages"
    """What was said in them, in our database."""


def due_us(what: Kept, over_since_us: int, *, keep_days: Mapping[Kept, float | None]) -> int | None:
    """Return from when on it may go; None for never. What is in no `keep_days` goes at once."""
    days = keep_days.get(what, 0.0)
    return None if days is None else over_since_us + round(days * _DAY_US)


def due(
    there: Collection[Kept], over_since_us: int, *, keep_days: Mapping[Kept, float | None], now_us: int
) -> list[Kept]:
    """Return what of `there` may go now, in the order in which it is removed: what the rest is read with, last."""
    times = {what: due_us(what, over_since_us, keep_days=keep_days) for what in Kept if what in there}
    return [what for what, time_us in times.items() if time_us is not None and time_us <= now_us]
