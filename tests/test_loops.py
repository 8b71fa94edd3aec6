"""When work goes round in circles: what counts as the same, and what begins anew."""

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.circles import circling
from runner.events import Name
from runner.lines import FailedLine
from runner.loops import Calls, fingerprint, repeats, same
from runner.store import Tx
from tests.homes import Place

EFFECT = ("folder/t/1/comment.plan", "done", "https://forge.example/1")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Exit code 1\nno such file", "Exit code 1\n  no such file\n"),
        ("2 failed in 0.12s", "2 failed in 13.5s"),
        ("took 3 seconds", "took 40 seconds"),
        ("2026-11-29T20:54:13.123Z boom", "2026-11-30T01:02:03.4Z boom"),
        ("20:54:13 boom", "01:02:03,456 boom"),
        ("object at 0x7f3a9c", "object at 0x55d0ff"),
        ("\x1b[31mFAILED\x1b[0m a", "FAILED a"),
        ("see /tmp/pytest-1/log", "see /tmp/pytest-2/log"),
    ],
)
def test_what_differs_each_time_anyway_is_no_difference(one: str, other: str) -> None:
    """Times, durations, addresses, colours, spaces and temporary files do not tell two failures apart."""
    assert same(one) == same(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Exit code 1", "Exit code 2"),
        ("3 failed", "2 failed"),
        ("FAILED test_a", "FAILED test_b"),
        ("total.py:12: error", "total.py:13: error"),
        ("", "no"),
    ],
)
def test_what_a_person_would_call_another_failure_is_one(one: str, other: str) -> None:
    """Another exit code, count, name or line is another failure."""
    assert same(one) != same(other)


@given(st.text())
def test_every_text_can_be_compared(text: str) -> None:
    """Whatever a program prints has something to compare, and equals itself."""
    assert same(text) == same(text)
    assert len(same(text)) == 32


@pytest.mark.parametrize(
    ("seen", "count"),
    [
        ((), 0),
        ((None,), 0),
        ((None, None, None), 0),
        (("a",), 1),
        (("a", "a", "a"), 3),
        (("b", "a", "a"), 2),
        (("a", "b", "a"), 1),
        (("a", None, "a"), 1),
        (("a", "a", None), 0),
    ],
)
def test_only_the_same_in_a_row_is_counted(seen: tuple[str | None, ...], count: int) -> None:
    """What nobody looked at is like nothing else, and what was different before the latest ones does not count."""
    assert repeats(seen) == count


def test_a_fingerprint_is_of_work_effects_and_words() -> None:
    """Each of the three makes another fingerprint, and the order of effects and the time of day make none."""
    other = ("folder/t/1/deploy", "wanted", None)
    mine = fingerprint("head tree", effects=[EFFECT, other], said="Done in 3 s.")
    assert mine == fingerprint("head tree", effects=[other, EFFECT], said="Done in 5 s.")
    assert mine != fingerprint("head tree2", effects=[EFFECT, other], said="Done in 3 s.")
    assert mine != fingerprint("head tree", effects=[EFFECT], said="Done in 3 s.")
    assert mine != fingerprint("head tree", effects=[(*EFFECT[:2], "no"), other], said="Done in 3 s.")
    assert mine != fingerprint("head tree", effects=[EFFECT, other], said="Not done.")


def test_the_same_call_that_fails_in_the_same_way_is_counted() -> None:
    """Only the same call with the same error counts on, whatever else fails between."""
    calls = Calls()
    assert [calls.failed("make", "Exit code 2"), calls.failed("make", "Exit code 2")] == [1, 2]
    assert calls.failed("make", "Exit code 1") == 1
    assert calls.failed("make test", "Exit code 2") == 1
    assert calls.failed("make", "Exit code 2") == 3


def test_a_call_that_works_begins_anew() -> None:
    """An agent that gets anything done between two failures is not going round in circles."""
    calls = Calls()
    for _ in range(100):
        assert calls.failed("make", "Exit code 2") == 1
        calls.succeeded()


@pytest.mark.anyio
async def test_a_check_that_prints_nothing_shows_no_circle(tmp_path: Path) -> None:
    """Three equal failures of a check hold a ticket only where there is something that was equal."""
    place = Place(tmp_path)
    with closing(place.store):
        place.claim("a")
        for _ in range(3):
            place.store.transact(Tx.log, "a", Name.RUN_STARTED)
            place.store.transact(Tx.log, "a", Name.CHECK_FAILED, failure_sha="x")
        mute, loud = (FailedLine("test -e x", "exit code 1", output) for output in ("\n", "no x"))
        assert await circling(place.parts(), "a", said="Done.", failed=mute) is None
        shown = await circling(place.parts(), "a", said="Done.", failed=loud)
    assert shown == "`test -e x` failed 3 times in a row in the same way: exit code 1\nno x"
