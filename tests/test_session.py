"""Which session the next run uses: ids that are found again, and a new one only when the old cannot go on."""

from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.session import (
    EMPTY_TO_FRESH,
    Kind,
    Plan,
    Session,
    Transcript,
    after_failed_resume,
    choose,
    session_id,
)

MISSING, USABLE, UNUSABLE = Transcript.MISSING, Transcript.USABLE, Transcript.UNUSABLE

SESSIONS = st.builds(
    Session,
    id=st.just("stored"),
    generation=st.integers(1, 4),
    confirmed=st.booleans(),
    closed=st.none() | st.just("prompt_too_long"),
    rules=st.sampled_from(["old", "new"]),
    empty=st.integers(0, 4),
)
DISKS = st.lists(st.sampled_from(Transcript), max_size=6)


def name(generation: int) -> str:
    """Return the id of a generation."""
    return f"id-{generation}"


def disk(*states: Transcript) -> Callable[[int], Transcript]:
    """Return what is on disk for the generations from 1; nothing after those given."""
    return lambda generation: states[generation - 1] if generation <= len(states) else MISSING


def plan(last: Session | None, *states: Transcript, fresh: bool = False, rules: str | None = None) -> Plan:
    """Return what the next run does, with `states` on disk."""
    return choose(last, name=name, transcript=disk(*states), fresh=fresh, rules=rules)


def test_id_is_found_again_without_a_database() -> None:
    """An id follows from source, ticket and generation alone, and stays what it was in every version."""
    assert session_id("folder", "fix-1", 1) == "36c3f232-d976-5d7b-9a8a-d62d8ff133a3"


@given(st.text(), st.text(), st.integers(1, 99), st.integers(1, 99))
def test_id_is_a_uuid_of_its_generation(source: str, ticket: str, one: int, other: int) -> None:
    """An id is a UUID, as the CLI asks for, and each generation has another."""
    assert str(UUID(session_id(source, ticket, one))) == session_id(source, ticket, one)
    assert (session_id(source, ticket, one) == session_id(source, ticket, other)) == (one == other)


def test_first_run_opens_the_first_session() -> None:
    """A ticket that has no session and no transcript begins with generation 1."""
    assert plan(None) == Plan(Kind.FIRST, "id-1", 1, resume=False)


def test_usable_transcript_is_resumed() -> None:
    """A session whose transcript is usable goes on, whether or not its first word was seen."""
    for confirmed in (False, True):
        assert plan(Session("a", 1, confirmed), USABLE) == Plan(Kind.RESUMED, "a", 1, resume=True)


def test_session_that_never_spoke_keeps_its_id() -> None:
    """A session with no transcript and no word of the model is opened again under the same id."""
    assert plan(Session("a", 1, confirmed=False)) == Plan(Kind.FIRST, "a", 1, resume=False)
    assert plan(Session("b", 2, confirmed=False), UNUSABLE) == Plan(Kind.FALLBACK, "b", 2, resume=False)


def test_lost_transcript_of_a_confirmed_session_is_tried() -> None:
    """A session that spoke and has no transcript is asked to resume, so that its end is recorded as an attempt."""
    assert plan(Session("a", 1, confirmed=True)) == Plan(Kind.RESUMED, "a", 1, resume=True)


@pytest.mark.parametrize("confirmed", [False, True])
def test_unusable_transcript_is_left(confirmed: bool) -> None:
    """A transcript that can be neither resumed nor begun anew makes way for the next generation."""
    expected = Plan(Kind.FALLBACK, "id-2", 2, resume=False, close="transcript_unusable")
    assert plan(Session("a", 1, confirmed), UNUSABLE) == expected


def test_closed_session_is_left_without_closing_it_again() -> None:
    """A session that was closed is followed by the next generation, and keeps the reason that it has."""
    closed = Session("a", 1, confirmed=True, closed="session_over")
    for fresh in (False, True):
        assert plan(closed, USABLE, fresh=fresh) == Plan(Kind.FALLBACK, "id-2", 2, resume=False)


def test_person_gets_a_new_session() -> None:
    """A person's wish for a new session closes one that could go on."""
    expected = Plan(Kind.FALLBACK, "id-2", 2, resume=False, close="operator")
    assert plan(Session("a", 1, confirmed=True), USABLE, fresh=True) == expected


