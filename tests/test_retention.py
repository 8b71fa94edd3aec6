"""What is due of a ticket that is over: a function of what is there, since when, and how long it is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.retention import Kept, due, due_us

DAY = 24 * 3600 * 1_000_000
KEEP = {Kept.WORKTREE: 7.0, Kept.TRANSCRIPTS: 30.0, Kept.MESSAGES: None}


@pytest.mark.parametrize(
    ("days", "gone"),
    [
        (0, [Kept.TMP]),
        (7 - 1e-9, [Kept.TMP]),
        (7, [Kept.TMP, Kept.WORKTREE]),
        (30, [Kept.TMP, Kept.WORKTREE, Kept.TRANSCRIPTS]),
        (36_500, [Kept.TMP, Kept.WORKTREE, Kept.TRANSCRIPTS]),
    ],
)
def test_each_goes_when_its_days_are_over(days: float, gone: list[Kept]) -> None:
    """Temporary files go at once, the rest to the day, and what is kept forever never."""
    assert due([*Kept], 5 * DAY, keep_days=KEEP, now_us=5 * DAY + int(days * DAY)) == gone


@given(st.sets(st.sampled_from(Kept)), st.integers(0, 50 * DAY), st.integers(0, 50 * DAY))
def test_only_what_is_there_and_in_time(there: set[Kept], since_us: int, now_us: int) -> None:
    """What is named is there, its time has come, and nothing that is there and whose time has come is left out."""
    found = due(there, since_us, keep_days=KEEP, now_us=now_us)
    times = {what: due_us(what, since_us, keep_days=KEEP) for what in there}
    assert set(found) == {what for what, time_us in times.items() if time_us is not None and time_us <= now_us}
    assert len(found) == len(set(found))


def test_a_clock_that_was_set_back_removes_nothing_early() -> None:
    """Before the ticket was over nothing of it is due, temporary files included."""
    assert due([*Kept], 100 * DAY, keep_days=KEEP, now_us=99 * DAY) == []