@pytest.mark.parametrize(
    ("confirmed", "state", "rules", "close"),
    [
        (True, USABLE, "new", "rules_changed"),
        (False, USABLE, "new", "rules_changed"),
        (True, MISSING, "new", "rules_changed"),
        (False, MISSING, "new", None),
        (True, UNUSABLE, "new", "transcript_unusable"),
        (True, USABLE, "old", None),
        (True, USABLE, None, None),
    ],
)
def test_a_session_of_other_rules_is_left_where_that_is_asked_for(
    *, confirmed: bool, state: Transcript, rules: str | None, close: str | None
) -> None:
    """A session that was told other rules makes way; one that was told none yet, or has the same, goes on."""
    chosen = plan(Session("a", 1, confirmed, rules="old"), state, rules=rules)
    assert (chosen.close, chosen.generation) == (close, 1 if close is None else 2)
    left = Session("a", 1, confirmed, closed="rules_changed", rules="old")
    assert plan(left, state, rules=rules).close is None, "it is closed once"


@pytest.mark.parametrize(("empty", "generation"), [(0, 1), (1, 1), (2, 2), (3, 2)])
def test_two_runs_without_a_turn_go_fresh(empty: int, generation: int) -> None:
    """A session is given up after two runs in a row without a turn and not before."""
    chosen = plan(Session("a", 1, confirmed=True, empty=empty), USABLE)
    assert chosen.generation == generation
    assert chosen.close == ("no_turns" if generation == 2 else None)


def test_failed_resume_is_followed_by_a_new_session() -> None:
    """After a resume that found no conversation comes the next generation, past ids that have a file."""
    last = Session("a", 1, confirmed=True)
    chosen = after_failed_resume(last, name=name, transcript=disk(MISSING, UNUSABLE, USABLE))
    assert chosen == Plan(Kind.FALLBACK, "id-4", 4, resume=False, close="resume_failed")


@pytest.mark.parametrize(
    ("states", "fresh", "expected"),
    [
        ((USABLE,), False, Plan(Kind.RESUMED, "id-1", 1, resume=True)),
        ((USABLE, USABLE), False, Plan(Kind.RESUMED, "id-2", 2, resume=True)),
        ((UNUSABLE, USABLE), False, Plan(Kind.RESUMED, "id-2", 2, resume=True)),
        ((USABLE, UNUSABLE), False, Plan(Kind.FALLBACK, "id-3", 3, resume=False)),
        ((UNUSABLE,), False, Plan(Kind.FALLBACK, "id-2", 2, resume=False)),
        ((USABLE,), True, Plan(Kind.FALLBACK, "id-2", 2, resume=False)),
        ((), True, Plan(Kind.FIRST, "id-1", 1, resume=False)),
    ],
)
def test_lost_database_finds_the_latest_session(states: tuple[Transcript, ...], fresh: bool, expected: Plan) -> None:
    """Without a record the highest generation with a transcript goes on if it can, else the next one begins."""
    assert plan(None, *states, fresh=fresh) == expected


@given(st.none() | SESSIONS, DISKS, st.booleans())
def test_new_session_never_takes_an_id_with_a_file(last: Session | None, states: list[Transcript], fresh: bool) -> None:
    """A session is begun only under an id that has no file, else the CLI says that it is in use."""
    chosen = plan(last, *states, fresh=fresh)
    assert chosen.resume or disk(*states)(chosen.generation) is MISSING


@given(SESSIONS, DISKS, st.booleans())
def test_session_is_left_for_a_reason_only(last: Session, states: list[Transcript], fresh: bool) -> None:
    """The stored session is used again unless it is closed, unusable, given up or a person wants another."""
    chosen = plan(last, *states, fresh=fresh)
    unusable = disk(*states)(last.generation) is UNUSABLE
    if last.closed or fresh or unusable or last.empty >= EMPTY_TO_FRESH:
        assert chosen.generation > last.generation
        assert not chosen.resume
        assert (chosen.close is None) == (last.closed is not None)
    else:
        assert (chosen.id, chosen.generation, chosen.close) == (last.id, last.generation, None)


@given(st.none() | SESSIONS, DISKS, st.booleans())
def test_kind_says_what_the_run_does(last: Session | None, states: list[Transcript], fresh: bool) -> None:
    """A run is called resumed when it resumes, first when it opens generation 1, and fallback otherwise."""
    chosen = plan(last, *states, fresh=fresh)
    expected = Kind.RESUMED if chosen.resume else Kind.FIRST if chosen.generation == 1 else Kind.FALLBACK
    assert chosen.kind is expected
